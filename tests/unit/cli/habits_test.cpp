// What people type out of habit, through the program as a function: all of it in one process.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "commands/registry.h"
#include "program.h"
#include "program_fixture.h"
#include "support/environment.h"
#include "support/expect_parts.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"
#include "unit/report/run_files.h"

namespace lora_train::cli {
namespace {

using Words = std::vector<std::string>;
using Parts = std::vector<std::string>;
using testing_support::count_of;

CommandResult say(const Words& words) {
  CommandResult said;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  said.exit_code = run_program(words);
  said.out = testing::internal::GetCapturedStdout();
  said.err = testing::internal::GetCapturedStderr();
  return said;
}

/// Refuses with exit code 2. Returns what was said.
std::string expect_refused(const Words& words, const Parts& parts) {
  const CommandResult said = say(words);
  EXPECT_EQ(said.out, "");
  expect_error(said, 2, parts);
  return said.err;
}

void expect_refused_in_a_line(const Words& words, const Parts& parts) {
  EXPECT_EQ(count_of(expect_refused(words, parts), "\n"), 1U);
}

class Habits : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    testing_support::write_text(folder_ / name, text);
    return folder_ / name;
  }

  testing_support::TemporaryFolder folder_;
};

TEST_F(Habits, ACommandOfAnotherToolNamesOurs) {
  const std::pair<const char*, const char*> commands[] = {
      {"sft",
       "lora-train train x.yaml trains; lora-train convert x.yaml --output my.yaml makes a profile from a TRL config"},
      {"dpo", "on the chosen answers"},
      {"grpo", "lora-train convert x.yaml --allow-refused --output my.yaml"},
      {"reward", "not supported"},
      {"vllm-serve", "--lora-modules mine=RUN/adapter"},
      {"api", "vllm serve"},
      {"webui", "there is no web interface"},
      {"preprocess", "lora-train tokenize x.yaml"},
      {"inference", "lora-train generate --adapter RUN"},
      {"fetch", "lora-train check --list"},
      {"env", "lora-train doctor"},
      {"merge-lora", "lora-train merge --model MODEL --adapter ADAPTER --output-dir MERGED"}};
  for (const auto& [command, ours] : commands)
    expect_refused_in_a_line({command, "x.yaml"}, {"error: " + std::string(command) + ": is a command of ", ours});
}

TEST_F(Habits, AFileWhereMergeTakesFlagsGivesTheLine) {
  const std::string file = write("merge me.yaml",
                                 "model_name_or_path: org/base\nadapter_name_or_path: saves/x\ntemplate: qwen\n"
                                 "trust_remote_code: true\nexport_dir: out\n");
  const std::string line = "lora-train merge --model org/base --adapter saves/x --output-dir out";
  for (const Words& words : {Words{"merge", file}, {"export", file}, {"merge-lora", file}, {"merge", "--config", file}})
    expect_refused(words, {line});
  expect_refused({"convert", file}, {"to merge: " + line + "."});
  for (const char* command : {"chat", "check"})
    expect_refused({command, file}, {"run `lora-train convert '" + file + "'`."});
  expect_refused({"export", "x.yaml"}, {"lora-train merge --model MODEL --adapter ADAPTER --output-dir MERGED"});
  const std::string own = write("own.yaml", "model: m\ndatasets: [d]\noutput_dir: runs/x\n");
  expect_refused({"merge", own}, {"--model m --adapter runs/x --output-dir runs/x-merged"});
}

// Each tool and its keys: the tables of convert.
TEST_F(Habits, AFileOfAnotherToolSaysHowItBecomesAProfile) {
  const std::string file = write("theirs.yaml",
                                 "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: d\n"
                                 "dataset_dir: data\ntemplate: qwen\n");
  for (const char* command : {"check", "tokenize"}) {
    const std::string said =
        expect_refused({command, file}, {"keys of LLaMA-Factory: run `lora-train convert " + file + "`."});
    EXPECT_EQ(count_of(said, "convert"), 1U) << said;
  }
}

TEST_F(Habits, AFlagOfAnotherHabitGetsItsSpellingHere) {
  expect_refused_in_a_line({"export", "--gguf", "--adapter", "x"}, {"--gguf: has no value; expected --gguf "});
  expect_refused_in_a_line({"check", "--no-packing"},
                           {"--no-packing: unknown flag. Switch it off with --packing false."});
  expect_refused_in_a_line({"check", "--report_to", "wandb", "tensorboard"}, {"--report_to wandb,tensorboard."});
  expect_refused_in_a_line({"check", "--lora_target_modules", "q_proj", "v_proj"},
                           {"--lora_target_modules q_proj,v_proj."});
  expect_refused_in_a_line({"check", "--target-modules=q_proj", "v_proj", "--lora-r", "8"},
                           {"--target-modules q_proj,v_proj."});
  for (const std::string flag : {"--group-by-length", "--group_by_length"})
    expect_refused_in_a_line({"check", flag}, {flag + ": is a key of Axolotl: run `lora-train convert FILE`."});
  expect_refused_in_a_line({"generate", "--model", "m", "--prompt", "x", "--max_new_tokens=0"}, {"--max-new-tokens"});
}

