#include "lora_train/report/run_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "run_files.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

TEST(RunFolder, IsFoundByItselfAndBelowItsParent) {
  const TemporaryFolder folder;
  for (const char* name : {"r16", "r8", "lr0.01", "lr0.001"}) write_run(folder / name, "", 1);
  write_text(folder / "notes/readme.txt", "no run");
  EXPECT_EQ(find_runs(folder / "r8"), std::vector<fs::path>{folder / "r8"});
  EXPECT_EQ(find_runs(folder.path()),
            (std::vector<fs::path>{folder / "lr0.001", folder / "lr0.01", folder / "r8", folder / "r16"}));
  write_run(folder / "saves/math/lora/sft", "", 1);
  write_run(folder / "saves/a/b/c/d/too_deep", "", 1);
  EXPECT_EQ(find_runs(folder / "saves"), std::vector<fs::path>{folder / "saves/math/lora/sft"});
  write_run(folder / "r8/lora_alpha-4", "", 1);  // a sweep in the folder of a run
  write_run(folder / "r8/.lora-train-replaced", "", 1);
  EXPECT_EQ(find_runs(folder / "r8"), (std::vector<fs::path>{folder / "r8", folder / "r8/lora_alpha-4"}));
  EXPECT_TRUE(find_runs(folder / "notes").empty());
  EXPECT_TRUE(find_runs(folder / "nothing").empty());
}

TEST(RunFolder, TakesFiguresFromSummaryAndLines) {
  const TemporaryFolder folder;
  write_run(folder / "run", "learning_rate: 0.25\n", 1.25);
  const RunRecord run = read_run(folder / "run");
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.status, "done");
  EXPECT_EQ(run.reason, "");
  EXPECT_EQ(run.figures.step, 4);
  EXPECT_EQ(run.figures.last_train_loss, 1.0);
  EXPECT_EQ(run.figures.eval_loss, 1.25);
  EXPECT_EQ(run.figures.tokens_per_s, 200.5);
  EXPECT_EQ(run.figures.wall_s, 5.5);
  EXPECT_FALSE(run.figures.cost_usd);
  EXPECT_EQ(run.steps.size(), 4u);
  EXPECT_EQ(run.steps[3].total_tokens, 400);
}

TEST(RunFolder, KnowsARunWithoutSummaryFromItsLines) {
  const TemporaryFolder folder;
  write_text(folder / "metrics.jsonl", start_line(0, "named") + eval_line(0, "a", 4, 30) + eval_line(0, "b", 8, 10) +
                                           train_line(1, 3, 2) + train_line(2, 2, 4) + eval_line(2, "a", 1, 30) +
                                           eval_line(2, "b", 5, 10) + "{\"event\":\"train\",\"step\":3,\"lo");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.name, "named");
  EXPECT_EQ(run.status, "unfinished");
  EXPECT_TRUE(run.reason.starts_with("no summary.json")) << run.reason;  // the torn line is none
  EXPECT_EQ(run.figures.step, 2);
  EXPECT_EQ(run.figures.total_steps, 4);
  EXPECT_EQ(run.figures.eval_loss, 2);  // (1 * 30 + 5 * 10) / 40
  EXPECT_EQ(run.figures.best_step, 2);
  EXPECT_EQ(run.figures.tokens_per_s, 200);
  EXPECT_EQ(run.figures.wall_s, 4);
  EXPECT_FALSE(run.figures.cost_usd);
}

/// A line with some members more.
std::string with(std::string line, const std::string& more) { return line.insert(line.rfind('}'), "," + more); }

TEST(RunFolder, ASummaryHasTheSumsOfAllProcesses) {
  const TemporaryFolder folder;
  write_run(folder.path(), "", 1);
  write_text(folder / "metrics.jsonl", start_line(0) + train_line(1, 2.5, 10) + train_line(2, 2, 20) + start_line(2) +
                                           train_line(3, 1.5, 3) + train_line(4, 1, 4));
  write_text(folder / "summary.json",
             R"({"status":"done","step":4,"tokens":400,"wall_s":25.5,"train_s":8,"tokens_per_s":50,)"
             R"("cost_usd":0.75,"phases_s":{"load":17.5,"train":8}})");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.figures.wall_s, 25.5);
  EXPECT_EQ(run.figures.train_s, 8);
  EXPECT_EQ(run.figures.tokens_per_s, 50);
  EXPECT_EQ(run.figures.cost_usd, 0.75);
  EXPECT_EQ(run.steps[2].run_s, 23);
  ASSERT_EQ(run.phases_s.size(), kNumPhases);
  EXPECT_EQ(run.phases_s[1], (std::pair<std::string, double>{"load", 17.5}));
}

