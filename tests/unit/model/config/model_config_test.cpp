#include "lora_train/model/families/model_config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_text.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/expect_refused.h"
#include "support/temporary_folder.h"

namespace lora_train::model {
namespace {

using Windows = std::vector<std::int64_t>;

ModelConfig mistral(const std::string& changes = "{}") {
  return family_config("mistral", "MistralForCausalLM", changes);
}
ModelConfig qwen3(const std::string& changes = "{}") { return family_config("qwen3", "Qwen3ForCausalLM", changes); }
ModelConfig llama(const std::string& changes = "{}") { return family_config("llama", "LlamaForCausalLM", changes); }

/// The message of the refusal, which must name `key`.
std::string refusal(const std::string& changes, const std::string& key) {
  try {
    config_with(changes);
  } catch (const FormatError& error) {
    EXPECT_EQ(error.where(), "dir/config.json: " + key) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "accepted: " << changes;
  return "";
}

void expect_refused(const std::string& changes, const std::string& key, const std::string& expected) {
  const auto message = refusal(changes, key);
  EXPECT_NE(message.find(expected), std::string::npos) << changes << "\n" << message;
}

TEST(ModelConfig, ReadsSizesAndNames) {
  const auto config = config_with(R"({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null})");
  EXPECT_EQ(config.family, Family::kQwen2);
  EXPECT_EQ(config.architecture, "Qwen2ForCausalLM");
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.intermediate_size, 24);
  EXPECT_EQ(config.vocab_size, 32);
  EXPECT_EQ(config.max_position_embeddings, 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.torch_dtype, "bfloat16");
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.pad_token_id, std::nullopt);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(config_with(R"({"dtype": "float32"})").torch_dtype, "float32");
}

TEST(ModelConfig, GivesEachFamilyItsBiasesAndNorms) {
  const auto qwen2 = config_with();
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
  EXPECT_TRUE(!qwen3().qkv_bias && !qwen3().o_bias && qwen3().qk_norm);
  const auto biased = qwen3(R"({"attention_bias": true})");
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && !biased.mlp_bias);
  EXPECT_TRUE(!mistral(R"({"attention_bias": true})").qkv_bias && !mistral().o_bias && !mistral().qk_norm);
  EXPECT_TRUE(!llama().qkv_bias && !llama().o_bias && !llama().mlp_bias);
  const auto all = llama(R"({"attention_bias": true, "mlp_bias": true})");
  EXPECT_TRUE(all.qkv_bias && all.o_bias && all.mlp_bias);
}

TEST(ModelConfig, TellsAbsentHeadDimFromNull) {
  EXPECT_EQ(qwen3().head_dim, 128);
  EXPECT_EQ(qwen3(R"({"head_dim": 6})").head_dim, 6);
  EXPECT_THROW(qwen3(R"({"head_dim": null})"), FormatError);
  EXPECT_EQ(mistral(R"({"head_dim": null})").head_dim, 4);
  EXPECT_EQ(mistral(R"({"head_dim": 10})").head_dim, 10);
  EXPECT_EQ(llama(R"({"head_dim": null})").head_dim, 4);
}

TEST(ModelConfig, TellsAbsentKvHeadsFromNull) {
  EXPECT_EQ(llama(R"({"num_key_value_heads": "<absent>"})").num_kv_heads, 4);
  EXPECT_EQ(llama(R"({"num_key_value_heads": null})").num_kv_heads, 4);
  EXPECT_EQ(config_with(R"({"num_key_value_heads": null})").num_kv_heads, 4);
  EXPECT_EQ(mistral(R"({"num_key_value_heads": "<absent>", "num_attention_heads": 8})").num_kv_heads, 8);
  expect_refused(R"({"num_key_value_heads": "<absent>"})", "num_key_value_heads",
                 "32 (the default, the key is missing)");
}

