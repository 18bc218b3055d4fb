// Text models inside wrappers: config.json and the tensors of the files. Numbers: tests/parity/test_wrappers.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config_text.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/model_weights.h"
#include "support/refusal.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"

namespace lora_train::model {
namespace {

using nlohmann::json;
using storage::DType;
using testing_support::TemporaryFolder;

/// A Mistral 3 of 1 layer, D 16, H 4, K 2, F 24, V 32. The functions below may change it.
json mistral3() {
  return json::parse(R"({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
      "text_config": {"model_type": "mistral", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 32, "rms_norm_eps": 1e-5,
        "sliding_window": null, "rope_theta": 10000.0},
      "vision_config": {"model_type": "pixtral"}, "tie_word_embeddings": false})");
}

ModelConfig parsed(const json& document) { return parse_model_config(document.dump(), "dir/config.json"); }

TEST(Wrapper, ReadsTheTextModelAndWhatStandsAtTheTopFirst) {
  json document = mistral3();
  document["text_config"]["eos_token_id"] = 5;
  document["text_config"]["bos_token_id"] = 6;
  document["eos_token_id"] = 7;
  document["dtype"] = "bfloat16";
  document["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", nullptr}};
  const ModelConfig config = parsed(document);
  EXPECT_EQ(config.family, Family::kMistral);
  EXPECT_EQ(config.architecture, "Mistral3ForConditionalGeneration");
  EXPECT_TRUE(config.is_in_wrapper());
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int64_t>{7}));
  EXPECT_EQ(config.bos_token_id, 6);
  EXPECT_EQ(config.torch_dtype, "bfloat16");
  EXPECT_EQ(config.quantization.format, LinearFormat::kFp8);
}

TEST(Wrapper, EachClassHasTheDefaultsOfItsTextModel) {
  const auto text = [](const char* type, const char* keys) {
    json config = json::parse(R"({"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "vocab_size": 32,
                                  "num_attention_heads": 8})");
    config.update(json::parse(keys));
    return parsed({{"model_type", type}, {"text_config", config}});
  };
  EXPECT_EQ(text("mistral3", "{}").num_kv_heads, 8);
  EXPECT_TRUE(text("mistral3", "{}").tie_word_embeddings);
  EXPECT_EQ(text("llava", "{}").family, Family::kLlama);
  EXPECT_EQ(text("voxtral", "{}").rope.theta, 1e8);
  EXPECT_EQ(text("qwen2_vl", "{}").rope.theta, 1e6);
  EXPECT_EQ(text("qwen2_5_vl", "{}").rms_norm_eps, 1e-5);
  EXPECT_TRUE(text("qwen2_5_vl", "{}").qkv_bias);
  EXPECT_TRUE(text("qwen3_vl", R"({"num_attention_heads": 32})").qk_norm);
  EXPECT_EQ(text("qwen3_vl", R"({"num_attention_heads": 32})").rope.theta, 5e5);
  const ModelConfig ministral3 = text("mistral3", R"({"model_type": "ministral3"})");
  EXPECT_EQ(ministral3.rope.query_scale_beta, 0.1);
  EXPECT_EQ(ministral3.rope.original_max_position_embeddings, 16384);
  EXPECT_EQ(query_scales(ministral3, 16385).back(), 1 + 0.1F * std::log(2.0F));
  EXPECT_EQ(text("mistral3", R"({"model_type": "ministral3", "rope_parameters": null})").rope.type, RopeType::kYarn);
  const ModelConfig unscaled = text("mistral3", R"({"model_type": "ministral3", "rope_parameters": {
      "rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.0}})");
  EXPECT_TRUE(query_scales(unscaled, 9).empty());
  EXPECT_EQ(parsed(json::parse(R"({"model_type": "llava", "text_config": {"model_type": "llama"}})")).hidden_size,
            4096);
  const ModelConfig gemma = parsed(json::parse(
      R"({"model_type": "gemma3", "text_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}})"));
  EXPECT_EQ(gemma.num_heads, 8);
  EXPECT_EQ(gemma.vocab_size, 262208);
}

TEST(Wrapper, ATextModelWithoutAClassOfItsOwnIsOnlyInsideOne) {
  const std::string message = testing_support::refusal<FormatError>(
      [] { parse_model_config(config_text(R"({"architectures": "<absent>", "model_type": "qwen3_vl_text"})"), "c"); });
  EXPECT_SAYS(message, "model_type: \"qwen3_vl_text\" is not supported");
}

