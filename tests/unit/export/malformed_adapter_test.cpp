// Malformed PEFT folders, read without torch as `export` and the start of a run read them: the place and the words of each
// refusal. Here and not in lora_test, which needs torch, so that the sanitizers have them.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "lora_train/lora/adapter_tensors.h"
#include "support/expect_refused.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"
#include "unit/lora/merge_folder.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;
using storage::DType;

constexpr const char *kConfig = "/adapter_config.json", *kTensors = "/adapter_model.safetensors";
const std::string kQ = "base_model.model.model.layers.0.self_attn.q_proj";
const std::string kA = kQ + ".lora_A.weight", kB = kQ + ".lora_B.weight";

struct Tensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
};
using Tensors = std::map<std::string, Tensor>;

/// A good adapter of rank 4 on a Llama of 2 layers, D 16.
class MalformedAdapter : public ::testing::Test {
 protected:
  MalformedAdapter() {
    testing_support::write_merge_model(folder_ / "model");
    AdapterConfig options;
    options.lora_r = 4;
    testing_support::write_merge_adapter(adapter_, folder_ / "model", options);
    text_ = read_file(adapter_ / "adapter_config.json");
    const storage::SafetensorsFile file(adapter_ / "adapter_model.safetensors");
    for (const auto& entry : file.tensors()) {
      tensors_[entry.name] = {entry.dtype, entry.shape};
    }
  }

  /// As a run reads it, without the values.
  void read() const {
    model::ModelConfig config = model::read_model_config(folder_ / "model");
    const AdapterConfig adapter = read_adapter_config(adapter_);
    const auto specs = plan_adapters(adapter, config);
    token_rows_of(adapter, adapter_, config);
    open_adapter_tensors(adapter_, model::adapter_parameters(model::model_shape(config, specs)));
  }
  void expect_refused(const std::string& place, const std::vector<std::string>& words) const {
    testing_support::expect_refused([this] { read(); }, place, words);
  }

  void write_text(const std::string& text) const { write_file_atomic(adapter_ / "adapter_config.json", text); }
  /// `changes` is a JSON object; null takes a key out.
  void write_config(const std::string& changes) const {
    auto config = nlohmann::ordered_json::parse(text_);
    config.merge_patch(nlohmann::ordered_json::parse(changes));
    write_text(config.dump());
  }
  void write_tensors(const Tensors& tensors) const {
    const std::string zeros(1 << 16, '\0');
    std::vector<storage::TensorToWrite> list;
    for (const auto& [name, tensor] : tensors) {
      const std::size_t size = storage::tensor_bytes(tensor.dtype, tensor.shape);
      list.push_back({name, tensor.dtype, tensor.shape, std::string_view(zeros).substr(0, size), nullptr});
    }
    storage::write_safetensors(adapter_ / "adapter_model.safetensors", list);
  }

  testing_support::TemporaryFolder folder_;
  fs::path adapter_ = folder_ / "adapter";
  std::string text_;
  Tensors tensors_;
};

TEST_F(MalformedAdapter, TheGoodOneIsRead) {
  EXPECT_NO_THROW(read());
  write_config(R"({"bias": null, "lora_dropout": null, "use_dora": null, "some_new_key": {"a": 1}})");
  for (auto& [name, tensor] : tensors_) tensor.dtype = DType::kF16;
  write_tensors(tensors_);
  EXPECT_NO_THROW(read());
}

TEST_F(MalformedAdapter, ConfigsOfOtherText) {
  const std::string deep = std::string(20'000, '[') + std::string(20'000, ']');
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {"", kConfig, "is empty"},
      {text_.substr(0, text_.size() - 10), "", "not valid JSON"},
      {"[]", kConfig, "must hold a JSON object"},
      {"{\"use_dora\": " + deep + "}", kConfig, "deeper than 64 levels"},
      {"peft_type: LORA\nr: 4\n", "", "not valid JSON"}};
  for (const auto& [text, place, message] : cases) {
    SCOPED_TRACE(text.substr(0, 40));
    write_text(text);
    expect_refused(place, {message});
  }
}