TEST(ModelConfig, TellsAbsentSlidingWindowFromNull) {
  EXPECT_EQ(mistral().layer_window, (Windows{4096, 4096}));
  EXPECT_EQ(mistral(R"({"sliding_window": null})").layer_window, (Windows{0, 0}));
  EXPECT_EQ(mistral(R"({"sliding_window": 3})").layer_window, (Windows{3, 3}));
  EXPECT_EQ(config_with(R"({"use_sliding_window": true, "max_window_layers": 1})").layer_window, (Windows{0, 4096}));
  EXPECT_EQ(config_with(R"({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 1})").layer_window,
            (Windows{0, 0}));
  EXPECT_EQ(llama(R"({"sliding_window": 3})").layer_window, (Windows{0, 0}));
}

TEST(ModelConfig, UsesQwenWindowsOnlyWhenSwitchedOn) {
  EXPECT_EQ(config_with(R"({"sliding_window": 8, "max_window_layers": 0})").layer_window, (Windows{0, 0}));
  EXPECT_EQ(config_with(R"({"use_sliding_window": false, "sliding_window": 8, "max_window_layers": 0})").layer_window,
            (Windows{0, 0}));
  EXPECT_EQ(config_with(R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0})").layer_window,
            (Windows{8, 8}));
  EXPECT_EQ(config_with(R"({"use_sliding_window": true, "sliding_window": 8})").layer_window, (Windows{0, 0}));
  EXPECT_EQ(qwen3(R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1})").layer_window,
            (Windows{0, 8}));
}

TEST(ModelConfig, FollowsLayerTypes) {
  const std::string window = R"({"use_sliding_window": true, "sliding_window": 8, "layer_types": )";
  EXPECT_EQ(config_with(window + R"(["sliding_attention", "full_attention"]})").layer_window, (Windows{8, 0}));
  EXPECT_EQ(config_with(window + "null, \"max_window_layers\": 1}").layer_window, (Windows{0, 8}));
  expect_refused(window + R"(["full_attention"]})", "layer_types", "1 entries for 2 layers");
  expect_refused(window + R"(["full_attention", "chunked_attention"]})", "layer_types",
                 "\"chunked_attention\" is not supported");
  expect_refused(window + R"([1, 2]})", "layer_types", "list of strings");
  expect_refused(R"({"layer_types": ["full_attention", "sliding_attention"]})", "layer_types", "there is no window");
  const std::string mixed = R"({"layer_types": ["full_attention", "sliding_attention"]})",
                    where = "config.json: layer_types";
  testing_support::expect_refused([&] { mistral(mixed); }, where, {"sliding_window"});
  testing_support::expect_refused([&] { llama(mixed); }, where, {"llama family"});
  EXPECT_NO_THROW(mistral(R"({"layer_types": ["sliding_attention", "sliding_attention"]})"));
}

TEST(ModelConfig, TakesTheDefaultsOfTransformersForAbsentKeys) {
  const auto config = config_with(
      R"({"rms_norm_eps": "<absent>", "rope_theta": "<absent>", "tie_word_embeddings": "<absent>",
          "hidden_act": "<absent>", "max_position_embeddings": "<absent>", "torch_dtype": "<absent>"})");
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.max_position_embeddings, 32768);
  EXPECT_EQ(config.torch_dtype, "");
  EXPECT_EQ(config.bos_token_id, std::nullopt);
  EXPECT_EQ(llama(R"({"max_position_embeddings": "<absent>"})").max_position_embeddings, 2048);
  EXPECT_EQ(mistral(R"({"max_position_embeddings": "<absent>"})").max_position_embeddings, 131072);
  EXPECT_EQ(llama().bos_token_id, 1);
  EXPECT_EQ(llama().eos_token_ids, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(llama(R"({"bos_token_id": null, "eos_token_id": null})").bos_token_id, std::nullopt);
  EXPECT_TRUE(llama(R"({"eos_token_id": null})").eos_token_ids.empty());
}

TEST(ModelConfig, RefusesMissingEssentialKeys) {
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    expect_refused("{\"" + std::string(key) + "\": \"<absent>\"}", key, "missing");
    expect_refused("{\"" + std::string(key) + "\": null}", key, "whole number");
  }
}

