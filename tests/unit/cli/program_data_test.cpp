// `tokenize` and `init-model` of the program itself.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "program_fixture.h"

namespace lora_train {
namespace {

using nlohmann::json;

TEST_F(Program, TokenizePrintsIdsOfTexts) {
  write(
      "model/tokenizer.json",
      R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,)"
      R"("trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,)"
      R"("trim_offsets":true,"use_regex":true},"model":{"type":"BPE","dropout":null,"unk_token":null,)"
      R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,)"
      R"("vocab":{"h":0,"i":1,"hi":2,"o":3},"merges":["h i"]}})");
  const std::string model = (folder_ / "model").string();
  const CommandResult plain = run({"tokenize", "--model", model, "--text", "hi", "--text", "oh"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.out, "2\n3 0\n");
  const std::string file = write("texts.jsonl", "{\"text\": \"oi\"}\n\n{\"text\": \"hi\"}\n");
  EXPECT_EQ(run({"tokenize", "--model", model, "--jsonl", file, "--json"}).out,
            "{\"input_ids\":[3,1]}\n{\"input_ids\":[2]}\n");
  const CommandResult bad =
      run({"tokenize", "--model", model, "--jsonl", write("bad.jsonl", "{\"text\": \"i\"}\n{\"txt\": 1}\n")});
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_TRUE(contains(bad.err, "bad.jsonl:2: ")) << bad.err;
  EXPECT_EQ(run({"tokenize", "--model", (folder_ / "missing").string(), "--text", "hi"}).exit_code, 4);
}

TEST_F(Program, TokenizeShowsPretokenisedRowsOfAProfile) {
  write("model/config.json", "{}");
  fs::remove(folder_ / "model/config.json");
  const std::string data =
      write("rows.jsonl",
            "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, -100]}\n{\"input_ids\": [8, 9], \"labels\": [8, 9]}\n");
  const std::vector<std::string> common = {"tokenize",     "--model", (folder_ / "model").string(),
                                           "--train-data", data,      "max_seq_len=8"};
  auto arguments = common;
  arguments.insert(arguments.end(), {"--show", "1", "--json"});
  const CommandResult shown = run(arguments);
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const json row = json::parse(shown.out);
  EXPECT_EQ(row.at("source"), data + ":1");
  EXPECT_EQ(row.at("input_ids").dump(), "[5,6,7]");
  EXPECT_EQ(row.at("labels").dump(), "[-100,6,-100]");
  const CommandResult totals = run(common);
  EXPECT_TRUE(contains(totals.out, "2 documents, 5 tokens, 2 trained")) << totals.out << totals.err;
}

TEST_F(Program, InitModelNeedsConfigAndFolder) {
  EXPECT_EQ(run({"init-model"}).exit_code, 2);
  EXPECT_EQ(run({"init-model", "--config", "x", "--output-dir", "y", "--dtype", "int3"}).exit_code, 2);
  const std::string config = write(
      "config.json",
      R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","hidden_size":16,"intermediate_size":24,)"
      R"("num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":32,"rms_norm_eps":1e-6,)"
      R"("max_position_embeddings":64,"hidden_act":"silu","tie_word_embeddings":true})");
  const CommandResult result =
      run({"init-model", "--config", config, "--output-dir", (folder_ / "made").string(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(json::parse(result.out).at("num_parameters"), 1000);
  EXPECT_TRUE(fs::exists(folder_ / "made/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "made/config.json"));
}

}  // namespace
}  // namespace lora_train
