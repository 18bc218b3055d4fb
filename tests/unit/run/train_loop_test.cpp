// A step and the training loop on a small random model, with reporters and a communicator of the test's own.
#include "train_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "bench/bench_run.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/run/build_run.h"
#include "lora_train/run_folder/checkpoint.h"
#include "support/temporary_folder.h"

namespace lora_train::run {
namespace {

using testing_support::TemporaryFolder;

/// Remembers what it is told, in order: "train 1", "eval 2", "checkpoint 2", ...
class FakeReporters : public Reporters {
 public:
  using Reporters::write;
  void write(const report::Record& record) override {
    if (const auto* step = std::get_if<report::StepRecord>(&record)) {
      add("train", step->step);
      if (after_step) after_step(step->step);
      losses.push_back(*step->loss);
      rates.push_back(*step->learning_rate);
    }
    if (const auto* eval = std::get_if<report::EvalRecord>(&record)) add(eval->kind ? "task" : "eval", eval->step);
    if (const auto* saved = std::get_if<report::CheckpointRecord>(&record)) add("checkpoint", saved->step);
  }
  void show(const report::ProgressState& progress, bool) override { shown.push_back(progress.step); }

  std::function<void(long long step)> after_step;
  std::vector<std::string> events;
  std::vector<double> losses, rates;
  std::vector<long long> shown;

 private:
  void add(const std::string& what, long long step) { events.push_back(what + " " + std::to_string(step)); }
};

/// Two ranks, the parameters of which differ once `differ` is set.
class TwoRanksApart : public ranks::OneRank {
 public:
  int world_size() const override { return 2; }
  std::vector<std::string> all_gather(const std::string& text) override { return {text, differ ? text + "1" : text}; }
  bool differ = false;
};

/// As two ranks with the same rows would do.
class TwoEqualRanks : public ranks::OneRank {
 public:
  int world_size() const override { return 2; }
  void all_reduce(std::span<const at::Tensor> tensors) override {
    ++num_sums;
    for (const at::Tensor& tensor : tensors) tensor.mul_(2);
  }
  int num_sums = 0;
};

class TrainLoop : public ::testing::Test {
 protected:
  bench::BenchRequest request_of(std::int64_t num_steps, std::int64_t logging_steps = 1) const {
    bench::BenchRequest request;
    request.shape = "tiny-qwen2";
    request.num_steps = num_steps - bench::kProfiledSteps;
    request.num_warm_up = 0;
    request.profile.run.device = Device::kCpu;
    request.profile.model.precision = Precision::kFp32;
    request.profile.data.max_seq_len = 64;
    request.profile.schedule.micro_batch_size = 1;
    request.profile.schedule.gradient_accumulation_steps = 2;
    request.profile.run.logging_steps = logging_steps;
    request.profile.run.output_dir = (folder / "run").string();
    std::filesystem::create_directories(request.profile.run.output_dir);
    return request;
  }

  std::unique_ptr<bench::BenchRun> run_of(std::int64_t num_steps, std::int64_t logging_steps = 1) const {
    return run_of(num_steps, request_of(num_steps, logging_steps));
  }

  static std::unique_ptr<bench::BenchRun> run_of(std::int64_t num_steps, const bench::BenchRequest& request) {
    auto bench = bench::build_bench_run(request);
    bench->run.context->schedule = {.kind = SchedulerKind::kConstant, .peak = 1e-2, .total_steps = num_steps};
    return bench;
  }

  void train(bench::BenchRun& bench) {
    if (const auto unsaved = train_loop(bench.run, reporters, summary)) std::rethrow_exception(unsaved);
  }