TEST(ModelConfig, RefusesWrongTypesAndRanges) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                          "intermediate_size", "vocab_size", "max_position_embeddings", "head_dim"}) {
    for (const char* value :
         {"0", "-4", "16.0", "\"16\"", "true", "[16]", "1e30", "1099511627777", "18446744073709551615"}) {
      expect_refused("{\"" + std::string(key) + "\": " + value + "}", key, "a whole number from 1");
    }
  }
  for (const char* key : {"rms_norm_eps", "rope_theta", "initializer_range"}) {
    for (const char* value : {"0", "-1.0", "\"1\"", "null", "true", "{}"}) {
      EXPECT_NE(refusal("{\"" + std::string(key) + "\": " + value + "}", key), "");
    }
  }
  expect_refused(R"({"tie_word_embeddings": 1})", "tie_word_embeddings", "true or false");
  expect_refused(R"({"tie_word_embeddings": null})", "tie_word_embeddings", "true or false");
  expect_refused(R"({"use_sliding_window": "yes"})", "use_sliding_window", "true or false");
  expect_refused(R"({"eos_token_id": "</s>"})", "eos_token_id", "whole number");
  expect_refused(R"({"eos_token_id": [1, -5]})", "eos_token_id", "is -5; a whole number");
  expect_refused(R"({"bos_token_id": 2.5})", "bos_token_id", "whole number");
  expect_refused(R"({"rms_norm_eps": 1e6})", "rms_norm_eps", "is above 1; models have 1e-5 or 1e-6");
  expect_refused(R"({"use_sliding_window": true, "sliding_window": 0})", "sliding_window", "from 1 to");
  expect_refused(R"({"use_sliding_window": true, "sliding_window": "4k"})", "sliding_window", "from 1 to");
  expect_refused(R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": -1})", "max_window_layers",
                 "from 0 to");
  expect_refused(R"({"torch_dtype": 16})", "torch_dtype", "string");
}

TEST(ModelConfig, RefusesSizesThatDoNotFitTogether) {
  expect_refused(R"({"num_key_value_heads": 3})", "num_key_value_heads", "does not divide num_attention_heads");
  expect_refused(R"({"num_key_value_heads": 8})", "num_key_value_heads", "does not divide");
  expect_refused(R"({"num_attention_heads": 6})", "num_attention_heads", "6 does not divide hidden_size");
  expect_refused(R"({"hidden_size": 20})", "head_dim", "5 is odd");
  expect_refused(R"({"head_dim": 7})", "head_dim", "7 is odd");
  expect_refused(R"({"num_attention_heads": 65536, "num_key_value_heads": 1, "head_dim": 128})", "head_dim",
                 "the maximum is 4194304");
}

TEST(ModelConfig, RefusesArchitecturesItDoesNotKnow) {
  const std::string supported = "Qwen2ForCausalLM, Qwen3ForCausalLM, MistralForCausalLM, LlamaForCausalLM";
  expect_refused(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})", "architectures",
                 "\"GPT2LMHeadModel\"");
  expect_refused(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})", "architectures", supported);
  expect_refused(R"({"architectures": ["Qwen2ForSequenceClassification"]})", "architectures", supported);
  expect_refused(R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"})", "architectures",
                 "Qwen3MoeForCausalLM");
  expect_refused(R"({"architectures": ["LlamaForCausalLM"]})", "model_type", "does not belong to");
  expect_refused(R"({"architectures": "<absent>", "model_type": "gemma"})", "model_type", supported);
  expect_refused(R"({"architectures": [], "model_type": null})", "architectures", supported);
  expect_refused(R"({"architectures": "Qwen2ForCausalLM"})", "architectures", "list of strings");
  expect_refused(R"({"model_type": 2})", "model_type", "a string was expected");
  EXPECT_EQ(config_with(R"({"architectures": null, "model_type": "llama"})").architecture, "LlamaForCausalLM");
  EXPECT_EQ(config_with(R"({"model_type": "<absent>"})").family, Family::kQwen2);
}

