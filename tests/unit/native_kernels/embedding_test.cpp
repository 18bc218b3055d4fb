// Numbers: embedding_test.cpp and gather_test.cpp of kernels_test.
#include <algorithm>
#include <numeric>

#include "kernels/embedding/embedding_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

// Odd widths, rows of several parts, one token and none, runs longer than what a thread reads at once, gaps, misaligned rows.
const std::vector<RowShape> kShapes = {{0, 8},       {1, 1},      {9, 7, 1},    {150, 64, 8}, {3, 520, 0, false},
                                       {5, 2568, 8}, {60, 33, 3}, {33, 300, 4}, {4, 64, 3}};

constexpr std::int64_t kVocabulary = 13;

/// Mostly id 4, so that its run is long; 0 and 12 are the ends of the vocabulary.
std::int32_t id_of(std::int64_t n) {
  const std::int32_t ids[] = {4, 12, 4, 0, 7, 4, 4, 3};
  return n == 0 ? 12 : ids[(n * n + n / 5) % 8];
}

template <class T>
void expect_guarded_rows(const RowShape& s) {
  const std::int64_t N = s.num_rows, D = s.width;
  Guarded<std::int32_t> ids(1, N), order(1, N);
  Guarded<std::int64_t> trained(1, 3);  // id 11 has no token
  Guarded<T> weight(kVocabulary, D, s.gap, s.is_aligned), out(s), dout(s);
  Guarded<float> values(3, D, 1, s.is_aligned), dweight(kVocabulary, D, 1, s.is_aligned), grads(3, D, 1, s.is_aligned);
  ids.fill([](auto, auto n) { return static_cast<float>(id_of(n)); });
  std::iota(order.data(), order.data() + N, 0);
  std::stable_sort(order.data(), order.data() + N, [](auto a, auto b) { return id_of(a) < id_of(b); });
  trained.fill([](auto, auto i) { return i == 2 ? 4.0F : static_cast<float>(12 - i); });
  weight.fill_uniform(1);
  values.fill_uniform(2);
  dout.fill_uniform(3);
  for (const std::int64_t num_trained : {0, 3}) {
    const auto forward = [&] {
      embedding_forward_cuda(ids.data(), weight.read(), trained.data(), num_trained, values.read(), 6.1F, out.rows(), N,
                             D, nullptr);
    };
    expect_guarded(forward, {&out}, {&ids, &weight, &trained, &values});
  }
  const auto backward = [&] {
    dweight.fill_uniform(4);
    embedding_backward_cuda(ids.data(), order.data(), dout.read(), 1.5F, dweight.rows(), N, D, nullptr);
  };
  expect_guarded(backward, {&dweight}, {&ids, &order, &dout});
  const auto backward_of_trained = [&] {
    grads.fill_uniform(5);
    trainable_rows_backward_cuda(ids.data(), order.data(), dout.read(), 2.5F, trained.data(), 3, grads.rows(), N, D,
                                 nullptr);
  };
  expect_guarded(backward_of_trained, {&grads}, {&ids, &order, &dout, &trained});
}

TEST(EmbeddingCuda, StaysInItsRows) {
  for_each_element_type([]<class T>(T) {
    for (const RowShape& s : kShapes) expect_guarded_rows<T>(s);
  });
}

/// Rows past the last one are not read and not written.
std::vector<std::vector<std::int64_t>> choices(std::int64_t num_rows) {
  std::vector<std::int64_t> some = {num_rows, 1000000}, all(static_cast<std::size_t>(num_rows));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t n = num_rows - 1; n >= 0; n -= 2) some.push_back(n);
  return {{}, some, all};
}

TEST(GatherCuda, StaysInItsRows) {
  for_each_element_type([]<class T>(T) {
    for (const RowShape& s : kShapes) {
      for (const auto& rows : choices(s.num_rows)) {
        const auto count = std::ssize(rows);
        Guarded<T> all(s), picked(count, s.width, 8, s.is_aligned);
        Guarded<std::int64_t> which(1, count);
        std::copy(rows.begin(), rows.end(), which.data());
        all.fill_uniform(1);
        const auto gather = [&] {
          gather_rows_cuda(all.read(), which.data(), picked.rows(), count, s.num_rows, s.width, nullptr);
        };
        expect_guarded(gather, {&picked}, {&all, &which});
        const auto scatter = [&] {
          all.fill_uniform(2);
          scatter_rows_cuda(picked.read(), which.data(), all.rows(), count, s.num_rows, s.width, nullptr);
        };
        expect_guarded(scatter, {&all}, {&picked, &which});
      }
    }
  });
}

TEST(TakeNextCuda, StaysInItsLists) {
  for (const std::int64_t count : {1, 70, 3000}) {
    Guarded<std::int64_t> rows(1, 2 * count), next(1, 1), picked_rows(1, count);
    Guarded<std::int32_t> targets(1, 2 * count), picked_targets(1, count);
    Guarded<float> weights(1, 2 * count), picked_weights(1, count);
    rows.fill([](auto, auto i) { return static_cast<float>(7 * i); });
    targets.fill([](auto, auto i) { return static_cast<float>(i); });
    weights.fill_uniform(1);
    const auto take = [&](const float* from, float* to) {
      next.data()[0] = count;
      take_next_cuda(rows.data(), targets.data(), from, next.data(), picked_rows.data(), picked_targets.data(), to,
                     count, nullptr);
    };
    expect_guarded([&] { take(weights.data(), picked_weights.data()); },
                   {&picked_rows, &picked_targets, &picked_weights, &next}, {&rows, &targets, &weights});
    expect_guarded([&] { take(nullptr, nullptr); }, {&picked_rows, &picked_targets, &next}, {&rows, &targets});
  }
}

}  // namespace
}  // namespace lora_train::kernels
