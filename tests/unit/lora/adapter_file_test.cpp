#include "lora_train/lora/adapter_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/safetensors.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"

namespace lora_train::lora {
namespace {

using nlohmann::json;
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
  return config;
}

void save(const TemporaryFolder& folder, const AdapterConfig& config, const model::Trainables& values,
          Precision dtype) {
  storage::AtomicFolder target(folder.path());
  target.write(adapter_files(config, {"q_proj"}, values, dtype));
  target.commit();
}

void save(const TemporaryFolder& folder, model::Trainables& values, Precision dtype = Precision::kFp32) {
  save(folder, adapter_config(), values, dtype);
}

TEST(AdapterFile, ReadsBackWhatItWrote) {
  const TemporaryFolder folder;
  model::Trainables written = parameters(), read = parameters();
  written.values.copy_(testing_support::uniform({written.size()}, 1));
  save(folder, written);
  const AdapterConfig config = read_adapter_config(folder.path());
  EXPECT_EQ(config.lora_r, 2);
  EXPECT_EQ(config.lora_alpha, 3);
  EXPECT_EQ(config.lora_target_modules.names, std::vector<std::string>{"q_proj"});
  EXPECT_EQ(config.base_model_name_or_path, "org/model");
  load_adapter(folder.path(), read);
  EXPECT_TRUE(at::equal(read.values, written.values));
}

// PEFT takes the first pattern in the order of the file, so that sorting the keys would change ranks and scales.
TEST(AdapterFile, PatternsKeepTheirOrder) {
  const TemporaryFolder folder;
  model::Trainables values = parameters();
  AdapterConfig config = adapter_config();
  config.rank_pattern = {{"q_proj", 2}, {"layers.1.self_attn.(q|k)_proj", 5}, {"k_proj", 3}};
  config.alpha_pattern = {{"v_proj", 1.5}, {"layers.2.*", 4}};
  save(folder, config, values, Precision::kFp32);
  const AdapterConfig read = read_adapter_config(folder.path());
  EXPECT_EQ(read.rank_pattern, config.rank_pattern);
  EXPECT_EQ(read.alpha_pattern, config.alpha_pattern);
  const std::string text = read_file(folder / "adapter_config.json");
  EXPECT_LT(text.find("\"q_proj\": 2"), text.find("layers.1"));
}

TEST(AdapterFile, SavesBf16WhenAsked) {
  const TemporaryFolder folder;
  model::Trainables written = parameters(), read = parameters();
  written.values.copy_(testing_support::uniform({written.size()}, 1));
  save(folder, written, Precision::kBf16);
  load_adapter(folder.path(), read);
  EXPECT_TRUE(at::equal(read.values, written.values.to(at::kBFloat16).to(at::kFloat)));
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
  try {
    (void)read_adapter_config(folder.path());
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(AdapterFile, RefusesByNameWhatItWouldHaveToIgnore) {
  const auto mentions = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(mentions(config_error([](json& c) { c["modules_to_save"] = {"lm_head"}; }), "modules_to_save"));
  EXPECT_TRUE(mentions(config_error([](json& c) { c["peft_type"] = "IA3"; }), "IA3"));
  EXPECT_TRUE(mentions(config_error([](json& c) { c["bias"] = "all"; }), "bias"));
  EXPECT_TRUE(mentions(config_error([](json& c) { c.erase("target_modules"); }), "target_modules"));
  for (const char* key :
       {"modules_to_save", "layers_to_transform", "layers_pattern", "layer_replication", "fan_in_fan_out",
        "megatron_config", "lora_bias", "target_parameters", "exclude_modules", "alora_invocation_tokens",
        "arrow_config", "kasa_config", "velora_config", "monteclora_config"}) {
    EXPECT_TRUE(mentions(config_error([key](json& c) { c[key] = {{"x", 1}}; }), key)) << key;
    EXPECT_EQ(config_error([key](json& c) { c[key] = nullptr; }), "accepted") << key;
  }
  for (const json& off : {json(""), json(false), json(nullptr), json::array(), json::object()}) {
    EXPECT_EQ(config_error([&off](json& c) { c["layers_pattern"] = off; }), "accepted") << off;
  }
  EXPECT_EQ(config_error([](json& c) { c["some_new_key"] = 1; }), "accepted");
}

TEST(AdapterFile, AFlagNamesTheKindOnceItIsBuilt) {
  const json plain = json::parse(adapter_config_json(adapter_config(), {"q_proj"}));
  EXPECT_EQ(plain.at("use_dora"), false);
  for (const auto& name : flagged_kinds()) {
    const std::string flag = "use_" + name;
    const std::string error = config_error([&flag](json& c) { c[flag] = true; });
    EXPECT_EQ(config_error([&flag](json& c) { c[flag] = false; }), "accepted") << flag;
    const auto kind = from_string<AdapterKind>(name);
    if (!kind) {
      EXPECT_NE(error.find("adapter_config.json: " + flag + ": is true, which is not supported"), std::string::npos);
      EXPECT_EQ(plain.value(flag, false), false);
      continue;
    }
    EXPECT_EQ(error, "accepted") << flag;
    const TemporaryFolder folder;
    AdapterConfig config = adapter_config();
    config.kind = *kind;
    write_file_atomic(folder / "adapter_config.json", adapter_config_json(config, {"q_proj"}));
    EXPECT_EQ(json::parse(read_file(folder / "adapter_config.json"))[flag], true);
    EXPECT_EQ(read_adapter_config(folder.path()).kind, *kind);
  }
}

TEST(AdapterFile, RefusesInitialisationsThatChangeTheBase) {
  for (const char* name : {"pissa", "pissa_niter_4", "olora", "loftq", "corda", "lora_ga", "mica"}) {
    const std::string error = config_error([name](json& c) { c["init_lora_weights"] = name; });
    EXPECT_NE(error.find("init_lora_weights: is \"" + std::string(name) + "\""), std::string::npos) << error;
  }
  EXPECT_NE(config_error([](json& c) { c["init_lora_weights"] = 1; }), "accepted");
  for (const json& value :
       {json(true), json(false), json(nullptr), json("gaussian"), json("eva"), json("orthogonal")}) {
    EXPECT_EQ(config_error([&value](json& c) { c["init_lora_weights"] = value; }), "accepted") << value;
  }
}

TEST(AdapterFile, ChecksEveryNumber) {
  const auto refused = [](const auto& spoil, const std::string& part) {
    const std::string error = config_error(spoil);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  for (const json& rank :
       {json(0), json(-4), json(2.5), json(8.0), json(65537), json(18446744073709551615U), json("8"), json(true)}) {
    refused([&rank](json& c) { c["r"] = rank; },
            "adapter_config.json: r: is " + rank.dump() + "; a whole number from 1 to 65536");
    refused([&rank](json& c) { c["rank_pattern"] = {{"q_proj", rank}}; }, "rank_pattern.q_proj: is " + rank.dump());
  }
  EXPECT_EQ(config_error([](json& c) { c["r"] = 65536; }), "accepted");
  refused([](json& c) { c["lora_alpha"] = "x"; }, "lora_alpha: is \"x\"; a number above zero was expected");
  refused([](json& c) { c["alpha_pattern"] = {{"q_proj", "x"}}; }, "alpha_pattern.q_proj: is \"x\"");
  refused([](json& c) { c["lora_dropout"] = -1; }, "lora_dropout: is -1; a number from 0 to below 1 was expected");
  refused([](json& c) { c["lora_dropout"] = 1.0; }, "lora_dropout: is 1.0;");
  EXPECT_EQ(config_error([](json& c) { c["lora_dropout"] = 0; }), "accepted");
}

TEST(AdapterFile, RefusesNumbersThatDoNotFit) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "adapter_config.json",
                    R"({"peft_type": "LORA", "r": 1e999, "target_modules": ["q_proj"]})");
  EXPECT_THROW((void)read_adapter_config(folder.path()), FormatError);
}

TEST(AdapterFile, RefusesTensorsThatAreNotFloats) {
  const TemporaryFolder folder;
  model::Trainables values = parameters();
  save(folder, values);
  const std::string zeros(12 * 8, '\0');
  for (const auto& [dtype, size] : {std::pair(storage::DType::kI64, 8), std::pair(storage::DType::kF64, 8),
                                    std::pair(storage::DType::kU8, 1), std::pair(storage::DType::kBool, 1)}) {
    const auto bytes = [&, width = size](int count) {
      return std::string_view(zeros).substr(0, static_cast<std::size_t>(count * width));
    };
    storage::write_safetensors(
        folder / "adapter_model.safetensors",
        {{values.list()[0].name, dtype, {2, 6}, bytes(12), {}}, {values.list()[1].name, dtype, {4, 2}, bytes(8), {}}});
    model::Trainables read = parameters();
    EXPECT_THROW(load_adapter(folder.path(), read), FormatError) << storage::dtype_name(dtype);
  }
}

/// Error text of loading the tensors after `change` made the file anew.
std::string tensor_error(const std::vector<model::Parameter>& list, float fill) {
  const TemporaryFolder folder;
  model::Trainables written(list);
  written.values.fill_(1);
  save(folder, written);
  if (!std::isfinite(fill)) {
    const std::vector<float> bad(8, fill), good(12, 1);
    const auto bytes = [](const std::vector<float>& v) {
      return std::string_view(reinterpret_cast<const char*>(v.data()), v.size() * 4);
    };
    storage::write_safetensors(folder / "adapter_model.safetensors",
                               {{list[0].name, storage::DType::kF32, {2, 6}, bytes(good), {}},
                                {list[1].name, storage::DType::kF32, {4, 2}, bytes(bad), {}}});
  }
  model::Trainables read = parameters();
  try {
    load_adapter(folder.path(), read);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(AdapterFile, ChecksEveryTensor) {
  const std::string a = tensors(2, 6)[0].name, b = tensors(2, 6)[1].name;
  EXPECT_NE(tensor_error({{a, {2, 6}, true}}, 0).find("is missing"), std::string::npos);
  EXPECT_NE(tensor_error({{a, {2, 5}, true}, {b, {4, 2}, true}}, 0).find("another model or rank"), std::string::npos);
  EXPECT_NE(tensor_error({{a, {2, 6}, true}, {b, {4, 2}, true}, {"x", {1}, true}}, 0).find("x: is not a LoRA tensor"),
            std::string::npos);
  for (const float bad : {NAN, -INFINITY}) {
    EXPECT_NE(tensor_error({{a, {2, 6}, true}, {b, {4, 2}, true}}, bad).find(b + ": holds NaN or infinity"),
              std::string::npos);
  }
  EXPECT_EQ(tensor_error({{a, {2, 6}, true}, {b, {4, 2}, true}}, 0), "accepted");
}

TEST(AdapterInit, IsKaimingUniformWithZeroB) {
  model::Trainables values(tensors(64, 400));
  init_adapter_values(42, values);
  const at::Tensor a = values.value(values.list()[0].name), b = values.value(values.list()[1].name);
  const double bound = 1 / std::sqrt(400.0);
  EXPECT_LE(a.abs().max().item<double>(), bound);
  EXPECT_GT(a.abs().max().item<double>(), 0.999 * bound);
  EXPECT_NEAR(a.std().item<double>(), bound / std::sqrt(3.0), 0.01 * bound);
  EXPECT_EQ(b.abs().max().item<double>(), 0);
}

// int24 times one fp32 constant: the same bits on every machine and compiler.
TEST(AdapterInit, HasItsGoldenFirstValues) {
  model::Trainables values = parameters();
  init_adapter_values(42, values);
  const float* a = values.values.const_data_ptr<float>();
  const std::vector<float> got(a, a + 8);
  const std::vector<float> golden{-0x1.c80704p-3F, -0x1.a81b64p-4F, 0x1.9baa4ap-3F, 0x1.1a3354p-2F,
                                  0x1.895488p-3F,  0x1.1fe968p-3F,  0x1.eb5a34p-8F, -0x1.2c2994p-2F};
  EXPECT_EQ(got, golden);
}

}  // namespace
}  // namespace lora_train::lora