TEST_F(MalformedAdapter, KeysOfTheConfig) {
  struct Case {
    const char *changes, *key;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {R"({"peft_type": "IA3"})", "peft_type", {"\"IA3\"", "only LORA"}},
      {R"({"peft_type": null})", "peft_type", {"only LORA"}},
      {R"({"peft_type": 5})", "peft_type", {"wrong type"}},
      {R"({"use_dora": true})", "use_dora", {"not supported"}},
      {R"({"bias": "lora_only"})", "bias", {"trains biases"}},
      {R"({"lora_bias": true})", "lora_bias", {"not supported"}},
      {R"({"modules_to_save": ["lm_head"]})", "modules_to_save", {"lm_head", "not supported"}},
      {R"({"trainable_token_indices": [1, 1]})", "trainable_token_indices", {"names id 1 twice"}},
      {R"({"trainable_token_indices": [-1]})", "trainable_token_indices", {"-1, which is not a token id"}},
      {R"({"trainable_token_indices": 3})", "trainable_token_indices", {"a list of token ids was expected"}},
      {R"({"trainable_token_indices": {"w": [1]}})", "trainable_token_indices", {"\"w\"", "embed_tokens and lm_head"}},
      {R"({"trainable_token_indices": [10000000]})", "trainable_token_indices", {"far above the 32 rows"}},
      {R"({"layers_to_transform": ["0"]})", "layers_to_transform", {"[\"0\"]", "numbers of layers"}},
      {R"({"layers_to_transform": 9})", "target_modules", {"layers_to_transform leave no linear"}},
      {R"({"layers_to_transform": 0, "layers_pattern": ["h"]})", "layers_pattern", {"[\"h\"]", "\"layers\""}},
      {R"({"exclude_modules": 5})", "exclude_modules", {"a list or a string"}},
      {R"({"exclude_modules": [5]})", "exclude_modules", {"not a string: 5"}},
      {R"x({"exclude_modules": "(unclosed"})x", "exclude_modules", {"not a valid regular expression"}},
      {R"({"fan_in_fan_out": true})", "fan_in_fan_out", {"not supported"}},
      {R"({"init_lora_weights": "pissa"})", "init_lora_weights", {"path_initial_model_for_weight_conversion"}},
      {R"({"r": 0})", "r", {"a whole number from 1"}},
      {R"({"r": "4"})", "r", {"a whole number from 1"}},
      {R"({"r": 1099511627776})", "r", {"a whole number from 1"}},
      {R"({"lora_alpha": "8"})", "lora_alpha", {"a number above zero"}},
      {R"({"lora_alpha": 0})", "lora_alpha", {"a number above zero"}},
      {R"({"use_rslora": 1})", "use_rslora", {"wrong type"}},
      {R"({"rank_pattern": ["q_proj"]})", "rank_pattern", {"an object of names"}},
      {R"({"rank_pattern": {"q_proj": 0}})", "rank_pattern.q_proj", {"a whole number from 1"}},
      {R"({"rank_pattern": {"q_(proj": 4}})", "rank_pattern", {"not a valid regular expression"}},
      {R"({"alpha_pattern": {"q_proj": -8}})", "alpha_pattern.q_proj", {"a number above zero"}},
      {R"({"target_modules": null})", "target_modules", {"is missing"}},
      {R"({"target_modules": []})", "target_modules", {"non-empty list"}},
      {R"({"target_modules": [1]})", "target_modules", {"not a string"}},
      {R"({"target_modules": ["c_attn"]})", "target_modules", {"\"c_attn\" matches no linear", "q_proj"}},
      {R"({"target_modules": ["lm_head"]})", "target_modules", {"output head are not supported"}},
      {R"x({"target_modules": "(unclosed"})x", "target_modules", {"not a valid regular expression"}},
      {R"x({"target_modules": "((m|.)+)+[!?]"})x", "target_modules", {"takes too long"}},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.changes);
    write_config(bad.changes);
    expect_refused(std::string(kConfig) + ": " + bad.key, bad.words);
  }
  write_config(R"({"r": 8})");
  expect_refused(kTensors + (": " + kA), {"is F32 [4, 16], expected shape [8, 16]", "another model or rank"});
}

TEST_F(MalformedAdapter, TensorsThatAreNotThoseOfTheConfig) {
  const std::string lacks = "is missing, but adapter_config.json targets this linear", more = "it would be ignored";
  const std::string of_another = "expected shape [4, 16]; the adapter belongs to another model or rank";
  const std::string prefix = "base_model.model.", first = prefix + "model.layers.1.self_attn.q_proj.lora_A.weight";
  const auto expect_tensors_refused = [&](const Tensors& tensors, const std::string& tensor,
                                          const std::string& message) {
    SCOPED_TRACE(tensor + " " + message);
    write_tensors(tensors);
    expect_refused(std::string(kTensors) + ": " + tensor, {message});
  };
  Tensors without_b = tensors_, without_layer = tensors_, swapped = tensors_, of_peft, without_prefix;
  without_b.erase(kB);
  expect_tensors_refused(without_b, kB, lacks);
  std::erase_if(without_layer, [](const auto& at) { return at.first.find(".layers.1.") != std::string::npos; });
  expect_tensors_refused(without_layer, first, lacks);
  std::swap(swapped[kA], swapped[kB]);
  expect_tensors_refused(swapped, kA, of_another);
  for (const auto& [name, tensor] : tensors_) {
    of_peft[name.substr(0, name.size() - 6) + "default.weight"] = tensor;
    without_prefix[name.substr(prefix.size())] = tensor;
  }
  expect_tensors_refused(of_peft, kA, lacks);
  expect_tensors_refused(without_prefix, kA, lacks);
  const std::tuple<std::string, Tensor, std::string> cases[] = {
      {kQ + ".lora_magnitude_vector", {DType::kF32, {16}}, more},  // of DoRA
      {prefix + "lm_head.weight", {DType::kF32, {32, 16}}, more},
      {prefix + "model.layers.2.self_attn.q_proj.lora_A.weight", tensors_[kA], more},
      {kA, {DType::kF32, {16, 4}}, "is F32 [16, 4], " + of_another},
      {kA, {DType::kF32, {4, 64}}, of_another},
      {kA, {DType::kF64, {4, 16}}, "is F64 [4, 16]; expected F32, F16 or BF16"},
      {kB, {DType::kI8, {16, 4}}, "is I8 [16, 4]; expected F32"},
  };
  for (const auto& [name, tensor, message] : cases) {
    Tensors tensors = tensors_;
    tensors[name] = tensor;
    expect_tensors_refused(tensors, name, message);
  }
}

TEST_F(MalformedAdapter, FilesThatAreMissingOrNone) {
  const fs::path config = adapter_ / "adapter_config.json", tensors = adapter_ / "adapter_model.safetensors";
  const std::string bytes = read_file(tensors);
  const auto expect_tensors = [&](const char* message) {
    expect_refused(kTensors, {message});
    fs::remove(tensors);
  };
  for (const auto& [content, message] :
       {std::pair(bytes.substr(0, bytes.size() - 8), "the file is truncated"),
        {bytes + '\0', "1 bytes follow the last tensor"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"}}) {
    write_file_atomic(tensors, content);
    expect_tensors(message);
  }
  write_file_atomic(adapter_ / "adapter_model.bin", "a pickle");
  expect_tensors(
      "is missing; expected a PEFT adapter folder with adapter_config.json and adapter_model.safetensors "
      "(.bin adapters are not supported: save with safetensors)");
  fs::create_directory(tensors);
  expect_tensors("is a folder");
  fs::remove(config);
  expect_refused(kConfig, {"is missing; expected a PEFT adapter folder"});
  ASSERT_EQ(::mkfifo(config.c_str(), 0600), 0);
  ::alarm(20);  // opening the pipe would never end
  expect_refused(kConfig, {"is a pipe"});
  ::alarm(0);
  fs::remove_all(adapter_);
  write_file_atomic(adapter_, "");
  expect_refused(kConfig, {"is missing"});
}

}  // namespace
}  // namespace lora_train::lora
