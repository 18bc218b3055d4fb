#include "lora_train/lora/adapter_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "lora_train/storage/safetensors.h"
#include "merge_folder.h"
#include "support/expect_parts.h"
#include "support/refusal.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

namespace lora_train::lora {
namespace {

using nlohmann::json;
using testing_support::expect_parts;
using testing_support::TemporaryFolder;

std::vector<model::Parameter> tensors(std::int64_t rank, std::int64_t in_features) {
  return model::adapter_tensors({AdapterKind::kLora, 0, "self_attn.q_proj", rank}, in_features, 4);
}

model::Trainables parameters() { return model::Trainables(tensors(2, 6)); }

AdapterConfig adapter_config() {
  AdapterConfig config;
  config.lora_r = 2;
  config.lora_alpha = 3;
  config.lora_target_modules = {LoraTargets::Kind::kList, {"q_proj"}, {}};
  config.base_model_name_or_path = "org/model";
  config.lora_target_modules = {LoraTargets::Kind::kList, {"q_proj"}, ""};
  return config;
}

void save(const TemporaryFolder& folder, const model::Trainables& values, Precision dtype = Precision::kFp32,
          const AdapterConfig& config = adapter_config()) {
  storage::AtomicFolder target(folder.path());
  target.write(adapter_files(config, values, dtype));
  target.commit();
}

TEST(AdapterFile, ReadsBackWhatItWroteInEitherPrecision) {
  model::Trainables written = parameters(), read = parameters();
  written.values.copy_(testing_support::uniform({written.size()}, 1));
  for (const auto& [precision, dtype] : {std::pair(Precision::kFp32, at::kFloat), {Precision::kBf16, at::kBFloat16}}) {
    const TemporaryFolder folder;
    save(folder, written, precision);
    const AdapterConfig config = read_adapter_config(folder.path());
    EXPECT_EQ(config.lora_r, 2);
    EXPECT_EQ(config.lora_alpha, 3);
    EXPECT_EQ(config.lora_target_modules.names, std::vector<std::string>{"q_proj"});
    EXPECT_EQ(config.base_model_name_or_path, "org/model");
    load_adapter(folder.path(), read);
    EXPECT_TRUE(at::equal(read.values, written.values.to(dtype).to(at::kFloat)));
  }
}

// PEFT takes the first pattern in the order of the file, so that sorting the keys would change ranks and scales.
TEST(AdapterFile, PatternsKeepTheirOrder) {
  const TemporaryFolder folder;
  model::Trainables values = parameters();
  AdapterConfig config = adapter_config();
  config.rank_pattern = {{"q_proj", 2}, {"layers.1.self_attn.(q|k)_proj", 5}, {"k_proj", 3}};
  config.alpha_pattern = {{"v_proj", 1.5}, {"layers.2.*", 4}};
  save(folder, values, Precision::kFp32, config);
  const AdapterConfig read = read_adapter_config(folder.path());
  EXPECT_EQ(read.rank_pattern, config.rank_pattern);
  EXPECT_EQ(read.alpha_pattern, config.alpha_pattern);
  const std::string text = read_file(folder / "adapter_config.json");
  EXPECT_LT(text.find("\"q_proj\": 2"), text.find("layers.1"));
}

TEST(AdapterFile, NeverSavesNonFiniteValues) {
  const TemporaryFolder folder;
  model::Trainables values = parameters();
  values.values[3] = NAN;
  EXPECT_THROW(save(folder, values), NumericError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// Error text of loading after `spoil` changed adapter_config.json.
template <typename Spoil>
std::string config_error(const Spoil& spoil) {
  const TemporaryFolder folder;
  model::Trainables values = parameters();
  save(folder, values);
  json config = json::parse(read_file(folder / "adapter_config.json"));
  spoil(config);
  write_file_atomic(folder / "adapter_config.json", config.dump());
  return testing_support::refusal<FormatError>([&] { (void)read_adapter_config(folder.path()); });
}

template <typename Spoil>
void expect_config_error(const Spoil& spoil, const std::string& part) {
  EXPECT_SAYS(config_error(spoil), part);
}

TEST(AdapterFile, RefusesByNameWhatItWouldHaveToIgnore) {
  expect_config_error([](json& c) { c["modules_to_save"] = {"lm_head"}; }, "modules_to_save");
  expect_config_error([](json& c) { c["peft_type"] = "IA3"; }, "IA3");
  expect_config_error([](json& c) { c["bias"] = "all"; }, "bias");
  expect_config_error([](json& c) { c.erase("target_modules"); }, "target_modules");
  for (const char* key :
       {"modules_to_save", "layer_replication", "fan_in_fan_out", "megatron_config", "lora_bias", "target_parameters",
        "alora_invocation_tokens", "arrow_config", "kasa_config", "velora_config", "monteclora_config"}) {
    expect_config_error([key](json& c) { c[key] = {{"x", 1}}; }, key);
    EXPECT_EQ(config_error([key](json& c) { c[key] = nullptr; }), "accepted") << key;
  }
  for (const json& off : {json(""), json(false), json(nullptr), json::array(), json::object()}) {
    EXPECT_EQ(config_error([&off](json& c) { c["layers_pattern"] = off; }), "accepted") << off;
  }
  EXPECT_EQ(config_error([](json& c) { c["some_new_key"] = 1; }), "accepted");
}

TEST(AdapterFile, AFlagNamesTheKindOnceItIsBuilt) {
  const json plain = json::parse(adapter_config_json(adapter_config()));
  EXPECT_EQ(plain.at("use_dora"), false);
  for (const auto& name : flagged_kinds()) {
    const std::string flag = "use_" + name;
    const std::string error = config_error([&flag](json& c) { c[flag] = true; });
    EXPECT_EQ(config_error([&flag](json& c) { c[flag] = false; }), "accepted") << flag;
    const auto kind = from_string<AdapterKind>(name);
    if (!kind) {
      EXPECT_SAYS(error, "adapter_config.json: " + flag + ": is true, which is not supported");
      EXPECT_EQ(plain.value(flag, false), false);
      continue;
    }
    EXPECT_EQ(error, "accepted") << flag;
    const TemporaryFolder folder;
    AdapterConfig config = adapter_config();
    config.kind = *kind;
    write_file_atomic(folder / "adapter_config.json", adapter_config_json(config));
    EXPECT_EQ(json::parse(read_file(folder / "adapter_config.json"))[flag], true);
    EXPECT_EQ(read_adapter_config(folder.path()).kind, *kind);
  }
}

TEST(AdapterFile, RefusesInitialisationsThatChangeTheBase) {
  for (const char* name : {"pissa", "pissa_niter_4", "olora", "loftq", "corda", "lora_ga", "mica"}) {
    expect_config_error([name](json& c) { c["init_lora_weights"] = name; },
                        "init_lora_weights: is \"" + std::string(name) + "\"");
  }
  EXPECT_NE(config_error([](json& c) { c["init_lora_weights"] = 1; }), "accepted");
  for (const json& value :
       {json(true), json(false), json(nullptr), json("gaussian"), json("eva"), json("orthogonal")}) {
    EXPECT_EQ(config_error([&value](json& c) { c["init_lora_weights"] = value; }), "accepted") << value;
  }
}

TEST(AdapterFile, ChecksEveryNumber) {
  for (const json& rank :
       {json(0), json(-4), json(2.5), json(8.0), json(65537), json(18446744073709551615U), json("8"), json(true)}) {
    expect_config_error([&rank](json& c) { c["r"] = rank; },
                        "adapter_config.json: r: is " + rank.dump() + "; a whole number from 1 to 65536");
    expect_config_error(
        [&rank](json& c) {
          c["rank_pattern"] = {{"q_proj", rank}};
        },
        "rank_pattern.q_proj: is " + rank.dump());
  }
  EXPECT_EQ(config_error([](json& c) { c["r"] = 65536; }), "accepted");
  expect_config_error([](json& c) { c["lora_alpha"] = "x"; }, "lora_alpha: is \"x\"; a number above zero was expected");
  expect_config_error([](json& c) { c["alpha_pattern"] = {{"q_proj", "x"}}; }, "alpha_pattern.q_proj: is \"x\"");
  expect_config_error([](json& c) { c["lora_dropout"] = -1; },
                      "lora_dropout: is -1; a number from 0 to below 1 was expected");
  expect_config_error([](json& c) { c["lora_dropout"] = 1.0; }, "lora_dropout: is 1.0;");
  EXPECT_EQ(config_error([](json& c) { c["lora_dropout"] = 0; }), "accepted");
  const TemporaryFolder folder;
  write_file_atomic(folder / "adapter_config.json",
                    R"({"peft_type": "LORA", "r": 1e999, "target_modules": ["q_proj"]})");
  EXPECT_THROW((void)read_adapter_config(folder.path()), FormatError);
}

/// Error text of loading a file with these tensors: [2, 6] and [4, 2] of the adapter, or others.
std::string tensor_error(const std::vector<storage::TensorToWrite>& list) {
  const TemporaryFolder folder;
  save(folder, parameters());
  storage::write_safetensors(folder / "adapter_model.safetensors", list);
  model::Trainables read = parameters();
  return testing_support::refusal<FormatError>([&] { load_adapter(folder.path(), read); });
}

TEST(AdapterFile, ChecksEveryTensor) {
  const std::string a = tensors(2, 6)[0].name, b = tensors(2, 6)[1].name, zeros(12 * 8, '\0');
  const auto tensor = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                          storage::DType dtype = storage::DType::kF32) {
    return storage::TensorToWrite{name, dtype, shape,
                                  std::string_view(zeros).substr(0, storage::tensor_bytes(dtype, shape)), nullptr};
  };
  EXPECT_SAYS(tensor_error({tensor(a, {2, 6})}), "is missing");
  EXPECT_SAYS(tensor_error({tensor(a, {2, 5}), tensor(b, {4, 2})}), "another model or rank");
  EXPECT_SAYS(tensor_error({tensor(a, {2, 6}), tensor(b, {4, 2}), tensor("x", {1})}), "x: is not a LoRA tensor");
  for (const auto dtype : {storage::DType::kI64, storage::DType::kF64, storage::DType::kU8, storage::DType::kBool}) {
    EXPECT_SAYS(tensor_error({tensor(a, {2, 6}, dtype), tensor(b, {4, 2}, dtype)}),
                std::string(storage::dtype_name(dtype)));
  }
  for (const float value : {NAN, -INFINITY}) {
    const std::vector<float> values(8, value);
    storage::TensorToWrite bad = tensor(b, {4, 2});
    bad.bytes = {reinterpret_cast<const char*>(values.data()), 32};
    EXPECT_SAYS(tensor_error({tensor(a, {2, 6}), bad}), b + ": holds NaN or infinity");
  }
  EXPECT_EQ(tensor_error({tensor(a, {2, 6}), tensor(b, {4, 2})}), "accepted");
}

TEST(AdapterInit, IsKaimingUniformWithZeroBAndHasItsGoldenFirstValues) {
  model::Trainables values(tensors(64, 400));
  init_adapter_values(42, values);
  const at::Tensor a = values.value(values.list()[0].name), b = values.value(values.list()[1].name);
  const double bound = 1 / std::sqrt(400.0);
  EXPECT_LE(a.abs().max().item<double>(), bound);
  EXPECT_GT(a.abs().max().item<double>(), 0.999 * bound);
  EXPECT_NEAR(a.std().item<double>(), bound / std::sqrt(3.0), 0.01 * bound);
  EXPECT_EQ(b.abs().max().item<double>(), 0);
  // int24 times one fp32 constant: the same bits on every machine and compiler.
  model::Trainables small = parameters();
  init_adapter_values(42, small);
  const float* first = small.values.const_data_ptr<float>();
  const std::vector<float> got(first, first + 8);
  const std::vector<float> golden{-0x1.c80704p-3F, -0x1.a81b64p-4F, 0x1.9baa4ap-3F, 0x1.1a3354p-2F,
                                  0x1.895488p-3F,  0x1.1fe968p-3F,  0x1.eb5a34p-8F, -0x1.2c2994p-2F};
  EXPECT_EQ(got, golden);
  model::Trainables other = parameters();
  init_adapter_values(43, other);
  EXPECT_FALSE(at::equal(other.values, small.values)) << "the seed decides";
}

namespace fs = std::filesystem;

/// model/ and adapter/, whose adapter_config.json names org/base.
class AdapterBase : public testing::Test {
 protected:
  AdapterBase() {
    testing_support::write_merge_model(model_);
    testing_support::write_merge_adapter(adapter_, model_, {});
  }

  void record(const fs::path& model) {
    write_file_atomic(adapter_ / storage::kBaseModelFile,
                      base_file_text(storage::open_model_weights(model).fingerprint()));
  }

  /// The same shapes with other weights.
  fs::path other_model() {
    const fs::path other = folder_ / "other";
    fs::copy(model_, other);
    for (const auto& entry : fs::directory_iterator(other)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::string bytes = read_file(entry.path());
      bytes.back() = static_cast<char>(bytes.back() ^ 1);
      write_file_atomic(entry.path(), bytes);
    }
    return other;
  }

  std::string said(const storage::ResolvedModel& model, bool is_allowed = false) {
    testing::internal::CaptureStderr();
    const std::string refusal = testing_support::refusal<ConfigError>([&] {
      check_base(adapter_, model, {is_allowed, "--the-flag"});
    });
    return (refusal == "accepted" ? "" : "refused: " + refusal) + testing::internal::GetCapturedStderr();
  }

  testing_support::TemporaryFolder folder_;
  fs::path model_ = folder_ / "model", adapter_ = folder_ / "adapter";
};

TEST_F(AdapterBase, ThatMovedIsNotMentioned) {
  record(model_);
  const fs::path moved = folder_ / "moved";
  fs::rename(model_, moved);
  EXPECT_EQ(said({moved, ""}), "");
}

TEST_F(AdapterBase, WithOtherWeightsIsRefusedUnderAnyName) {
  record(model_);
  const fs::path other = other_model();
  expect_parts(said({other, ""}), {"refused: " + adapter_.string(), "org/base", other.string(), "--the-flag"});
  expect_parts(said({other, "org/base"}), {"refused: ", "org/base"});
  const std::string allowed = said({other, ""}, true);
  EXPECT_FALSE(allowed.starts_with("refused")) << allowed;
  expect_parts(allowed, {"warning", "org/base", other.string()});
}

TEST_F(AdapterBase, KnownOnlyByNameIsWarnedOfUnderAnotherOne) {
  EXPECT_EQ(said({model_, "org/base"}), "");
  const std::string warning = said({model_, ""});
  EXPECT_FALSE(warning.starts_with("refused")) << warning;
  expect_parts(warning, {"warning", "org/base", model_.string()});
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1);

  auto config = nlohmann::json::parse(read_file(adapter_ / "adapter_config.json"));
  for (const std::string& name : {model_.string(), model_.string() + "/", std::string()}) {
    config["base_model_name_or_path"] = name;
    write_file_atomic(adapter_ / "adapter_config.json", config.dump());
    EXPECT_EQ(said({model_, ""}), "") << name;
  }
}

TEST_F(AdapterBase, FileOfAnotherToolCountsAsNone) {
  for (const char* text : {"", "[]", "{\"weights\": 1}", "{\"name\": \"x\"}", "{\"weights\": \"00\"}",
                           "{\"made_by\": \"lora-train\", \"version\": 2, \"weights\": \"00\"}"}) {
    write_file_atomic(adapter_ / storage::kBaseModelFile, text);
    EXPECT_EQ(said({model_, "org/base"}), "") << text;
  }
}

}  // namespace
}  // namespace lora_train::lora
