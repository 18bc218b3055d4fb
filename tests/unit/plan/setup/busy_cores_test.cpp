#include "plan/setup/busy_cores.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::plan {
namespace {

/// "s" or "p" after each interval: spins, waits passively.
std::string ways(SpinRule rule, const std::vector<double>& others) {
  std::string text;
  for (const double cores : others) text += rule.update(cores) ? 's' : 'p';
  return text;
}

TEST(SpinRule, NeedsTwoBusyIntervalsAndTenFreeOnes) {
  EXPECT_EQ(ways({2, 2}, {0.5, 0.05, 0.3, 0.3, 0.3}), "ssspp");
  std::vector<double> ended = {1, 1};
  ended.resize(13, 0.0);
  EXPECT_EQ(ways({2, 2}, ended), "sppppppppppss");
  ended[6] = 0.2;  // neither busy nor free
  EXPECT_EQ(ways({2, 2}, ended), "spppppppppppp");
}

TEST(SpinRule, CoresThatNoThreadOfOursUsesAreForOthers) {
  EXPECT_EQ(ways({8, 4}, {4, 4, 4.2, 4.3, 4.3}), "ssssp");
  EXPECT_EQ(ways({2, 4}, {0, 0}), "sp");  // more threads than cores
}

long num_threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

TEST(PassiveWaiting, KeepsASecondTeamWhileItLives) {
  kernels::parallel_ranges(1 << 20, 1, [](auto, auto) {});  // the threads of this one
  const long before = num_threads_of_process();
  std::optional<kernels::PassiveWaiting> passive(std::in_place, at::get_num_threads() + 3);
  EXPECT_EQ(num_threads_of_process(), before + 5) << "more than the processors, with those of this thread";
  passive.reset();
  for (int i = 0; i < 500 && num_threads_of_process() > before; ++i) {  // libgomp does not wait for their end
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(num_threads_of_process(), before);
}

}  // namespace
}  // namespace lora_train::plan
