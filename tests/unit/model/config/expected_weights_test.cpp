#include <gtest/gtest.h>

#include <algorithm>

#include "config_text.h"
#include "lora_train/base/error.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/storage/model_weights.h"
#include "support/expect_refused.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"

namespace lora_train::model {
namespace {

using storage::DType;

struct Released {
  const char *name, *family;
  std::int64_t D, F, layers, heads, kv_heads, V;
  bool is_tied;
  std::int64_t num_parameters;
};

TEST(ExpectedWeights, HaveThePublishedParameterCountsOfReleasedModels) {
  const Released models[] = {{"Qwen2.5-0.5B", "qwen2", 896, 4864, 24, 14, 2, 151936, true, 494'032'768},
                             {"Qwen2.5-7B", "qwen2", 3584, 18944, 28, 28, 4, 152064, false, 7'615'616'512},
                             {"Qwen3-0.6B", "qwen3", 1024, 3072, 28, 16, 8, 151936, true, 596'049'920},
                             {"Qwen3-4B", "qwen3", 2560, 9728, 36, 32, 8, 151936, true, 4'022'468'096},
                             {"Qwen3-8B", "qwen3", 4096, 12288, 36, 32, 8, 151936, false, 8'190'735'360},
                             {"Mistral-7B-v0.1", "mistral", 4096, 14336, 32, 32, 8, 32000, false, 7'241'732'096},
                             {"Mistral-7B-v0.3", "mistral", 4096, 14336, 32, 32, 8, 32768, false, 7'248'023'552},
                             {"Llama-3.2-1B", "llama", 2048, 8192, 16, 32, 8, 128256, true, 1'235'814'400}};
  for (const Released& m : models) {
    const nlohmann::json changes = {{"hidden_size", m.D},
                                    {"intermediate_size", m.F},
                                    {"num_hidden_layers", m.layers},
                                    {"num_attention_heads", m.heads},
                                    {"num_key_value_heads", m.kv_heads},
                                    {"vocab_size", m.V},
                                    {"tie_word_embeddings", m.is_tied}};
    EXPECT_EQ(num_parameters(family_config(m.family, changes.dump())), m.num_parameters) << m.name;
  }
}

class CheckWeights : public ::testing::Test {
 protected:
  /// The weights of `config`, all zero, after `edit`.
  storage::WeightFiles weights_of(const ModelConfig& config,
                                  const std::function<void(std::vector<storage::TensorToWrite>&)>& edit) {
    std::vector<storage::TensorToWrite> tensors;
    for (const auto& spec : expected_tensors(config))
      tensors.push_back({spec.name, DType::kBF16, spec.shape, {}, nullptr});
    edit(tensors);
    std::vector<std::string> zeros;
    zeros.reserve(tensors.size());
    for (auto& tensor : tensors)
      tensor.bytes = zeros.emplace_back(storage::tensor_bytes(tensor.dtype, tensor.shape), '\0');
    write_safetensors(folder_ / "model.safetensors", tensors);
    return storage::open_model_weights(folder_.path());
  }
  static storage::TensorToWrite& named(std::vector<storage::TensorToWrite>& tensors, const std::string& name) {
    const auto at =
        std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.name == name; });
    EXPECT_NE(at, tensors.end()) << name;
    return *at;
  }
  void expect_refused(const ModelConfig& config, const storage::WeightFiles& weights, const std::string& tensor,
                      const std::string& expected) {
    testing_support::expect_refused([&] { check_weights(config, weights); },
                                    (folder_ / "model.safetensors").string() + ": " + tensor, {expected});
  }

  testing_support::TemporaryFolder folder_;
};

TEST(ExpectedWeights, RoomForNewTokensIsNotExpectedInTheFiles) {
  ModelConfig config = known_shape("qwen2.5-0.5b");
  const auto before = num_parameters(config);
  const std::int64_t vocab_size = config.vocab_size;
  make_room(vocab_size, config);
  EXPECT_EQ(config.added_rows, 0) << "spare rows serve first";
  make_room(vocab_size + 1, config);
  EXPECT_EQ(config.vocab_size, (vocab_size + 64) / 64 * 64);
  EXPECT_EQ(config.stored_rows(), vocab_size);
  EXPECT_EQ(num_parameters(config), before);
  make_room(vocab_size + 65, config);
  EXPECT_EQ(config.stored_rows(), vocab_size) << "enlarged again";
  make_room(vocab_size + 200, config, 1);
  EXPECT_EQ(config.vocab_size, vocab_size + 200);
}

TEST_F(CheckWeights, AcceptsTheWeightsOfEachFamily) {
  for (const char* type : {"qwen2", "qwen3", "mistral", "llama"}) {
    const auto config = family_config(type, R"({"attention_bias": true, "mlp_bias": true})");
    EXPECT_NO_THROW(check_weights(config, weights_of(config, [](auto& tensors) {
                                    tensors[0].dtype = DType::kF32;
                                    tensors[1].dtype = DType::kF16;
                                  })));
  }
}

TEST_F(CheckWeights, NamesAMissingTensor) {
  const auto config = config_with();
  for (const std::string name :
       {"model.layers.1.self_attn.k_proj.bias", "model.norm.weight", "model.embed_tokens.weight"}) {
    const auto weights = weights_of(config, [&](auto& tensors) { named(tensors, name).name = "other"; });
    expect_refused(config, weights, name, "the tensor is missing; dir/config.json expects it with shape [");
  }
  const auto headless = weights_of(config, [&](auto& tensors) { tensors.pop_back(); });
  expect_refused(config, headless, "lm_head.weight", "must say tie_word_embeddings: true");
  const auto two_layers = weights_of(config, [](auto&) {});
  expect_refused(config_with(R"({"num_hidden_layers": 3})"), two_layers, "model.layers.2.input_layernorm.weight",
                 "missing");
  expect_refused(family_config("qwen3", R"({"head_dim": 4})"), two_layers, "model.layers.0.self_attn.q_norm.weight",
                 "missing");
}

TEST_F(CheckWeights, NamesAWrongShape) {
  const auto config = config_with();
  const std::string down = "model.layers.0.mlp.down_proj.weight", norm = "model.norm.weight";
  const auto expect = [&](const std::string& name, const std::vector<std::int64_t>& shape, const std::string& message) {
    expect_refused(config, weights_of(config, [&](auto& tensors) { named(tensors, name).shape = shape; }), name,
                   message);
  };
  expect(down, {24, 16}, "has shape [24, 16] but dir/config.json asks for [16, 24]");
  expect(down, {384}, "[384]");
  expect(norm, {1, 16}, "has shape [1, 16] but dir/config.json asks for [16]");
  const auto whole = weights_of(config, [](auto&) {});
  expect_refused(config_with(R"({"vocab_size": 33})"), whole, "model.embed_tokens.weight", "[32, 16]");
  expect_refused(config_with(R"({"num_key_value_heads": 4})"), whole, "model.layers.0.self_attn.k_proj.weight",
                 "[8, 16]");
  expect_refused(config_with(R"({"num_hidden_layers": 10000, "hidden_size": 4194304, "num_attention_heads": 2,
                                 "num_key_value_heads": 2, "head_dim": 2})"),
                 whole, "model.embed_tokens.weight", "[32, 4194304]");
}

TEST_F(CheckWeights, RefusesOtherDTypesByName) {
  const auto config = config_with();
  for (const auto dtype : {DType::kF8E4M3, DType::kI8, DType::kU8, DType::kI64, DType::kF64}) {
    expect_refused(config, weights_of(config, [&](auto& tensors) { tensors[2].dtype = dtype; }),
                   expected_tensors(config)[2].name,
                   "is " + std::string(storage::dtype_name(dtype)) + " [16, 16] without");
  }
  const auto integers =
      weights_of(config, [](auto& tensors) { named(tensors, "model.norm.weight").dtype = DType::kI64; });
  expect_refused(config, integers, "model.norm.weight", "I64");
}

TEST_F(CheckWeights, WarnsOfTensorsTheModelDoesNotHaveButForACopiedHeadAndOldRotaryBuffers) {
  const auto warning = [&](const char* changes, const std::vector<storage::TensorToWrite>& more) {
    const auto config = config_with(changes);
    ::testing::internal::CaptureStderr();
    check_weights(config, weights_of(config, [&](auto& all) { all.insert(all.end(), more.begin(), more.end()); }));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warning(R"({"tie_word_embeddings": true})",
                    {{"lm_head.weight", DType::kBF16, {32, 16}, {}, nullptr},
                     {"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {2}, {}, nullptr}}),
            "");
  const std::string log = warning("{}", {{"score.weight", DType::kF32, {2}, {}, nullptr}});
  EXPECT_NE(log.find("1 tensors in the files are not part of Qwen2ForCausalLM"), std::string::npos) << log;
  EXPECT_NE(log.find("score.weight"), std::string::npos) << log;
}

}  // namespace
}  // namespace lora_train::model