TEST(RunFolder, LinesOfARunThatGoesOnHaveTheSumsOfAllProcesses) {
  const TemporaryFolder folder;
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
  write_text(folder / "metrics.jsonl", lines);
  RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.figures.wall_s, 27);
  EXPECT_EQ(run.figures.train_s, 22.5);
  EXPECT_EQ(run.figures.cost_usd, 0.6);
  EXPECT_EQ(run.figures.tokens_per_s, 300 / 22.5);
  ASSERT_EQ(run.spans.size(), 3u);
  EXPECT_EQ(run.spans[2].phase, "train");  // no line with its span was written
  EXPECT_EQ(run.spans[2].from_s, 20 + 7 - 0.5);
  EXPECT_EQ(run.spans[2].to_s, 27);
  EXPECT_EQ(run.processes_s, (std::vector<double>{0, 20}));

  write_text(folder / "metrics.jsonl", lines + resumed + train_line(3, 2, 4));
  run = read_run(folder.path());
  EXPECT_EQ(run.figures.wall_s, 22 + 4);
  EXPECT_TRUE(run.phases_s.empty()) << "those of the last end would be old";
  EXPECT_EQ(run.processes_s, (std::vector<double>{0, 20, 22}));
  ASSERT_EQ(run.spans.size(), 4u);
  EXPECT_EQ(run.spans[1].to_s, 22) << "what was killed ends where the next process begins";
  EXPECT_EQ(run.spans[2].phase, "load");
  EXPECT_EQ(run.spans[2].from_s, 22);
}

TEST(RunFolder, LinesThatStandTwiceCountOnce) {
  const TemporaryFolder folder;
  write_text(folder / "metrics.jsonl", start_line(0) + train_line(1, 3, 1) + train_line(2, 9, 2) + train_line(3, 9, 3) +
                                           start_line(1) + train_line(2, 2, 1));
  const RunRecord run = read_run(folder.path());
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.steps[1].loss_mean, 2);
  EXPECT_EQ(run.steps[1].total_tokens, 200);
}

TEST(RunFolder, OneLuckyBatchIsNoBestLoss) {
  const TemporaryFolder folder;
  std::string lines = start_line(0);
  for (int step = 1; step <= 100; ++step) lines += train_line(step, step == 50 ? 0.1 : 2, step);
  write_text(folder / "metrics.jsonl", lines);
  const RunRecord run = read_run(folder.path());
  EXPECT_NEAR(*run.figures.best_train_loss, (0.1 + 4 * 2) / 5, 1e-9);
  EXPECT_NEAR(*run.figures.last_train_loss, 2, 1e-9);
}

TEST(RunFolder, TheFirstStepsAreNoBestLossEither) {
  const TemporaryFolder folder;
  std::string lines = start_line(0);
  for (int step = 1; step <= 100; ++step) lines += train_line(step, step == 1 ? 0.1 : 2, step);
  write_text(folder / "metrics.jsonl", lines);
  EXPECT_NEAR(*read_run(folder.path()).figures.best_train_loss, (0.1 + 4 * 2) / 5, 1e-9);
}

TEST(RunFolder, TheBestEvaluationIsTheFirstOfThoseThatStand) {
  const TemporaryFolder folder;
  const auto evals = [&](const std::string& lines) {
    write_text(folder / "metrics.jsonl", start_line(0) + lines);
    return read_run(folder.path()).figures;
  };
  const RunFigures equal = evals(eval_line(1, "a", 2) + eval_line(2, "a", 2) + eval_line(3, "a", 3));
  EXPECT_EQ(equal.best_step, 1);
  EXPECT_EQ(equal.eval_loss, 3);
  const RunFigures again = evals(eval_line(2, "a", 1) + eval_line(4, "a", 0.5) + start_line(1) + eval_line(2, "a", 3));
  EXPECT_EQ(again.best_eval_loss, 3) << "step 4 was undone, and step 2 was evaluated anew";
  EXPECT_EQ(again.best_step, 2);
}

