// The program itself: command line, exit codes, stdout and stderr, and what crosses the boundary to the engine.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lora_train_build_id.h"
#include "program_fixture.h"

namespace lora_train {
namespace {

using nlohmann::json;
using testing_support::expect_members;

TEST_F(Program, HelpGoesToStdout) {
  const CommandResult result = run({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(contains(result.out, "init-model"));
  EXPECT_EQ(result.err, "");
  const CommandResult of_command = run({"train", "--help"});
  EXPECT_EQ(of_command.exit_code, 0);
  expect_parts(of_command.out, {"--profile", "--set", "--model", "--train-data", "--eval-data", "--output-dir",
                                "--resume", "--allow-changed", "--overwrite", "--max-time", "--dry-run", "--nproc",
                                "--json", "--quiet", "--log-level"});
}

TEST_F(Program, VersionNamesProgramCommitAndLibTorch) {
  const CommandResult result = run({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.rfind("lora-train " LORA_TRAIN_PROJECT_VERSION " (commit ", 0), 0U) << result.out;
  expect_parts(result.out, {"LibTorch 2.11.", ", loaded\n"});
  for (const bool json_first : {false, true}) {
    const json found = json::parse((json_first ? run({"--json", "--version"}) : run({"--version", "--json"})).out);
    EXPECT_EQ(found.at("version"), LORA_TRAIN_PROJECT_VERSION);
    EXPECT_EQ(found.at("libtorch").get<std::string>().rfind("2.11.", 0), 0U);
    EXPECT_TRUE(found.at("problem").is_null());
  }
}

TEST_F(Program, UsageErrorsExitWithTwoAndNameTheNearest) {
  const CommandResult command = run({"tran"});
  EXPECT_EQ(command.out, "");
  EXPECT_EQ(command.err.rfind("error: tran: unknown command. Did you mean \"train\"?", 0), 0U) << command.err;
  for (const auto& result :
       {command, run({}), train({"--log-level", "loud"}), train({"no-setting"}), train({"--nproc", "0"})})
    EXPECT_EQ(result.exit_code, 2) << result.err;
  expect_error(run({"train", "--trian-data", "x"}), 2, {"Did you mean \"--train-data\"?"});
  expect_error(train({"--allow-changed", "lerning_rate"}), 2, {"Did you mean \"learning_rate\"?"});
  options_.environment = {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LORA_TRAIN_TORCH", LORA_TRAIN_TORCH_DIR}};
  expect_error(train({}), 2, {"RANK"});
}

TEST_F(Program, TrainFlagsReachTheEngine) {
  const CommandResult result =
      run({"--model",         "m",      "--train-data",    "t.jsonl",  "--eval-data", "v.jsonl",
           "--output-dir",    "runs/x", "--resume",        "none",     "--max-time",  "2h30m",
           "--allow-changed", "seed",   "--allow-changed", "optim",    "--overwrite", "--dry-run",
           "--quiet",         "--json", "--set",           "lora_r=4", "lora_r=8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json summary = json::parse(last_line(result.out));
  EXPECT_EQ(summary.at("reason"), "m|t.jsonl|v.jsonl|runs/x|none|9000|8|seed, optim|overwrite|dry_run|quiet|32");
  EXPECT_EQ(summary.at("step"), 12);  // computed by LibTorch
}

TEST_F(Program, StdoutHoldsResultsOnlyAndMayBeClosed) {
  const CommandResult result = train({});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "fake engine\n");
  EXPECT_FALSE(contains(train({"--quiet"}).err, "fake engine"));
  const CommandResult stopped = train({"--json", "run_name=stopped"});
  EXPECT_EQ(stopped.exit_code, 75);
  EXPECT_EQ(json::parse(last_line(stopped.out)).at("status"), "stopped");
  options_.close_stdout_reader = true;
  EXPECT_EQ(train({"--json"}).exit_code, 0);
  options_.close_stderr_reader = true;
  EXPECT_EQ(train({"--json"}).exit_code, 0);
}

TEST_F(Program, ErrorsOfTheEngineKeepTheirKind) {
  const std::vector<std::pair<std::string, int>> kinds = {
      {"data", 3}, {"format", 4}, {"io", 5}, {"device", 6}, {"numeric", 7}};
  for (const auto& [name, code] : kinds) {
    const CommandResult result = train({"--json", "run_name=" + name});
    EXPECT_EQ(result.exit_code, code) << name << result.err;
    EXPECT_EQ(json::parse(last_line(result.out)).at("error").at("kind"), name);
  }
  const CommandResult result = train({"--json", "run_name=data"});
  EXPECT_EQ(last_line(result.err), "error: rows.jsonl:3: not an object. Expected one.");
  EXPECT_EQ(json::parse(last_line(result.out)).dump(),
            R"({"error":{"kind":"data","message":"not an object. Expected one.","where":"rows.jsonl:3"}})");
}

TEST_F(Program, OurMistakesInTheEngineAreInternalErrorsAndTooLittleMemoryIsNone) {
  for (const char* name : {"shape", "torch", "unknown"}) {
    const CommandResult result = train({std::string("run_name=") + name});
    EXPECT_EQ(result.exit_code, 1) << name << result.err;
    expect_parts(last_line(result.err), {"internal error: ", "bug in lora-train"});
    EXPECT_FALSE(contains(result.err, "frame #")) << result.err;
  }
  EXPECT_TRUE(contains(train({"run_name=torch"}).err, "sizes differ: 2 and 3"));
  expect_error(train({"run_name=bad_alloc"}), 6, {"micro_batch_size"});
  expect_error(train({"run_name=bad_alloc_in_thread"}), 6, {"error: out of memory on the host"});
  const std::string program = (folder_ / "lora-train").string(), limit = "ulimit -v 150000 && exec \"$@\"";
  const CommandResult unmapped =
      run_command({"/bin/sh", "-c", limit, "sh", program, "train", "--model", "m", "--train-data", "d"}, options_);
  expect_error(unmapped, 6, {"cannot be loaded: out of memory on the host"});
}

TEST_F(Program, MistakesOfTheProfileAreFoundBeforeTheEngineIsLoaded) {
  fs::remove(engine());
  expect_error(train({"weigth_decay=1"}), 2, {"weight_decay"});
  expect_error(train({"teacher=a"}), 2, {"teacher=a: is for lora-train distill"});
  expect_error(train({}), 2, {"the engine is missing"});
}

TEST_F(Program, WhatCannotBePlannedOrMeasuredIsSaidBeforeTheEngineIsLoaded) {
  fs::remove(engine());
  fs::copy_file(fs::path(LORA_TRAIN_PROGRAM).parent_path() / "configs/gpus.json", folder_ / "configs/gpus.json");
  const std::vector<std::string> plan = {"plan", "--shape", "qwen2.5-0.5b", "--documents", "100"};
  const std::vector<std::string> check = {"check", "--profile", "small", "--no-files"};
  const std::tuple<std::vector<std::string>, std::vector<std::string>, const char*> cases[] = {
      {plan, {}, "--documents: assuming 500 tokens each"},
      {plan, {"max_seq_len=128"}, "--documents: assuming 128 tokens each"},
      {plan, {"--gpu", "H300"}, "Did you mean \"H100\"?"},
      {plan, {"--disk", "0"}, "expected GB/s above 0"},
      {plan, {"--count", "0"}, "expected a whole number from 1"},
      {plan, {"--deadline", "soon"}, "expected a time such as 6h"},
      {plan, {"--budget", "-3"}, "expected dollars above 0"},
      {{"plan", "--shape", "gpt-5", "--documents", "9"}, {}, "gpt-5"},
      {{"plan", "--model", "m"}, {}, "datasets: missing; expected data to count, or --documents N"},
      {{"bench", "--shape", "tiny-qwen2", "--count"}, {"batch_unit=documents"}, "batch_unit has no meaning here"},
      {check, {"target_gpu=H101"}, "\"H101\" is not a GPU of configs/gpus.json; expected one of A10G"},
      {check, {"target_gpu=A100"}, "\"A100\" may be A100 40 GB or A100 80 GB; expected one of them"},
      {check, {"target_gpu=4090"}, "ok: next lora-train train"}};
  for (const auto& [command, more, part] : cases) {
    std::vector<std::string> words = command;
    words.insert(words.end(), more.begin(), more.end());
    expect_parts(run(words).err, {part});
  }
}

TEST_F(Program, EngineOfAnotherBuildOrNoneIsRefused) {
  options_.environment["FAKE_ENGINE_BUILD_ID"] = "0123456789abcdef";
  expect_error(train({}), 2, {"is from another build: its id is 0123456789abcdef, expected " LORA_TRAIN_BUILD_ID});
  fs::copy_file("/lib/x86_64-linux-gnu/libm.so.6", engine(), fs::copy_options::overwrite_existing);
  expect_error(train({}), 2, {"its id is unknown"});
}

TEST_F(Program, FindsLibTorchByTorchPathThenByPython) {
  options_.environment["LORA_TRAIN_TORCH"] = "";
  write("lib/torch_path", LORA_TRAIN_TORCH_DIR "\n");
  EXPECT_TRUE(contains(run({"--version"}).out, "from lib/torch_path")) << run({"--version"}).out;

  // On another machine the folder is not there: the environment's python3 is asked.
  write("lib/torch_path", "/no/such/torch\n");
  const std::string python = write("venv/bin/python3", "#!/bin/sh\necho " LORA_TRAIN_TORCH_DIR "\n");
  fs::permissions(python, fs::perms::owner_all);
  options_.environment["VIRTUAL_ENV"] = (folder_ / "venv").string();
  EXPECT_TRUE(contains(run({"--version"}).out, "from " + python)) << run({"--version"}).out;
  EXPECT_EQ(train({}).exit_code, 0);
}

TEST_F(Program, WithoutLibTorchSaysWhatToDo) {
  options_.environment["LORA_TRAIN_TORCH"] = "/no/such/torch";
  expect_error(train({}), 2, {"pip install torch==2.11.0"});
  EXPECT_EQ(run({"--version"}).exit_code, 0);
  EXPECT_EQ(run({"check", "--profile", "small", "--no-files"}).exit_code, 0);
  const CommandResult doctor = run({"doctor", "--no-disk"});
  EXPECT_EQ(doctor.exit_code, 6) << doctor.err;
  expect_parts(doctor.out, {"FAILED: ", "pip install torch==2.11.0", "processor", "host memory", "disk"});
}

TEST_F(Program, DoctorRunsTheKernelsOfTheEngine) {
  options_.environment["LD_LIBRARY_PATH"] = "/nonexistent";  // no driver, whatever this machine has
  const std::vector<std::string> doctor = {"doctor", "--json", "--no-disk", "--output-dir", folder_.path().string()};
  const CommandResult result = run(doctor);
  const json found = json::parse(result.out);
  expect_members(found.at("kernels").at(0), R"({"name": "swiglu forward fp32", "note": "cpu"})");
  EXPECT_EQ(found.at("kernels_place"), "CPU");
  EXPECT_EQ(found.at("disk").at("folder"), folder_.path().string());
  options_.environment["FAKE_KERNEL_FAILS"] = "1";
  EXPECT_EQ(run(doctor).exit_code, 6);
  options_.environment["FAKE_KERNELS_THROW"] = "1";
  const CommandResult thrown = run({"doctor", "--no-disk"});
  EXPECT_EQ(thrown.exit_code, 6);
  expect_parts(thrown.out, {"FAILED: cuda:0: out of memory"});
  fs::remove(engine());
  const CommandResult without = run(doctor);
  EXPECT_EQ(without.exit_code, 6);
  expect_parts(without.out, {"the engine is missing"});
  const std::string skipped = run({"doctor", "--no-disk", "--no-kernels"}).out;
  EXPECT_TRUE(!contains(skipped, "swiglu") && !contains(skipped, "engine")) << skipped;
}

TEST_F(Program, DoctorSaysWhatItKnowsBeforeItEnds) {
  options_.environment["LD_LIBRARY_PATH"] = "/nonexistent";
  options_.environment["FAKE_DOCTOR_DIES"] = "1";
  const CommandResult table = run({"doctor", "--no-disk"}), object = run({"doctor", "--no-disk", "--json"});
  EXPECT_EQ(table.exit_code, 128 + 9);
  for (const auto& text : {table.out, object.err}) expect_parts(text, {"swiglu forward fp32  "});
  EXPECT_EQ(object.out, "");
}

TEST_F(Program, EvalPrintsATableOrJsonLines) {
  const CommandResult table = run({"eval", "--model", "m", "--eval-data", "v.jsonl"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_EQ(table.out,
            "name    loss  perplexity  token accuracy     ece     tokens\n"
            "val   0.5000      1.6487          75.00%  0.0100  1,234,567\n"
            "      1.0000      2.0000           0.00%  0.0000          1\n");
  const CommandResult lines = run({"eval", "--model", "m", "--eval-data", "v.jsonl", "--json"});
  EXPECT_EQ(
      lines.out.substr(0, lines.out.find('\n')),
      R"({"name":"val","loss":0.5,"perplexity":1.6487212707001282,"token_accuracy":0.75,"ece":0.01,"num_tokens":1234567})");
  expect_error(run({"eval", "--model", "m"}), 2, {"nothing to evaluate on"});
}

TEST_F(Program, CheckListsProfilesAndKeys) {
  EXPECT_EQ(run({"check", "--list"}).out.rfind("small ", 0), 0U);
  EXPECT_EQ(json::parse(run({"check", "--list", "--json"}).out).at("name"), "small");
  EXPECT_EQ(run({"check", "--no-files", "--report_to", "none", "small"}).exit_code, 0)
      << "a shipped profile is no item";
  EXPECT_TRUE(contains(run({"check", "--keys"}).out, "learning_rate"));
  const json key = json::parse(last_line(run({"check", "--keys", "lora_r", "--json"}).out));
  expect_members(key, R"({"key": "lora_r", "default": "16"})");
  const std::string filtered = run({"check", "--keys", "lora_"}).out;
  EXPECT_TRUE(contains(filtered, "lora_r") && !contains(filtered, "learning_rate")) << filtered;
}

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
  const std::string bad = write("bad.jsonl", "{\"text\": \"i\"}\n{\"txt\": 1}\n");
  expect_error(run({"tokenize", "--model", model, "--jsonl", bad}), 3, {"bad.jsonl:2: "});
  EXPECT_EQ(run({"tokenize", "--model", (folder_ / "missing").string(), "--text", "hi"}).exit_code, 4);
}

TEST_F(Program, TokenizeShowsPretokenisedRowsOfAProfile) {
  fs::create_directory(folder_ / "model");
  const std::string
      model = folder_ / "model",
      data = write(
          "rows.jsonl",
          "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, -100]}\n{\"input_ids\": [8, 9], \"labels\": [8, 9]}\n");
  const CommandResult shown =
      run({"tokenize", "--model", model, "--train-data", data, "max_seq_len=8", "--show", "1", "--json"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const json row = json::parse(shown.out);
  EXPECT_EQ(row.at("source"), data + ":1");
  expect_members(row, R"({"input_ids": [5, 6, 7], "labels": [-100, 6, -100]})");
  expect_parts(run({"tokenize", "--model", model, "--train-data", data, "max_seq_len=8"}).out,
               {"2 documents, 5 tokens, 2 trained"});
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
  for (const char* name : {"made/model.safetensors", "made/config.json"}) EXPECT_TRUE(fs::exists(folder_ / name));
}

}  // namespace
}  // namespace lora_train
