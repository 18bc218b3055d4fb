#include "lora_train/report/run_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "figures.h"
#include "run_files.h"
#include "support/expect_parts.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

namespace fs = std::filesystem;
using testing_support::expect_parts;

/// These of a run, by their names.
void expect_figures(const RunRecord& run, const char* expected) {
  nlohmann::json found;
  for (const Figure& figure : figures()) {
    const std::optional<double> value = run.figures.*figure.value;
    found[figure.name] = value ? nlohmann::json(*value) : nullptr;
  }
  testing_support::expect_members(found, expected);
}

class RunFolder : public testing::Test {
 protected:
  /// The run with this metrics.jsonl.
  RunRecord with_lines(const std::string& lines) const {
    write_text(folder_ / "metrics.jsonl", lines);
    return read_run(folder_.path());
  }
  const testing_support::TemporaryFolder folder_;
};

TEST_F(RunFolder, IsFoundByItselfAndBelowItsParent) {
  for (const char* name : {"r16", "r8", "lr0.01", "lr0.001"}) write_run(folder_ / name, "", 1);
  write_text(folder_ / "notes/readme.txt", "no run");
  EXPECT_EQ(find_runs(folder_ / "r8"), std::vector<fs::path>{folder_ / "r8"});
  EXPECT_EQ(find_runs(folder_.path()),
            (std::vector<fs::path>{folder_ / "lr0.001", folder_ / "lr0.01", folder_ / "r8", folder_ / "r16"}));
  write_run(folder_ / "saves/math/lora/sft", "", 1);
  write_run(folder_ / "saves/a/b/c/d/too_deep", "", 1);
  EXPECT_EQ(find_runs(folder_ / "saves"), std::vector<fs::path>{folder_ / "saves/math/lora/sft"});
  write_run(folder_ / "r8/lora_alpha-4", "", 1);  // a sweep in the folder of a run
  write_run(folder_ / "r8/.lora-train-replaced", "", 1);
  EXPECT_EQ(find_runs(folder_ / "r8"), (std::vector<fs::path>{folder_ / "r8", folder_ / "r8/lora_alpha-4"}));
  EXPECT_TRUE(find_runs(folder_ / "notes").empty());
  EXPECT_TRUE(find_runs(folder_ / "nothing").empty());
}

TEST_F(RunFolder, TakesFiguresFromSummaryAndLines) {
  write_run(folder_ / "run", "learning_rate: 0.25\n", 1.25);
  const RunRecord run = read_run(folder_ / "run");
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.status, "done");
  EXPECT_EQ(run.reason, "");
  expect_figures(run, R"({"step": 4, "last_train_loss": 1.0, "eval_loss": 1.25, "tokens_per_s": 200.5,
                           "wall_s": 5.5, "cost_usd": null})");
  EXPECT_EQ(run.steps.size(), 4u);
  EXPECT_EQ(run.steps[3].total_tokens, 400);
}

TEST_F(RunFolder, KnowsARunWithoutSummaryFromItsLines) {
  const RunRecord run = with_lines(start_line(0, "named") + eval_line(0, "a", 4, 30) + eval_line(0, "b", 8, 10) +
                                   train_line(1, 3, 2) + train_line(2, 2, 4) + eval_line(2, "a", 1, 30) +
                                   eval_line(2, "b", 5, 10) + "{\"event\":\"train\",\"step\":3,\"lo");
  EXPECT_EQ(run.name, "named");
  EXPECT_EQ(run.status, "unfinished");
  EXPECT_TRUE(run.reason.starts_with("no summary.json")) << run.reason;  // the torn line is none
  expect_figures(run, R"({"step": 2, "total_steps": 4, "eval_loss": 2, "best_step": 2, "tokens_per_s": 200,
                           "wall_s": 4, "cost_usd": null})");            // (1 * 30 + 5 * 10) / 40
}

