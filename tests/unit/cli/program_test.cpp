// Runs the program itself, copied to a fresh folder with the fake engine in lib/: command line, exit codes, stdout and
// stderr, and what crosses the boundary to the engine.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train_build_id.h"
#include "program_fixture.h"

namespace lora_train {
namespace {

using nlohmann::json;

TEST_F(Program, HelpGoesToStdout) {
  const CommandResult result = run({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(contains(result.out, "init-model"));
  EXPECT_EQ(result.err, "");
  const CommandResult of_command = run({"train", "--help"});
  EXPECT_EQ(of_command.exit_code, 0);
  for (const char* flag :
       {"--profile", "--set", "--model", "--train-data", "--eval-data", "--output-dir", "--resume", "--allow-changed",
        "--overwrite", "--max-time", "--dry-run", "--nproc", "--json", "--quiet", "--log-level"}) {
    EXPECT_TRUE(contains(of_command.out, flag)) << flag;
  }
}

TEST_F(Program, VersionNamesProgramCommitAndLibTorch) {
  const CommandResult result = run({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.rfind("lora-train " LORA_TRAIN_PROJECT_VERSION " (commit ", 0), 0U) << result.out;
  EXPECT_TRUE(contains(result.out, "LibTorch 2.11.")) << result.out;
  EXPECT_TRUE(contains(result.out, ", loaded\n")) << result.out;
}

TEST_F(Program, VersionAsJson) {
  for (const bool json_first : {false, true}) {
    const json found = json::parse((json_first ? run({"--json", "--version"}) : run({"--version", "--json"})).out);
    EXPECT_EQ(found.at("version"), LORA_TRAIN_PROJECT_VERSION);
    EXPECT_EQ(found.at("libtorch").get<std::string>().rfind("2.11.", 0), 0U);
    EXPECT_TRUE(found.at("problem").is_null());
  }
}

TEST_F(Program, UsageErrorsExitWithTwoAndNameTheNearest) {
  EXPECT_EQ(run({}).exit_code, 2);
  const CommandResult command = run({"tran"});
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_EQ(command.out, "");
  EXPECT_EQ(command.err.rfind("error: tran: unknown command. Did you mean \"train\"?", 0), 0U) << command.err;
  const CommandResult flag = run({"train", "--trian-data", "x"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_TRUE(contains(flag.err, "Did you mean \"--train-data\"?")) << flag.err;
  EXPECT_EQ(train({"--log-level", "loud"}).exit_code, 2);
  const CommandResult key = train({"--allow-changed", "lerning_rate"});
  EXPECT_EQ(key.exit_code, 2);
  EXPECT_TRUE(contains(key.err, "Did you mean \"learning_rate\"?")) << key.err;
  EXPECT_EQ(train({"no-setting"}).exit_code, 2);
}

TEST_F(Program, WorldsThatContradictThemselvesAreRefusedByName) {
  options_.environment = {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LORA_TRAIN_TORCH", LORA_TRAIN_TORCH_DIR}};
  const CommandResult result = train({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "RANK")) << result.err;
  EXPECT_EQ(train({"--nproc", "0"}).exit_code, 2);
}

TEST_F(Program, TrainFlagsReachTheEngine) {
  const CommandResult result =
      run({"--model",         "m",      "--train-data",    "t.jsonl",  "--eval-data", "v.jsonl",
           "--output-dir",    "runs/x", "--resume",        "none",     "--max-time",  "2h30m",
           "--allow-changed", "seed",   "--allow-changed", "optim",    "--overwrite", "--dry-run",
           "--quiet",         "--json", "--set",           "lora_r=4", "lora_r=8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json summary = json::parse(last_line(result.out));
  EXPECT_EQ(summary.at("reason"), "m|t.jsonl|v.jsonl|runs/x|none|9000.000000|8|seed, optim|overwrite|dry_run|quiet|32");
  EXPECT_EQ(summary.at("step"), 12);  // computed by LibTorch
}

TEST_F(Program, StdoutHoldsResultsOnly) {
  const CommandResult result = train({});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "fake engine\n");
  EXPECT_FALSE(contains(train({"--quiet"}).err, "fake engine"));
}

TEST_F(Program, StoppedRunExitsWithSeventyFive) {
  const CommandResult result = train({"--json", "run_name=stopped"});
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_EQ(json::parse(last_line(result.out)).at("status"), "stopped");
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

TEST_F(Program, OurMistakesInTheEngineAreInternalErrors) {
  for (const char* name : {"shape", "torch", "unknown"}) {
    const CommandResult result = train({std::string("run_name=") + name});
    EXPECT_EQ(result.exit_code, 1) << name << result.err;
    EXPECT_TRUE(contains(last_line(result.err), "internal error: ")) << result.err;
    EXPECT_TRUE(contains(last_line(result.err), "bug in lora-train")) << result.err;
    EXPECT_FALSE(contains(result.err, "frame #")) << result.err;
  }
  EXPECT_TRUE(contains(train({"run_name=torch"}).err, "sizes differ: 2 and 3"));
}

TEST_F(Program, TooLittleHostMemoryIsNoBug) {
  const CommandResult result = train({"run_name=bad_alloc"});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_TRUE(contains(result.err, "micro_batch_size")) << result.err;
  const CommandResult in_thread = train({"run_name=bad_alloc_in_thread"});
  EXPECT_EQ(in_thread.exit_code, 6) << in_thread.err;
  EXPECT_TRUE(contains(in_thread.err, "error: out of memory on the host")) << in_thread.err;
  const std::string program = (folder_ / "lora-train").string(), limit = "ulimit -v 150000 && exec \"$@\"";
  const CommandResult unmapped =
      run_command({"/bin/sh", "-c", limit, "sh", program, "train", "--model", "m", "--train-data", "d"}, options_);
  EXPECT_EQ(unmapped.exit_code, 6) << unmapped.err;
  EXPECT_TRUE(contains(unmapped.err, "cannot be loaded: out of memory on the host")) << unmapped.err;
}

TEST_F(Program, ClosedPipesDoNotEndARun) {
  options_.close_stdout_reader = true;
  EXPECT_EQ(train({"--json"}).exit_code, 0);
  options_.close_stderr_reader = true;
  EXPECT_EQ(train({"--json"}).exit_code, 0);
}

TEST_F(Program, MistakesOfTheProfileAreFoundBeforeTheEngineIsLoaded) {
  fs::remove(engine());
  const CommandResult unknown = train({"weigth_decay=1"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_TRUE(contains(unknown.err, "weight_decay")) << unknown.err;
  const CommandResult teacher = train({"teacher=a"});
  EXPECT_EQ(teacher.exit_code, 2);
  EXPECT_TRUE(contains(teacher.err, "teacher=a: is for lora-train distill")) << teacher.err;
  const CommandResult good = train({});
  EXPECT_EQ(good.exit_code, 2);
  EXPECT_TRUE(contains(good.err, "the engine is missing")) << good.err;
}

TEST_F(Program, WhatCannotBePlannedOrMeasuredIsSaidBeforeTheEngineIsLoaded) {
  fs::remove(engine());
  fs::copy_file(fs::path(LORA_TRAIN_PROGRAM).parent_path() / "configs/gpus.json", folder_ / "configs/gpus.json");
  const std::vector<std::string> plan = {"plan", "--shape", "qwen2.5-0.5b", "--documents", "100"};
  const std::vector<std::string> check = {"check", "--profile", "small", "--no-files"};
  const auto said = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return run(words).err;
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "--documents: assuming 500 tokens each"},
      {{"max_seq_len=128"}, "--documents: assuming 128 tokens each"},
      {{"--gpu", "H300"}, "Did you mean \"H100\"?"},
      {{"--disk", "0"}, "expected GB/s above 0"},
      {{"--count", "0"}, "expected a whole number from 1"},
      {{"--deadline", "soon"}, "expected a time such as 6h"},
      {{"--budget", "-3"}, "expected dollars above 0"}};
  for (const auto& [words, part] : cases) EXPECT_TRUE(contains(said(plan, words), part)) << said(plan, words);
  EXPECT_TRUE(contains(said({"plan", "--shape", "gpt-5", "--documents", "9"}, {}), "gpt-5"));
  EXPECT_TRUE(
      contains(said({"plan", "--model", "m"}, {}), "datasets: missing; expected data to count, or --documents N"));
  EXPECT_TRUE(contains(said({"bench"}, {"--shape", "tiny-qwen2", "--count", "batch_unit=documents"}),
                       "batch_unit has no meaning here"));
  EXPECT_TRUE(
      contains(said(check, {"target_gpu=H101"}), "\"H101\" is not a GPU of configs/gpus.json; expected one of A10G"));
  EXPECT_TRUE(
      contains(said(check, {"target_gpu=A100"}), "\"A100\" may be A100 40 GB or A100 80 GB; expected one of them"));
  EXPECT_EQ(run({"check", "--no-files", "--profile", "small", "target_gpu=4090"}).exit_code, 0);
}

TEST_F(Program, EngineOfAnotherBuildIsRefused) {
  options_.environment["FAKE_ENGINE_BUILD_ID"] = "0123456789abcdef";
  const CommandResult result = train({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "is from another build: its id is 0123456789abcdef, expected " LORA_TRAIN_BUILD_ID))
      << result.err;
}

TEST_F(Program, LibraryWithoutABuildIdIsRefused) {
  fs::copy_file("/lib/x86_64-linux-gnu/libm.so.6", engine(), fs::copy_options::overwrite_existing);
  const CommandResult result = train({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "its id is unknown")) << result.err;
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
  const CommandResult result = train({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "pip install torch==2.11.0")) << result.err;
  EXPECT_EQ(run({"--version"}).exit_code, 0);
  EXPECT_EQ(run({"check", "--profile", "small", "--no-files"}).exit_code, 0);
}

TEST_F(Program, DoctorRunsTheKernelsOfTheEngine) {
  options_.environment["LD_LIBRARY_PATH"] = "/nonexistent";  // no driver, whatever this machine has
  const std::vector<std::string> doctor = {"doctor", "--json", "--no-disk", "--output-dir", folder_.path().string()};
  const CommandResult result = run(doctor);
  const json found = json::parse(result.out);
  EXPECT_EQ(found.at("kernels").at(0).at("name"), "swiglu forward fp32");
  EXPECT_EQ(found.at("kernels").at(0).at("note"), "cpu");
  EXPECT_EQ(found.at("kernels_place"), "CPU");
  EXPECT_EQ(found.at("disk").at("folder"), folder_.path().string());
  options_.environment["FAKE_KERNEL_FAILS"] = "1";
  EXPECT_EQ(run(doctor).exit_code, 6);
  options_.environment["FAKE_KERNELS_THROW"] = "1";
  const CommandResult thrown = run({"doctor", "--no-disk"});
  EXPECT_EQ(thrown.exit_code, 6);
  EXPECT_TRUE(contains(thrown.out, "FAILED: cuda:0: out of memory")) << thrown.out << thrown.err;
  fs::remove(engine());
  const CommandResult without = run(doctor);
  EXPECT_EQ(without.exit_code, 6);
  EXPECT_TRUE(contains(without.out, "the engine is missing")) << without.out;
  const CommandResult skipped = run({"doctor", "--no-disk", "--no-kernels"});
  EXPECT_FALSE(contains(skipped.out, "swiglu")) << skipped.out;
  EXPECT_FALSE(contains(skipped.out, "engine")) << skipped.out;
}

TEST_F(Program, DoctorSaysWhatItKnowsBeforeItEnds) {
  options_.environment["LD_LIBRARY_PATH"] = "/nonexistent";
  options_.environment["FAKE_DOCTOR_DIES"] = "1";
  const CommandResult table = run({"doctor", "--no-disk"}), object = run({"doctor", "--no-disk", "--json"});
  EXPECT_EQ(table.exit_code, 128 + 9);
  EXPECT_TRUE(contains(table.out, "swiglu forward fp32  ")) << table.out;
  EXPECT_TRUE(contains(object.err, "swiglu forward fp32  ")) << object.err;
  EXPECT_EQ(object.out, "");
}

TEST_F(Program, DoctorWithoutLibTorchSaysTheRest) {
  options_.environment["LORA_TRAIN_TORCH"] = "/no/such/torch";
  const CommandResult result = run({"doctor", "--no-disk"});
  EXPECT_EQ(result.exit_code, 6) << result.out << result.err;
  for (const char* part : {"FAILED: ", "pip install torch==2.11.0", "processor", "host memory", "disk"}) {
    EXPECT_TRUE(contains(result.out, part)) << part << "\n" << result.out;
  }
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
  const CommandResult nothing = run({"eval", "--model", "m"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_TRUE(contains(nothing.err, "nothing to evaluate on")) << nothing.err;
}

TEST_F(Program, CheckPrintsAProfileThatLoadsAgain) {
  const CommandResult first = run({"check", "--profile", "small", "--no-files", "lora_r=8"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(contains(first.out, "lora_r: 8")) << first.out;
  const CommandResult again = run({"check", "--profile", write("again.yaml", first.out), "--no-files", "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("lora_r"), 8);
  EXPECT_EQ(again.out, run({"check", "--profile", "small", "--no-files", "lora_r=8", "--json"}).out);
  EXPECT_EQ(run({"check", "--no-files", "--report_to", "none", "small"}).exit_code, 0)
      << "a profile is no item of a list";
}

TEST_F(Program, CheckReportsMissingFilesAndUnbuiltFeatures) {
  const CommandResult missing = run({"check", "--profile", "small", "--set", "datasets[0].path=/no/such.jsonl"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(contains(missing.err, "/no/such.jsonl")) << missing.err;
  const CommandResult unbuilt =
      run({"check", "--profile", "small", "--no-files", "base_precision=fp32", "precision=bf16"});
  EXPECT_EQ(unbuilt.exit_code, 2);
  EXPECT_TRUE(contains(unbuilt.err, "base_precision=fp32: one other than precision is not built yet")) << unbuilt.err;
}

TEST_F(Program, CheckListsProfilesAndKeys) {
  EXPECT_EQ(run({"check", "--list"}).out.rfind("small ", 0), 0U);
  EXPECT_EQ(json::parse(run({"check", "--list", "--json"}).out).at("name"), "small");
  EXPECT_TRUE(contains(run({"check", "--keys"}).out, "learning_rate"));
  const json key = json::parse(last_line(run({"check", "--keys", "lora_r", "--json"}).out));
  EXPECT_EQ(key.at("key"), "lora_r");
  EXPECT_EQ(key.at("default"), "16");
  const std::string filtered = run({"check", "--keys", "lora_"}).out;
  EXPECT_TRUE(contains(filtered, "lora_r"));
  EXPECT_FALSE(contains(filtered, "learning_rate"));
}

}  // namespace
}  // namespace lora_train
