#include <gtest/gtest.h>

#include <deque>

#include "dispatch/arguments.h"
#include "kernels/cuda/cudnn_plans.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/dispatch/tuning.h"
#include "lora_train/kernels/gemm/gemm.h"

namespace lora_train::kernels {
namespace {

/// Candidates whose runs take what a test says, on a clock that it sets: no time passes.
class FakeDevice {
 public:
  /// Each run takes the next of these; the last one from then on.
  TuningCandidate candidate(const std::string& choice, std::vector<double> ms) {
    times_[choice].assign(ms.begin(), ms.end());
    return {choice, [this, choice] { run(choice); }};
  }
  TuningCandidate failing(const std::string& choice, int at_run) {
    return {choice, [this, choice, at_run] {
              if (++runs[choice] >= at_run) throw DeviceError("fake", "cannot run");
              ran_for_ = 0.001;
            }};
  }
  Stopwatch stopwatch() {
    return [this](const std::function<void()>& work) {
      ++num_timed;
      work();
      return ran_for_;
    };
  }
  TuningCase tuning_case(std::vector<TuningCandidate> candidates, const std::string& key = "key") {
    return {key, [](const std::string& choice) { return choice != "refused"; },
            [this, candidates] {
              ++num_asked;
              return candidates;
            }};
  }

  int num_timed = 0, num_asked = 0;
  std::map<std::string, int> runs;