TEST_F(RunFolder, ASummaryHasTheSumsOfAllProcesses) {
  write_run(folder_.path(), "", 1);
  write_text(folder_ / "metrics.jsonl", start_line(0) + train_line(1, 2.5, 10) + train_line(2, 2, 20) + start_line(2) +
                                            train_line(3, 1.5, 3) + train_line(4, 1, 4));
  write_text(folder_ / "summary.json",
             R"({"status":"done","step":4,"tokens":400,"wall_s":25.5,"train_s":8,"tokens_per_s":50,)"
             R"("cost_usd":0.75,"phases_s":{"load":17.5,"train":8}})");
  const RunRecord run = read_run(folder_.path());
  expect_figures(run, R"({"wall_s": 25.5, "train_s": 8, "tokens_per_s": 50, "cost_usd": 0.75})");
  EXPECT_EQ(run.steps[2].run_s, 23);
  ASSERT_EQ(run.phases_s.size(), kNumPhases);
  EXPECT_EQ(run.phases_s[1], (std::pair<std::string, double>{"load", 17.5}));
}

TEST_F(RunFolder, LinesOfARunThatGoesOnHaveTheSumsOfAllProcesses) {
  const std::string end = R"({"event":"end","step":2,"elapsed_s":20,"phases_s":{"train":18,"other":2},"cost_usd":0.5,)"
                          R"("spans":[["train",1,19]]})"
                          "\n";
  // Killed after step 3, which was done again: its 5 s count for nothing, as the next line of a start says.
  const std::string killed =
      with(start_line(2), R"("elapsed_s":2,"phases_s":{"train":18,"other":4},"spans":[["load",0,2]])") +
      with(train_line(3, 9, 7), R"("train_s":22.5,"cost_usd":0.6)");
  const std::string resumed =
      with(start_line(2), R"("elapsed_s":1,"phases_s":{"train":18,"load":2,"other":3},"spans":[["load",0,1]])");
  const auto lines = start_line(0) + train_line(1, 2.5, 10) + train_line(2, 2, 19) + end + killed;
  RunRecord run = with_lines(lines);
  expect_figures(run, R"({"wall_s": 27, "train_s": 22.5, "cost_usd": 0.6})");
  EXPECT_EQ(run.figures.tokens_per_s, 300 / 22.5);
  ASSERT_EQ(run.spans.size(), 3u);
  EXPECT_EQ(run.spans[2].phase, "train");  // no line with its span was written
  EXPECT_EQ(run.spans[2].from_s, 20 + 7 - 0.5);
  EXPECT_EQ(run.spans[2].to_s, 27);
  EXPECT_EQ(run.processes_s, (std::vector<double>{0, 20}));

  run = with_lines(lines + resumed + train_line(3, 2, 4));
  EXPECT_EQ(run.figures.wall_s, 22 + 4);
  EXPECT_TRUE(run.phases_s.empty()) << "those of the last end would be old";
  EXPECT_EQ(run.processes_s, (std::vector<double>{0, 20, 22}));
  ASSERT_EQ(run.spans.size(), 4u);
  EXPECT_EQ(run.spans[1].to_s, 22) << "what was killed ends where the next process begins";
  EXPECT_EQ(run.spans[2].phase, "load");
  EXPECT_EQ(run.spans[2].from_s, 22);
}

TEST_F(RunFolder, LinesThatStandTwiceCountOnce) {
  const RunRecord run = with_lines(start_line(0) + train_line(1, 3, 1) + train_line(2, 9, 2) + train_line(3, 9, 3) +
                                   start_line(1) + train_line(2, 2, 1));
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.steps[1].loss_mean, 2);
  EXPECT_EQ(run.steps[1].total_tokens, 200);
}

TEST_F(RunFolder, OneLuckyBatchIsNoBestLoss) {
  for (const int lucky_step : {1, 50}) {
    std::string lines = start_line(0);
    for (int step = 1; step <= 100; ++step) lines += train_line(step, step == lucky_step ? 0.1 : 2, step);
    const RunFigures figures = with_lines(lines).figures;
    EXPECT_NEAR(*figures.best_train_loss, (0.1 + 4 * 2) / 5, 1e-9) << lucky_step;
    EXPECT_NEAR(*figures.last_train_loss, 2, 1e-9);
  }
}

TEST_F(RunFolder, TheBestEvaluationIsTheFirstOfThoseThatStand) {
  const auto evals = [&](const std::string& lines) { return with_lines(start_line(0) + lines).figures; };
  const RunFigures equal = evals(eval_line(1, "a", 2) + eval_line(2, "a", 2) + eval_line(3, "a", 3));
  EXPECT_EQ(equal.best_step, 1);
  EXPECT_EQ(equal.eval_loss, 3);
  const RunFigures again = evals(eval_line(2, "a", 1) + eval_line(4, "a", 0.5) + start_line(1) + eval_line(2, "a", 3));
  EXPECT_EQ(again.best_eval_loss, 3) << "step 4 was undone, and step 2 was evaluated anew";
  EXPECT_EQ(again.best_step, 2);
}