TEST(Wrapper, AWindowInSomeLayersOfAMistral) {
  const auto windows = [](const char* more) {
    return parse_model_config(config_text(R"({"architectures": ["MinistralForCausalLM"], "model_type": "ministral",
        "sliding_window": 8)" + std::string(more) +
                                          "}"),
                              "config.json")
        .layer_window;
  };
  EXPECT_EQ(windows(R"(, "layer_types": ["full_attention", "sliding_attention"])"), (std::vector<std::int64_t>{0, 8}));
  EXPECT_EQ(windows(""), (std::vector<std::int64_t>{8, 8}));
}

/// A folder whose tensors have the names of the files of a Mistral 3; `change` may replace both.
class WrapperFolder {
 public:
  explicit WrapperFolder(json document = mistral3()) : config(std::move(document)) {
    for (TensorSpec& spec : expected_tensors(parsed(mistral3()))) {
      tensors.push_back({"language_model." + spec.name, DType::kBF16, spec.shape, {}, nullptr});
    }
    add("vision_tower.patch_conv.weight", {4});
    add("multi_modal_projector.norm.weight", {4});
  }
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    tensors.push_back({name, DType::kBF16, std::move(shape), {}, nullptr});
  }
  storage::TensorToWrite& named(const std::string& name) {
    return *std::ranges::find(tensors, name, &storage::TensorToWrite::name);
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; });
  }

  /// The config, after the weights were checked against it.
  ModelConfig checked() {
    write_file_atomic(folder_ / "config.json", config.dump());
    std::vector<std::string> bytes;
    for (storage::TensorToWrite& tensor : tensors) {
      const bool is_copy = is_head_a_copy && tensor.name.ends_with("lm_head.weight");
      bytes.emplace_back(storage::tensor_bytes(tensor.dtype, tensor.shape),
                         is_copy ? bytes.front()[0] : static_cast<char>(bytes.size() + 1));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].bytes = bytes[i];
    storage::write_safetensors(folder_ / "model.safetensors", tensors);
    ModelConfig read = read_model_config(folder_.path());
    check_weights(read, storage::open_model_weights(folder_.path()));
    return read;
  }
  std::string refusal() {
    return testing_support::refusal<FormatError>([this] { checked(); });
  }

  json config;
  std::vector<storage::TensorToWrite> tensors;
  bool is_head_a_copy = false;  ///< of the embedding, which comes first

 private:
  TemporaryFolder folder_;
};

TEST(Wrapper, FindsTheTextByItsEmbeddingAndItsHead) {
  EXPECT_FALSE(WrapperFolder().checked().tie_word_embeddings);
  for (const char* prefix : {"model.language_model.", "language_model.model.model.", "model.", ""}) {
    WrapperFolder folder;
    for (auto& tensor : folder.tensors) {
      const std::string old = "language_model.model.";
      if (tensor.name.starts_with(old)) tensor.name = prefix + tensor.name.substr(old.size());
    }
    folder.named("language_model.lm_head.weight").name = "lm_head.weight";
    EXPECT_NO_THROW(folder.checked()) << prefix;
  }
}

TEST(Wrapper, TheTensorsDecideWhetherTheHeadIsTied) {
  for (const bool tied : {false, true}) {
    WrapperFolder folder;
    folder.config["tie_word_embeddings"] = tied;
    EXPECT_FALSE(folder.checked().tie_word_embeddings) << "another head in the files";
    folder.remove("language_model.lm_head.weight");
    EXPECT_EQ(folder.refusal() == "accepted", tied);
  }
  WrapperFolder copy;
  copy.config.erase("tie_word_embeddings");
  copy.is_head_a_copy = true;
  EXPECT_TRUE(copy.checked().tie_word_embeddings);
}

TEST(Wrapper, PassesByWhatIsBesideTheText) {
  for (const char* name : {"visual.x", "model.visual.x", "vision_tower.x", "model.vision_tower.x", "audio_tower.x",
                           "multi_modal_projector.x", "mtp.layers.0.x", "mtp.embed_tokens.weight"}) {
    WrapperFolder folder;
    folder.add(name, {2});
    EXPECT_EQ(folder.refusal(), "accepted") << name;
  }
}

struct MalformedWrapper {
  const char* part;
  std::function<void(WrapperFolder&)> change;
};