  TemporaryFolder folder;
  FakeReporters reporters;
  report::RunSummary summary;
};

TEST(DescribeEnd, AStopIsNoError) {
  const auto summary_of = [](const auto& error) {
    report::RunSummary summary;
    try {
      throw error;
    } catch (...) {
      describe_end(summary);
    }
    return summary;
  };
  const report::RunSummary stopped = summary_of(StopError("SIGTERM", "asked to stop"));
  EXPECT_EQ(stopped.status, "stopped");
  EXPECT_EQ(stopped.reason, "SIGTERM");
  EXPECT_EQ(stopped.exit_code, 75);
  EXPECT_FALSE(stopped.error.has_value());
  const report::RunSummary failed = summary_of(DeviceError("device", "is gone"));
  EXPECT_EQ(failed.status, "failed");
  EXPECT_EQ(failed.exit_code, 6);
  EXPECT_EQ(failed.error->message, "is gone");
}

TEST_F(TrainLoop, ReportsEveryStepAndSavesTheLast) {
  const auto bench = run_of(5);
  train(*bench);
  const std::vector<std::string> expected = {"train 1", "train 2", "train 3", "train 4", "train 5", "checkpoint 5"};
  EXPECT_EQ(reporters.events, expected);
  EXPECT_EQ(reporters.shown, (std::vector<long long>{1, 2, 3, 4, 5}));
  EXPECT_LT(reporters.losses.back(), reporters.losses.front());
  EXPECT_EQ(summary.status, "done");
  EXPECT_EQ(summary.step, 5);
  EXPECT_EQ(bench->run.state.step, 5);
}

TEST_F(TrainLoop, LogsAtItsCadenceAndAfterTheLastStep) {
  const auto bench = run_of(5, 2);
  train(*bench);
  EXPECT_EQ(reporters.events, (std::vector<std::string>{"train 2", "train 4", "train 5", "checkpoint 5"}));
  EXPECT_EQ(reporters.shown.size(), 5U);
}

TEST_F(TrainLoop, AStopBeforeTheFirstStepOwesNothing) {
  const auto bench = run_of(4);
  const StopRequests requests;
  set_max_time(0);
  train(*bench);
  EXPECT_TRUE(reporters.events.empty());
  EXPECT_EQ(summary.status, "stopped");
  EXPECT_EQ(summary.step, 0);
}

TEST_F(TrainLoop, SavesWhenTheIntervalIsOver) {
  bench::BenchRequest request = request_of(3);
  request.profile.run.save_steps = Cadence{};
  request.profile.run.save_interval = 0;
  const auto bench = run_of(3, request);
  train(*bench);
  EXPECT_EQ(std::count(reporters.events.begin(), reporters.events.end(), "checkpoint 1"), 1);
}

TEST_F(TrainLoop, TooManyFailedSavesInARowEndTheRun) {
  for (const auto& [most, last_step] : {std::pair<std::int64_t, std::int64_t>{2, 3}, {100, 9}}) {
    bench::BenchRequest request = request_of(9);
    request.profile.run.save_steps = {Cadence::Kind::kSteps, 1};
    request.profile.run.max_failed_saves = most;
    const auto bench = run_of(9, request);
    std::filesystem::remove_all(request.profile.run.output_dir);
    EXPECT_THROW(train(*bench), IoError);  // 100: the last save is owed
    EXPECT_LE(bench->run.state.step, last_step);
    EXPECT_GE(bench->run.state.step, most == 100 ? 9 : 2);
  }
}

TEST_F(TrainLoop, AnotherErrorEndsTheRunWithTheLastFinishedStepSaved) {
  const auto bench = run_of(5);
  reporters.after_step = [](long long step) {
    if (step == 3) throw std::runtime_error("not of the run");
  };
  EXPECT_THROW(train(*bench), std::runtime_error);
  EXPECT_EQ(run_folder::verify(folder / "run/checkpoint-3"), "");
}

TEST_F(TrainLoop, AStepThatIsNotFiniteIsNotSaved) {
  for (const bool is_of_another_rank : {false, true}) {
    const auto bench = run_of(5);
    reporters.after_step = [&](long long step) {
      if (step == 3 && is_of_another_rank) throw PeerError("loss", "is not finite", "numeric", ExitCode::kNumeric);
      if (step == 3) throw NumericError("loss", "is not finite");
    };
    if (is_of_another_rank) {
      EXPECT_THROW(train(*bench), PeerError);
    } else {
      EXPECT_THROW(train(*bench), NumericError);
    }
    EXPECT_EQ(bench->run.state.step, 3);
    EXPECT_TRUE(std::filesystem::is_empty(folder / "run")) << is_of_another_rank;
  }
}

TEST_F(TrainLoop, ParametersThatDifferBetweenRanksAreNotSaved) {
  for (const bool at_the_end : {false, true}) {
    bench::BenchRequest request = request_of(5);
    if (!at_the_end) request.profile.run.check_ranks = CheckRanks::kStep;
    const auto bench = run_of(5, request);
    const auto ranks = std::make_shared<TwoRanksApart>();
    bench->run.device.ranks = ranks;
    allocate(bench->run);
    reporters.after_step = [&](long long step) { ranks->differ = step == 3 || at_the_end; };
    EXPECT_THROW(train(*bench), DeviceError);
    EXPECT_EQ(bench->run.state.step, at_the_end ? 5 : 3);
    EXPECT_TRUE(std::filesystem::is_empty(folder / "run")) << at_the_end;
  }
}

TEST_F(TrainLoop, AStopSavesTheLastFinishedStep) {
  const auto bench = run_of(50);
  reporters.after_step = [](long long step) {
    if (step == 3) set_max_time(0);
  };
  const StopRequests requests;
  train(*bench);
  EXPECT_EQ(summary.status, "stopped");
  EXPECT_LT(summary.step, 6);
  EXPECT_EQ(run_folder::verify(folder / "run" / ("checkpoint-" + std::to_string(summary.step))), "");
}

TEST_F(TrainLoop, TheStepOfACheckpointIsNotRunAgain) {
  const auto bench = run_of(4);
  bench->run.state.step = 2;
  train(*bench);
  EXPECT_EQ(reporters.events, (std::vector<std::string>{"train 3", "train 4", "checkpoint 4"}));
}

TEST_F(TrainLoop, AStepSumsOverRanksOnceBeforeNormAndLoss) {
  const auto one = run_of(4), two = run_of(4);
  const auto ranks = std::make_shared<TwoEqualRanks>();
  two->run.device.ranks = ranks;
  allocate(two->run);
  const auto step = [](run::Run& run) {
    const data::StepPlan plan = run.plan->step(1);
    train_step(*run.context, plan, build_in_place(run.data.train, plan));
    return wait_for_step(*run.context, plan);
  };
  const StepResult alone = step(one->run), together = step(two->run);
  EXPECT_EQ(ranks->num_sums, 1);
  EXPECT_EQ(together.loss, 2 * alone.loss);
  EXPECT_NEAR(together.grad_norm, 2 * alone.grad_norm, 1e-9 * alone.grad_norm);
}

}  // namespace
}  // namespace lora_train::run