TEST_F(RunFolder, SpansOfAnotherFormAreIgnored) {
  write_text(folder_ / "metrics.jsonl",
             with(start_line(0), R"("spans":[1,["load"],["load","a",2],[3,4,5],["load",2,1],["data",1,2]])") +
                 with(train_line(1, 2, 3), R"("spans":7)"));
  const RunRecord run = read_run(folder_.path());
  ASSERT_EQ(run.spans.size(), 2u);
  EXPECT_EQ(run.spans[0].phase, "data");
  EXPECT_EQ(run.spans[1].phase, "train");
}

TEST_F(RunFolder, EstimatesTokensOfStepsThatWereNotLogged) {
  write_run(folder_.path(), "", 1);
  const RunRecord run = with_lines(start_line(0) + train_line(2, 2, 1) + train_line(4, 1, 2));
  EXPECT_EQ(run.steps[0].total_tokens, 200);
  EXPECT_EQ(run.steps[1].total_tokens, 400);  // what the summary says
}

TEST_F(RunFolder, BrokenFilesAreAReasonAndNoError) {
  write_text(folder_ / "metrics.jsonl",
             "not json\n[1]\n" + train_line(1, 2, 1) +
                 "{\"event\":\"train\",\"step\":-1e300}\n{\"event\":\"train\",\"step\":\"x\"}\n");
  write_text(folder_ / "summary.json", "{\"status\": 3");
  write_text(folder_ / "profile.yaml", "no_such_key: 1\n");
  const RunRecord run = read_run(folder_.path());
  EXPECT_EQ(run.status, "broken");
  ASSERT_EQ(run.steps.size(), 1u);
  EXPECT_EQ(run.steps[0].step, 1);
  expect_parts(run.reason, {"metrics.jsonl:1 is not a metrics line (2 such lines)", "summary.json", "no_such_key"});
}

TEST_F(RunFolder, AFailureBeforeStepOneIsShownWithItsReason) {
  write_text(folder_ / "summary.json",
             "{\"status\":\"failed\",\"reason\":\"a.jsonl:3: no JSON\",\"step\":0,\"wall_s\":0.5}");
  const RunRecord run = read_run(folder_.path());
  EXPECT_EQ(run.status, "failed");
  EXPECT_EQ(run.reason, "a.jsonl:3: no JSON");
  expect_figures(run, R"({"wall_s": 0.5, "tokens_per_s": null})");
}

TEST_F(RunFolder, ARunThatIsOnIsRunning) {
  write_text(folder_ / "metrics.jsonl", start_line(0) + train_line(1, 2, 1));
  write_text(folder_ / ".lora-train.lock", "");
  EXPECT_EQ(read_run(folder_.path()).status, "unfinished");  // left by a process that was killed
  const int fd = ::open((folder_ / ".lora-train.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(read_run(folder_.path()).status, "running");
  ::close(fd);
}

TEST_F(RunFolder, LinksAreNotFollowedAndADeviceInThePlaceOfAFileIsNotRead) {
  write_run(folder_ / "run", "", 1);
  write_text(folder_ / "run/run.log", "");
  for (const char* name : {"profile.yaml", "metrics.jsonl", "summary.json"}) {
    fs::rename(folder_ / "run" / name, folder_ / name);
    fs::create_symlink(folder_ / name, folder_ / "run" / name);
  }
  write_text(folder_ / "profile.yaml", "secret-key: 1\n");
  const RunRecord run = read_run(folder_ / "run");
  EXPECT_EQ(run.status, "unfinished");
  EXPECT_TRUE(run.profile.empty() && run.steps.empty() && run.summary_json.empty());
  EXPECT_EQ(run.reason.find("secret-key"), std::string::npos) << run.reason;
  expect_parts(run.reason, {"profile.yaml is a link"});
  write_text(folder_ / "b/summary.json", "{\"status\":\"done\"}");
  fs::create_symlink("/dev/zero", folder_ / "b/metrics.jsonl");
  const RunRecord device = read_run(folder_ / "b");
  EXPECT_EQ(device.status, "done");
  expect_parts(device.reason, {"no metrics.jsonl"});
}

}  // namespace
}  // namespace lora_train::report