TEST_F(Habits, UnderscoresAreHyphensInEveryCommand) {
  for (const Words& words : {Words{"generate", "--max_new_tokens", "x"},
                             {"eval", "--allow_other_base=x"},
                             {"convert", "--allow_refused", "none.yaml"},
                             {"compare", "--log_level", "x"}}) {
    const CommandResult said = say(words);
    EXPECT_NE(said.exit_code, 0) << words[0];
    EXPECT_FALSE(contains(said.err, "unknown flag")) << said.err;
  }
  expect_refused({"merge", "--output_dir", "o", "--max_shard"}, {"--max_shard: unknown flag"});
}

TEST_F(Habits, SeveralWrongFlagsAreToldAtOnceAndNoValueOfTheirs) {
  const std::string said = expect_refused({"compare", folder_.path(), "--srot", "eval_loss", "--revers"},
                                          {"--srot: unknown flag", "--revers: unknown flag"});
  EXPECT_FALSE(contains(said, "eval_loss:")) << said;
}

TEST_F(Habits, AMistakeOnTheCommandLineIsNamedInShort) {
  const std::string file = write("p.yaml", "model: m\ndatasets: [d]\nmetric_for_best_model: eval_perplexity\n");
  expect_refused(
      {"check", file, "--no-files", "max_steps=0", "eval_tasks=[{name: a, kind: " + std::string(40, 'x') + "}]"},
      {"max_steps=0: got \"0\", expected", "eval_tasks=...: eval_tasks[0].kind: got",
       "metric_for_best_model: eval_perplexity is read as perplexity\n"});
  expect_refused({"check", file, "--no-files", "base_precision=fp32", "precision=bf16"},
                 {"base_precision=fp32: one other than precision is not built yet"});
  const std::string said = expect_refused({"check", "model=m", "datasets=[gone.jsonl]", "eval_datasets=[gone.jsonl]"},
                                          {"gone.jsonl: no such file, folder or glob"});
  EXPECT_EQ(count_of(said, "no such file, folder or glob"), 2U) << said;
}

TEST_F(Habits, TheFolderOfARunInPlaceOfAProfileIsToldItsFlagAndAMissingProfileIsNamed) {
  write("run/profile.yaml", "model: m\n");
  const std::string run = folder_ / "run";
  for (const Words& words : {Words{"chat", run}, {"generate", run, "--prompt", "Hi"}, {"eval", run}, {"merge", run}})
    expect_refused(words, {"--adapter " + run + "."});
  expect_refused({"check", run}, {"The profile of that run: " + run + "/profile.yaml."});
  expect_refused({"check", "no-such.yaml"}, {"no-such.yaml: no such file"});
  expect_refused({"check", "--profile", folder_ / "no.yaml"}, {"no.yaml: no such file"});
}

TEST_F(Habits, HelpAndListsAreThoseOfTheFlags) {
  EXPECT_EQ(say({"help"}).out, say({"--help"}).out);
  EXPECT_EQ(say({"help", "check"}).out, say({"check", "--help"}).out);
  for (const Command& command : commands()) {
    if (command.name == "sweep") continue;  // a script
    const CommandResult said = say({command.name, "--help"});
    EXPECT_TRUE(said.exit_code == 0 && contains(said.out, "lora-train " + command.name)) << command.name << said.err;
  }
  expect_parts(say({"completion", "words"}).out, {"train\n", "sweep\n", "help\n"});
  expect_parts(say({"check", "--list-flags"}).out, {"--profile\n", "--no-files\n", "--lora-r\n"});
  const auto schema = nlohmann::json::parse(say({"check", "--schema"}).out);
  EXPECT_NE(schema.at("properties").at("lora_r").at("description"), "");
  EXPECT_FALSE(schema.at("properties").contains("weigth_decay"));
}

TEST_F(Habits, KeysAreFoundByTheNamesOfOtherTrainers) {
  expect_parts(say({"check", "--keys", "sequence_len"}).out, {"sequence_len: is read as max_seq_len"});
  expect_refused({"check", "--keys", "nonsense"}, {"no key contains nonsense"});
}

