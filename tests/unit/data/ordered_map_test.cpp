#include "data/ordered_map.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace lora_train::data {
namespace {

// Squares of 0..count-1; item `bad` throws.
struct Squares {
  int count = 0, bad = -1, produce_fails_at = -1;
  int produced = 0;
  std::atomic<int> mapped = 0;

  std::vector<int> run(std::size_t num_threads, int most = 1 << 30) {
    OrderedMap<int, int> map(
        [this]() -> std::optional<int> {
          if (produced == produce_fails_at) throw std::runtime_error("produce");
          return produced < count ? std::optional(produced++) : std::nullopt;
        },
        [this](int&& item) {
          ++mapped;
          if (item == bad) throw std::runtime_error("map");
          // Uneven work, so that threads overtake each other.
          volatile int work = 0;
          for (int i = 0; i < (item % 7) * 2000; ++i) work = work + i;
          return item * item;
        });
    map.run(num_threads, [&](int&& result) {
      results.push_back(result);
      return static_cast<int>(results.size()) < most;
    });
    return results;
  }
  std::vector<int> results = {};
};

std::vector<int> squares(int count) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) out.push_back(i * i);
  return out;
}

TEST(OrderedMap, KeepsTheOrderForAnyNumberOfThreads) {
  for (const std::size_t num_threads : {0U, 1U, 2U, 8U}) {
    EXPECT_EQ((Squares{.count = 500}.run(num_threads)), squares(500)) << num_threads;
    EXPECT_TRUE((Squares{.count = 0}.run(num_threads)).empty());
  }
}

TEST(OrderedMap, ErrorComesAfterEverythingBeforeIt) {
  for (const std::size_t num_threads : {1U, 4U}) {
    Squares work{.count = 100, .bad = 37};
    EXPECT_THROW(work.run(num_threads), std::runtime_error);
    EXPECT_EQ(work.results, squares(37)) << num_threads;
    Squares broken{.count = 100, .produce_fails_at = 21};
    EXPECT_THROW(broken.run(num_threads), std::runtime_error);
    EXPECT_EQ(broken.results, squares(21)) << num_threads;
  }
}

TEST(OrderedMap, StopsEarlyAndStaysWithinItsBound) {
  for (const std::size_t num_threads : {1U, 4U}) {
    Squares work{.count = 10000};
    EXPECT_EQ(work.run(num_threads, 10), squares(10));
    EXPECT_LE(work.mapped, 10 + 2 * 4) << num_threads;
  }
}

}  // namespace
}  // namespace lora_train::data