TEST(RunFolder, SpansOfAnotherFormAreIgnored) {
  const TemporaryFolder folder;
  write_text(folder / "metrics.jsonl",
             with(start_line(0), R"("spans":[1,["load"],["load","a",2],[3,4,5],["load",2,1],["data",1,2]])") +
                 with(train_line(1, 2, 3), R"("spans":7)"));
  const RunRecord run = read_run(folder.path());
  ASSERT_EQ(run.spans.size(), 2u);
  EXPECT_EQ(run.spans[0].phase, "data");
  EXPECT_EQ(run.spans[1].phase, "train");
}

TEST(RunFolder, EstimatesTokensOfStepsThatWereNotLogged) {
  const TemporaryFolder folder;
  write_run(folder.path(), "", 1);
  write_text(folder / "metrics.jsonl", start_line(0) + train_line(2, 2, 1) + train_line(4, 1, 2));
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.steps[0].total_tokens, 200);
  EXPECT_EQ(run.steps[1].total_tokens, 400);  // what the summary says
}

TEST(RunFolder, BrokenFilesAreAReasonAndNoError) {
  const TemporaryFolder folder;
  write_text(folder / "metrics.jsonl",
             "not json\n[1]\n" + train_line(1, 2, 1) +
                 "{\"event\":\"train\",\"step\":-1e300}\n{\"event\":\"train\",\"step\":\"x\"}\n");
  write_text(folder / "summary.json", "{\"status\": 3");
  write_text(folder / "profile.yaml", "no_such_key: 1\n");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.status, "broken");
  ASSERT_EQ(run.steps.size(), 1u);
  EXPECT_EQ(run.steps[0].step, 1);
  for (const char* part : {"metrics.jsonl:1 is not a metrics line (2 such lines)", "summary.json", "no_such_key"}) {
    EXPECT_NE(run.reason.find(part), std::string::npos) << part << " in " << run.reason;
  }
}

TEST(RunFolder, AFailureBeforeStepOneIsShownWithItsReason) {
  const TemporaryFolder folder;
  write_text(folder / "summary.json",
             "{\"status\":\"failed\",\"reason\":\"a.jsonl:3: no JSON\",\"step\":0,\"wall_s\":0.5}");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.status, "failed");
  EXPECT_EQ(run.reason, "a.jsonl:3: no JSON");
  EXPECT_EQ(run.figures.wall_s, 0.5);
  EXPECT_FALSE(run.figures.tokens_per_s);
}

TEST(RunFolder, ARunThatIsOnIsRunning) {
  const TemporaryFolder folder;
  write_text(folder / "metrics.jsonl", start_line(0) + train_line(1, 2, 1));
  write_text(folder / ".lora-train.lock", "");
  EXPECT_EQ(read_run(folder.path()).status, "unfinished");  // left by a process that was killed
  const int fd = ::open((folder / ".lora-train.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(read_run(folder.path()).status, "running");
  ::close(fd);
}

TEST(RunFolder, LinksAreNotFollowed) {
  const TemporaryFolder folder;
  write_run(folder / "run", "", 1);
  write_text(folder / "run/run.log", "");
  for (const char* name : {"profile.yaml", "metrics.jsonl", "summary.json"}) {
    fs::rename(folder / "run" / name, folder / name);
    fs::create_symlink(folder / name, folder / "run" / name);
  }
  write_text(folder / "profile.yaml", "secret-key: 1\n");
  const RunRecord run = read_run(folder / "run");
  EXPECT_EQ(run.status, "unfinished");
  EXPECT_TRUE(run.profile.empty() && run.steps.empty() && run.summary_json.empty());
  EXPECT_EQ(run.reason.find("secret-key"), std::string::npos) << run.reason;
  EXPECT_NE(run.reason.find("profile.yaml is a link"), std::string::npos) << run.reason;
}

TEST(RunFolder, ADeviceInThePlaceOfAFileIsNotRead) {
  const TemporaryFolder folder;
  fs::create_symlink("/dev/zero", folder / "metrics.jsonl");
  write_text(folder / "summary.json", "{\"status\":\"done\"}");
  const RunRecord run = read_run(folder.path());
  EXPECT_EQ(run.status, "done");
  EXPECT_NE(run.reason.find("no metrics.jsonl"), std::string::npos) << run.reason;
}

}  // namespace
}  // namespace lora_train::report