TEST_F(Habits, AListOfOneEndsWithACommaAndAProfileBehindAListIsNoItem) {
  const std::string file = write("p.yaml", "model: m\ndatasets: [d]\n");
  EXPECT_EQ(say({"check", "--no-files", "--report_to", "none", file}).exit_code, 0);
  const CommandResult said = say({"check", "model=m", "datasets=[d]", "--no-files", "--lora_target_modules", "q_proj,",
                                  "--report-to", "tensorboard,", "--json"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  testing_support::expect_members(nlohmann::json::parse(said.out),
                                  R"({"lora_target_modules": ["q_proj"], "report_to": ["tensorboard"]})");
}

TEST_F(Habits, CheckShowsWhatIsSetAndWhatComesNext) {
  const std::string file = write("p.yaml", "model: m\ndatasets: [d]\nlora_r: 4\n");
  const CommandResult in_short = say({"check", file, "--no-files"}),
                      whole = say({"check", file, "--no-files", "--verbose"});
  EXPECT_TRUE(in_short.err.ends_with("ok: next lora-train train " + file + "\n")) << in_short.err;
  EXPECT_TRUE(contains(in_short.out, "lora_r: 4") && !contains(in_short.out, "# default")) << in_short.out;
  const std::size_t num_left_out = count_of(whole.out, "# default\n");
  EXPECT_GT(num_left_out, 50U);
  expect_parts(in_short.err, {std::to_string(num_left_out) + " other keys at their defaults; --verbose shows them"});
  const std::string again = write("again.yaml", in_short.out);
  EXPECT_EQ(say({"check", again, "--no-files", "--json"}).out, say({"check", file, "--no-files", "--json"}).out);
}

TEST_F(Habits, CompareTakesFoldersBehindItsFlagsAndSortsBothWays) {
  report::write_run(folder_ / "runs/a", "learning_rate: 0.01\n", 2);
  report::write_run(folder_ / "runs/b", "learning_rate: 0.002\n", 1);
  const std::string runs = folder_ / "runs", gone = folder_ / "gone";
  EXPECT_TRUE(say({"compare", "--csv", runs}).out.starts_with("run,folder,status,"));
  EXPECT_EQ(say({"compare", runs, "--csv", "--json"}).exit_code, 2);
  const std::string down = say({"compare", runs, "--csv", "--sort", "-eval_loss"}).out;
  EXPECT_LT(down.find("\na,"), down.find("\nb,"));
  EXPECT_EQ(say({"compare", runs, "--csv", "--sort", "eval_loss", "--reverse"}).out, down);
  EXPECT_NE(say({"compare", runs, "--csv", "--sort", "eval_loss"}).out, down);
  expect_refused({"compare", runs, "--reverse"}, {"--reverse: needs --sort"});

  expect_refused({"compare"}, {"DIR: missing"});
  expect_refused({"compare", gone}, {gone, "does not exist"});
  std::filesystem::create_directory(folder_ / "empty");
  expect_refused({"compare", folder_ / "empty"}, {folder_ / "empty", "metrics.jsonl"});
  const CommandResult some = say({"compare", runs, gone, folder_ / "runs/a"});
  expect_error(some, 0, {"gone: does not exist"});
  EXPECT_EQ(count_of(some.out, "\na "), 1U) << some.out;
}

TEST_F(Habits, CompareKeepsToColumnsInAPipe) {
  for (const char* name : {"runs/a", "runs/b"}) report::write_run(folder_ / name, "", 2);
  testing_support::ScopedEnvironment environment;
  for (const auto& [columns, num_blocks] : {std::pair("0", 1U), {"20", 2U}}) {
    environment.set("COLUMNS", columns);
    EXPECT_EQ(count_of("\n" + say({"compare", folder_ / "runs"}).out, "\nrun "), num_blocks) << columns;
  }
}

TEST_F(Habits, CompareWritesFilesOfItsOwnOnly) {
  report::write_run(folder_ / "a", "", 2);
  const std::string run = folder_ / "a", file = folder_ / "runs.out";
  write("notes", "run,mine\n");
  write("page", "<p>mine</p>");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("nothing", folder_ / "link");
  for (const char* flag : {"--csv", "--html"}) {
    write("runs.out", "");
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(contains(say({"compare", run, flag, file}).err, file + ": written"));
    for (const char* name : {"a/metrics.jsonl", "a/summary.json", "notes", "page"})
      expect_refused({"compare", run, flag, folder_ / name}, {std::string(name) + ": was not written by compare"});
    for (const char* name : {"pipe", "link"}) {
      expect_refused({"compare", run, flag, folder_ / name},
                     {std::string(flag) + ": " + (folder_ / name).string() + " is a link, a pipe or a device"});
    }
    expect_error(say({"compare", run, flag, folder_ / "none/runs.out"}), 5,
                 {"none/runs.out: cannot create: its folder does not exist"});
  }
}

}  // namespace
}  // namespace lora_train::cli