 private:
  void run(const std::string& choice) {
    ++runs[choice];
    auto& times = times_[choice];
    ran_for_ = times.front();
    if (times.size() > 1) times.pop_front();
  }
  std::map<std::string, std::deque<double>> times_;
  double ran_for_ = 0;
};

class TunerTest : public ::testing::Test {
 protected:
  std::optional<std::string> choose(std::vector<TuningCandidate> candidates) {
    return Tuner({}, {}, device.stopwatch()).choose(device.tuning_case(std::move(candidates)));
  }
  FakeDevice device;
  Tuner tuner{{}, {}, device.stopwatch()};
};

TEST_F(TunerTest, TakesTheFastest) {
  const auto chosen = tuner.choose(
      device.tuning_case({device.candidate("a", {3}), device.candidate("b", {2}), device.candidate("c", {2.1})}));
  EXPECT_EQ(chosen, "b");
  EXPECT_EQ(tuner.table().at("key"), (Tuned{"b", 2, 3, 3}));
  EXPECT_EQ(tuner.measured(), tuner.table());
}

TEST_F(TunerTest, ARunThatGoesOnKeepsItsChoiceAtOtherSizes) {
  TuningCase at_other_sizes =
      device.tuning_case({device.candidate("a", {1}), device.candidate("b", {2})}, "attention size8 longest128");
  at_other_sizes.of_run = "attention size8 ";
  const TuningTable others = {{"attention size16 longest64", {"a", 1, 1, 2}},
                              {"attention size8 longest64", {"b", 1, 1, 2}}};
  Tuner goes_on(others, {}, device.stopwatch()), another_run({}, others, device.stopwatch());
  EXPECT_EQ(goes_on.choose(at_other_sizes), "b");
  EXPECT_EQ(goes_on.counts().from_checkpoint, 1);
  EXPECT_EQ(goes_on.table().at("attention size8 longest128").choice, "b") << "for a run that goes on from there";
  EXPECT_EQ(device.num_timed, 0);
  EXPECT_EQ(another_run.choose(at_other_sizes), "a") << "a cache is asked for the same sizes alone";
  at_other_sizes.of_run = "attention size9 ";
  EXPECT_EQ(Tuner(others, {}, device.stopwatch()).choose(at_other_sizes), "a");
}

TEST_F(TunerTest, MeasuresNothingWithoutAStopwatch) {
  Tuner measures_nothing({{"known", {"b", 1, 2, 2}}}, {}, nullptr);
  const std::vector<TuningCandidate> candidates = {device.candidate("a", {2}), device.candidate("b", {1})};
  EXPECT_EQ(measures_nothing.choose(device.tuning_case(candidates, "known")), "b");
  EXPECT_EQ(measures_nothing.choose(device.tuning_case(candidates, "unknown")), std::nullopt);
  EXPECT_EQ(device.num_asked, 0);
  EXPECT_EQ(measures_nothing.counts().left_to_heuristics, 1);
}

TEST_F(TunerTest, GoesByTheMedianAndNotByOneGoodOrBadRunAndTakesTheEarlierOfEqualOnes) {
  // The first number is the warm-up, which does not count.
  EXPECT_EQ(
      choose({device.candidate("steady", {9, 2, 2, 2, 2, 2}), device.candidate("lucky", {9, 2.4, 1, 2.4, 2.4, 2.4}),
              device.candidate("disturbed", {9, 50, 1.8, 1.8, 50, 1.8})}),
      "disturbed");
  EXPECT_EQ(choose({device.candidate("a", {2}), device.candidate("b", {2}), device.candidate("c", {2})}), "a");
}

TEST_F(TunerTest, ACandidateThatIsFarBehindIsNotRunFurther) {
  EXPECT_EQ(choose({device.candidate("slow", {4}), device.candidate("fast", {1})}), "fast");
  EXPECT_EQ(device.runs["slow"], 3);  // warm-up and two rounds
  EXPECT_EQ(device.runs["fast"], 6);
}

TEST_F(TunerTest, AWeightCountsHowOftenACandidateWouldRun) {
  auto small = device.candidate("small", {2}), large = device.candidate("large", {3});
  small.weight = 2;
  EXPECT_EQ(choose({small, large}), "large");
}

TEST_F(TunerTest, WhatThrowsIsOutWheneverItThrows) {
  for (const int at_run : {1, 2, 4}) {
    const std::string bad = "bad" + std::to_string(at_run);
    EXPECT_EQ(choose({device.failing(bad, at_run), device.candidate("good", {2})}), "good") << at_run;
  }
  EXPECT_EQ(tuner.choose(device.tuning_case({device.failing("bad", 1), device.failing("worse", 3)})), std::nullopt);
  EXPECT_EQ(tuner.counts().left_to_heuristics, 1);
  EXPECT_TRUE(tuner.table().empty());
}

TEST_F(TunerTest, WhatComputesOtherNumbersIsOut) {
  int num_checks = 0;
  auto wrong = device.candidate("wrong", {1}), right = device.candidate("right", {2});
  wrong.check = [] { return std::string("differs"); };
  right.check = [&num_checks] {
    ++num_checks;
    return std::string();
  };
  EXPECT_EQ(choose({wrong, right}), "right");
  EXPECT_EQ(num_checks, 1);
  EXPECT_EQ(device.runs["wrong"], 1);
}

TEST_F(TunerTest, AStopRequestEndsTheRun) {
  auto stopped = device.candidate("a", {1});
  stopped.run = [] { throw StopError("SIGTERM", "asked to stop"); };
  EXPECT_THROW(choose({stopped, device.candidate("b", {2})}), StopError);
}

TEST_F(TunerTest, OneCandidateIsNoChoice) {
  EXPECT_EQ(choose({device.candidate("a", {1})}), std::nullopt);
  EXPECT_EQ(choose({}), std::nullopt);
  EXPECT_EQ(device.num_timed, 0);
}

TEST_F(TunerTest, WhatTheCheckpointSaysIsTakenBeforeTheCacheAndNothingIsMeasured) {
  const TuningTable checkpoint = {{"key", {"slow", 9, 9, 2}}, {"of other shapes", {"x", 1, 1, 2}}};
  const TuningTable cache = {{"key", {"fast", 1, 9, 2}}, {"second", {"b", 1, 2, 2}}};
  tuner = Tuner(checkpoint, cache, device.stopwatch());
  const auto candidates = {device.candidate("slow", {9}), device.candidate("fast", {1})};
  EXPECT_EQ(tuner.choose(device.tuning_case(candidates)), "slow");
  EXPECT_EQ(tuner.choose(device.tuning_case(candidates, "second")), "b");
  EXPECT_EQ(device.num_timed + device.num_asked, 0);
  EXPECT_EQ(tuner.counts().from_checkpoint, 1);
  EXPECT_EQ(tuner.counts().from_cache, 1);
  EXPECT_EQ(tuner.table().size(), 3u) << "what was not asked for this time stays for the next one";
  EXPECT_EQ(tuner.table().at("second"), cache.at("second"));
  EXPECT_TRUE(tuner.measured().empty());
}

TEST_F(TunerTest, AChoiceThatCannotBeUsedHereIsMadeAnew) {
  tuner = Tuner({{"key", {"refused", 1, 1, 2}}}, {{"key", {"refused", 1, 1, 2}}}, device.stopwatch());
  EXPECT_EQ(tuner.choose(device.tuning_case({device.candidate("a", {3}), device.candidate("b", {2})})), "b");
  EXPECT_EQ(tuner.table().at("key").choice, "b");
}

TEST_F(TunerTest, AChoiceIsMadeOnce) {
  const auto tuning_case = device.tuning_case({device.candidate("a", {3}), device.candidate("b", {2})});
  tuner.choose(tuning_case);
  const int num_timed = device.num_timed;
  EXPECT_EQ(tuner.choose(tuning_case), "b");
  EXPECT_EQ(device.num_timed, num_timed);
  EXPECT_EQ(tuner.counts().total(), 1);
  EXPECT_EQ(tuner.describe().find("tuning: 1 choices, 0 from the checkpoint, 0 from the cache, 1 measured in"), 0u)
      << tuner.describe();
}

TEST(GemmClass, RoundsUpToEightClassesAPowerOfTwo) {
  EXPECT_EQ(gemm_class(1), 1);
  EXPECT_EQ(gemm_class(16), 16);
  EXPECT_EQ(gemm_class(17), 18);
  EXPECT_EQ(gemm_class(8192), 8192);
  EXPECT_EQ(gemm_class(8193), 9216);
  EXPECT_EQ(gemm_class(16291), 16384);
  for (std::int64_t n = 1; n < 5000; ++n) {
    EXPECT_GE(gemm_class(n), n);
    EXPECT_LE(8 * gemm_class(n), 9 * n + 8);
    EXPECT_EQ(gemm_class(gemm_class(n)), gemm_class(n));
  }
}

TEST(GemmKey, NamesAllThatTheAlgorithmDependsOn) {
  alignas(256) static const char memory[512] = {};
  CudaGemm gemm;
  gemm.layout = {64, 48, 32, true, false, 32, 32, 64, 64};
  gemm.a = gemm.b = memory;
  gemm.d = const_cast<char*>(memory);
  const std::string key = gemm_key(gemm, false);
  std::set<std::string> keys = {key};
  const auto differs = [&](auto change, bool tf32 = false) {
    CudaGemm other = gemm;
    change(other);
    EXPECT_TRUE(keys.insert(gemm_key(other, tf32)).second) << gemm_key(other, tf32);
  };
  differs([](CudaGemm& g) { g.layout.m = 63; });
  differs([](CudaGemm& g) { g.layout.n = 56; });
  differs([](CudaGemm& g) { g.layout.k = 31; });
  differs([](CudaGemm& g) { g.layout.transpose_a = false; });
  differs([](CudaGemm& g) { g.layout.transpose_b = true; });
  differs([](CudaGemm& g) { g.layout.lda = 33; });
  differs([](CudaGemm& g) { g.layout.ldb = 33; });
  differs([](CudaGemm& g) { g.layout.ldc = 65; });
  differs([](CudaGemm& g) { g.layout.ldd = 65; });
  differs([](CudaGemm& g) { g.operands = GemmType::kBFloat16; });
  differs([](CudaGemm& g) { g.operands = g.result = GemmType::kBFloat16; });
  differs([](CudaGemm& g) { g.c = g.d; });
  differs([&](CudaGemm& g) { g.c = memory + 256; });
  differs([&](CudaGemm& g) { g.bias = memory; });
  differs([&](CudaGemm& g) { g.a = memory + 16; });
  differs([](CudaGemm&) {}, true);
  gemm.layout.n = 47;  // of the same class
  EXPECT_EQ(gemm_key(gemm, false), key);
}

TEST(Workspace, IsOneBufferThatGrowsWhenMoreIsWanted) {
  use_native_kernels({&linked_native_kernels(), nullptr, true});
  reserve_native_workspace(1000, at::kCPU);
  float* const first = native_workspace(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 16, 0u);
  EXPECT_EQ(native_workspace(1), first);
  reserve_native_workspace(500, at::kCPU);
  EXPECT_EQ(native_workspace(1000), first) << "reserving less must not take memory away";
  constexpr std::int64_t kMore = 3 * 1000 * 1000;
  float* const more = native_workspace(kMore);
  std::fill(more, more + kMore, 1.0F);  // a sanitizer sees what is not there
  EXPECT_EQ(native_workspace(1000), more);
  use_native_kernels({});
}

TEST(GrowingWorkspace, KeepsWhatACapturedGraphUses) {
  cuda::GrowingWorkspace memory;
  void* const first = memory.at_least(64, at::kCPU, false);
  EXPECT_EQ(memory.at_least(32, at::kCPU, false), first);
  memory.at_least(128, at::kCPU, false);
  EXPECT_EQ(memory.num_kept(), 0u) << "nothing uses it any more";
  auto* const recorded = static_cast<char*>(memory.at_least(128, at::kCPU, true));
  memory.at_least(64, at::kCPU, false);  // evaluation, in the same memory
  EXPECT_NE(memory.at_least(4096, at::kCPU, false), recorded);
  EXPECT_EQ(memory.num_kept(), 1u);
  std::fill(recorded, recorded + 128, char{1});  // a replay; a sanitizer sees what is not there
  memory.at_least(8192, at::kCPU, false);
  EXPECT_EQ(memory.num_kept(), 1u);
}

}  // namespace
}  // namespace lora_train::kernels