const std::vector<MalformedWrapper>& malformed_wrappers() {
  static const std::string kLinear = "language_model.model.layers.0.self_attn.q_proj.weight";
  static const auto fp8 = [](WrapperFolder& folder, DType scale, std::vector<std::int64_t> shape) {
    folder.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", nullptr}};
    folder.named(kLinear).dtype = DType::kF8E4M3;
    folder.add(kLinear + "_scale_inv", std::move(shape));
    folder.tensors.back().dtype = scale;
  };
  static const std::vector<MalformedWrapper> all = {
      {"/config.json: text_config: is missing or empty", [](auto& f) { f.config.erase("text_config"); }},
      {"/config.json: text_config: is missing or empty", [](auto& f) { f.config["text_config"] = json::object(); }},
      {"/config.json: text_config: is missing or empty", [](auto& f) { f.config["text_config"] = nullptr; }},
      {"/config.json: text_config: is [1]; an object", [](auto& f) { f.config["text_config"] = {1}; }},
      {"text_config.hidden_size: the key is missing", [](auto& f) { f.config["text_config"].erase("hidden_size"); }},
      {"text_config.model_type: \"mistral4\" is not supported as the text model of Mistral3ForConditionalGeneration",
       [](auto& f) { f.config["text_config"]["model_type"] = "mistral4"; }},
      {"text_config.num_local_experts: mixture-of-experts",
       [](auto& f) { f.config["text_config"]["num_local_experts"] = 8; }},
      {"config.json: model_type: \"mistral\" does not belong", [](auto& f) { f.config["model_type"] = "mistral"; }},
      {"config.json: architectures: \"Mistral9ForConditionalGeneration\" is not supported",
       [](auto& f) { f.config["architectures"] = {"Mistral9ForConditionalGeneration"}; }},
      {"/model.safetensors: language_model.model.embed_tokens.weight: aside.embed_tokens.weight is there as well",
       [](auto& f) {
         f.add("aside.embed_tokens.weight", {32, 16});
       }},
      {"language_model.lm_head.weight: aside.lm_head.weight is there as well",
       [](auto& f) {
         f.add("aside.lm_head.weight", {32, 16});
       }},
      {"model.text.layers.0.input_layernorm.weight: the tensor is missing",  // the others have another prefix
       [](auto& f) { f.named("language_model.model.embed_tokens.weight").name = "model.text.embed_tokens.weight"; }},
      {"lm_head.weight: the tensor is missing", [](auto& f) { f.remove("language_model.lm_head.weight"); }},
      {"model.embed_tokens.weight: the tensor is missing",
       [](auto& f) { f.remove("language_model.model.embed_tokens.weight"); }},
      {"/model.safetensors: language_model.model.layers.0.mlp.up_proj.weight: the tensor is missing",
       [](auto& f) { f.remove("language_model.model.layers.0.mlp.up_proj.weight"); }},
      {": language_model.model.layers.0.mlp.up_proj.weight: has shape [24, 15]",
       [](auto& f) {
         f.named("language_model.model.layers.0.mlp.up_proj.weight").shape = {24, 15};
       }},
      {": speech_encoder.weight: is neither part of the text model nor of a tower",
       [](auto& f) { f.add("speech_encoder.weight", {2}); }},
      {": language_model.model.layers.0.self_attn.q_norm.weight: is neither part of the text model",
       [](auto& f) { f.add("language_model.model.layers.0.self_attn.q_norm.weight", {4}); }},
      {kLinear.c_str(), [](auto& f) { f.named(kLinear).dtype = DType::kF8E4M3; }},
      {"q_proj.weight_scale_inv: has shape [2]; for weights of [16, 16]", [](auto& f) { fp8(f, DType::kF32, {2}); }},
      {"q_proj.weight_scale_inv: is F64 [1]; scales in F32", [](auto& f) { fp8(f, DType::kF64, {1}); }},
      {"is the same tensor of the text model as",
       [](auto& f) { f.add("model.layers.0.input_layernorm.weight", {16}); }},
  };
  return all;
}

TEST(Wrapper, RefusesMalformedOnesWithFileAndReason) {
  EXPECT_GE(malformed_wrappers().size(), 20U);
  for (const auto& [part, change] : malformed_wrappers()) {
    WrapperFolder folder;
    change(folder);
    EXPECT_SAYS(folder.refusal(), part);
  }
}

}  // namespace
}  // namespace lora_train::model