TEST(ModelConfig, RefusesByNameWhatIsNotComputed) {
  expect_refused(R"({"quantization_config": {"quant_method": "gptq"}})", "quantization_config", "\"gptq\"");
  expect_refused(R"({"quantization_config": "nf4"})", "quantization_config", "an object was expected");
  expect_refused(R"({"hidden_act": "gelu"})", "hidden_act", "\"gelu\" is not supported; expected silu");
  expect_refused(R"({"num_local_experts": 8})", "num_local_experts", "mixture-of-experts");
  expect_refused(R"({"num_experts": 1})", "num_experts", "mixture-of-experts");
  EXPECT_NO_THROW(config_with(R"({"num_experts": 0, "num_local_experts": 0, "n_routed_experts": null})"));
  expect_refused(R"({"attention_dropout": 0.1})", "attention_dropout", "set it to 0");
  expect_refused(R"({"use_mrope": true})", "use_mrope", "multimodal");
  EXPECT_NO_THROW(config_with(R"({"quantization_config": null, "attention_dropout": 0.0})"));
}

/// config_text() with `from` replaced.
std::string edited(const std::string& from, const std::string& to) {
  std::string text = config_text();
  return text.replace(text.find(from), from.size(), to);
}

TEST(ModelConfig, RefusesTextThatIsNoObject) {
  const std::string good = config_text();
  const std::pair<std::string, const char*> cases[] = {
      {"", "the file is empty"},
      {" \n", "the file is empty"},
      {good.substr(0, good.size() - 20), "not valid JSON at byte"},
      {"<html><body>404</body></html>", "not valid JSON at byte 1"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"},
      {edited("\"vocab_size\"", "\n<<<<<<< HEAD\n\"vocab_size\""), "not valid JSON at byte"},
      {"// mine\n" + good, "not valid JSON at byte 1"},
      {good.substr(0, good.size() - 1) + ",}", "not valid JSON at byte"},
      {edited("false", "False"), "not valid JSON at byte"},
      {edited("1e-05", "NaN"), "not valid JSON at byte"},
      {edited("1e-05", "1e999"), "a number that is too large"},
      {edited("silu", "si\xFFlu"), "not valid JSON at byte"},
      {std::string("\xFF\xFE{\0", 4), "not valid JSON at byte"},
      {good + good, "not valid JSON at byte"},
      {"[" + good + "]", "a JSON object was expected"},
      {"\"a text\"", "a JSON object was expected"},
      {"null", "a JSON object was expected"},
      {"{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", "deeper than 64 levels"},
  };
  const testing_support::TemporaryFolder folder;
  const auto file = folder / "config.json";
  for (const auto& [text, message] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    write_file_atomic(file, text);
    testing_support::expect_refused([&] { read_model_config(folder.path()); }, file.string(), {message});
  }
}

TEST(ModelConfig, RefusesWhatIsNoFileOrTooLarge) {
  const testing_support::TemporaryFolder folder;
  const auto file = folder / "config.json";
  const auto expect = [&](const char* message) {
    testing_support::expect_refused([&] { read_model_config(folder.path()); }, file.string(), {message});
    std::filesystem::remove(file);
  };
  expect("no such file");
  std::filesystem::create_directory(file);
  expect("is a folder");
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  ::alarm(20);  // opening the pipe would never end
  expect("is a pipe");
  ::alarm(0);
  write_file_atomic(file, "{");
  std::filesystem::resize_file(file, std::uintmax_t{1} << 40);
  expect("has 1099511627776 bytes; at most 100000000 were expected");
}

TEST(ModelConfig, ReadsWhatIsOddButJson) {
  EXPECT_EQ(parse_model_config("\xEF\xBB\xBF" + config_text(), "c").vocab_size, 32);
  EXPECT_EQ(parse_model_config("{\"vocab_size\": 33, " + config_text().substr(1), "c").vocab_size, 32);  // as in Python
  EXPECT_NO_THROW(config_with(R"({"auto_map": {"AutoConfig": "evil.py"}, "my_key": [{}], "quantization_config": {},
                                  "sliding_window": "whatever", "use_sliding_window": false})"));
  EXPECT_EQ(config_with(R"({"bos_token_id": -1})").bos_token_id, std::nullopt);
}

TEST(ModelConfig, ReadsTheCommonConfigFromAFolder) {
  const testing_support::TemporaryFolder folder;
  write_file_atomic(folder / "config.json", config_text());
  EXPECT_EQ(read_model_config(folder.path()).hidden_size, 16);
  EXPECT_EQ(read_model_config(folder.path()).path, folder / "config.json");
}

}  // namespace
}  // namespace lora_train::model
