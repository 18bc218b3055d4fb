#include <algorithm>
#include <numeric>

#include "kernels/embedding/embedding_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t num_tokens, D, gap;
  bool is_aligned;
};

// Odd widths, rows of several parts, one token, runs longer than what a thread reads at once, gaps, misaligned rows.
const std::vector<Shape> kShapes = {{1, 1, 0, true},    {9, 7, 1, true},    {150, 64, 8, true}, {3, 520, 0, false},
                                    {5, 2568, 8, true}, {60, 33, 3, false}, {33, 300, 4, true}};

template <class T>
class EmbeddingCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(EmbeddingCuda, Elements);

constexpr std::int64_t kVocabulary = 13;

/// Mostly id 4, so that its run is long; 0 and 12 are the ends of the vocabulary.
std::int32_t id_of(std::int64_t n) {
  const std::int32_t ids[] = {4, 12, 4, 0, 7, 4, 4, 3};
  return n == 0 ? 12 : ids[(n * n + n / 5) % 8];
}

struct Tokens {
  explicit Tokens(std::int64_t count) : ids(1, count), order(1, count) {
    ids.fill([](auto, auto n) { return static_cast<float>(id_of(n)); });
    std::vector<std::int32_t> sorted(static_cast<std::size_t>(count));
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(), [](auto a, auto b) { return id_of(a) < id_of(b); });
    order.fill([&](auto, auto n) { return static_cast<float>(sorted[static_cast<std::size_t>(n)]); });
  }
  Guarded<std::int32_t> ids, order;
};

/// Rows 4, 11 (which no token has) and 12 are trained.
const std::vector<std::int64_t> kTrained = {12, 11, 4};

TYPED_TEST(EmbeddingCuda, ForwardTakesAndScalesFrozenAndTrainedRows) {
  for (const auto& [count, width, gap, is_aligned] : kShapes) {
    const std::int64_t num_tokens = count, D = width;
    Tokens tokens(num_tokens);
    const KernelArray<std::int64_t> all_trained(kTrained);
    Guarded<TypeParam> weight(kVocabulary, D, gap, is_aligned), out(num_tokens, D, gap, is_aligned);
    Guarded<float> values(3, D, 1, is_aligned);
    weight.fill_uniform(1);
    values.fill_uniform(2);
    for (const auto& [num_trained, scale] :
         {std::pair<std::int64_t, float>{0, 1.0F}, {3, 1.0F}, {0, 6.1F}, {3, 6.1F}}) {
      const std::int64_t trained = num_trained;
      const float factor = scale;
      run_in_both_orders(out, [&] {
        embedding_forward_cuda(tokens.ids.data(), weight.read(), all_trained.data(), trained, values.read(), factor,
                               out.rows(), num_tokens, D, nullptr);
      });
      for (std::int64_t n = 0; n < num_tokens; ++n) {
        const auto slot = std::find(kTrained.begin(), kTrained.begin() + trained, id_of(n)) - kTrained.begin();
        for (std::int64_t d = 0; d < D; ++d) {
          const float row = slot < trained ? rounded_to<TypeParam>(values[slot][d]) : load(&weight[id_of(n)][d]);
          ASSERT_EQ(load(&out[n][d]), rounded_to<TypeParam>(factor * row)) << n << ", " << d;
        }
      }
    }
    EXPECT_TRUE(out.is_intact() && weight.is_intact() && values.is_intact());
  }
}

/// What tokens of `id` add up to in column d.
template <class T>
double sum_of(Guarded<T>& dout, std::int64_t num_tokens, std::int64_t id, std::int64_t d) {
  double sum = 0;
  for (std::int64_t n = 0; n < num_tokens; ++n) sum += id_of(n) == id ? dout.at(n, d) : 0.0;
  return sum;
}

TYPED_TEST(EmbeddingCuda, BackwardAddsEveryToken) {
  for (const auto& [count, width, gap, is_aligned] : kShapes) {
    const std::int64_t num_tokens = count, D = width;
    Tokens tokens(num_tokens);
    Guarded<TypeParam> dout(num_tokens, D, gap, is_aligned);
    Guarded<float> dweight(kVocabulary, D, 1, is_aligned);
    dout.fill_uniform(3);
    run_in_both_orders(dweight, [&] {
      dweight.fill([](auto id, auto) { return static_cast<float>(id); });
      embedding_backward_cuda(tokens.ids.data(), tokens.order.data(), dout.read(), 1.5F, dweight.rows(), num_tokens, D,
                              nullptr);
    });
    const auto want = [&](auto id, auto d) { return 1.5 * sum_of(dout, num_tokens, id, d) + static_cast<double>(id); };
    EXPECT_TRUE(is_near(dweight, kVocabulary, D, want, 1e-6)) << num_tokens << " x " << D;
    EXPECT_TRUE(dweight.is_intact() && dout.is_intact());
  }
}

TYPED_TEST(EmbeddingCuda, BackwardOfTrainedRowsTakesOnlyTheirTokens) {
  for (const auto& [count, width, gap, is_aligned] : kShapes) {
    const std::int64_t num_tokens = count, D = width;
    Tokens tokens(num_tokens);
    const KernelArray<std::int64_t> trained(kTrained);
    Guarded<TypeParam> dout(num_tokens, D, gap, is_aligned);
    Guarded<float> grads(3, D, 1, is_aligned);
    dout.fill_uniform(3);
    run_in_both_orders(grads, [&] {
      grads.fill([](auto, auto) { return 1.0F; });
      trainable_rows_backward_cuda(tokens.ids.data(), tokens.order.data(), dout.read(), 2.5F, trained.data(), 3,
                                   grads.rows(), num_tokens, D, nullptr);
    });
    const auto want = [&](auto slot, auto d) {
      return 2.5 * sum_of(dout, num_tokens, kTrained[static_cast<std::size_t>(slot)], d) + 1;
    };
    EXPECT_TRUE(is_near(grads, 3, D, want, 1e-6)) << num_tokens << " x " << D;
    for (std::int64_t d = 0; d < D; ++d) EXPECT_EQ(grads[1][d], 1.0F);
    EXPECT_TRUE(grads.is_intact());
  }
}

TYPED_TEST(EmbeddingCuda, NoTokensLeaveTheGradientsAlone) {
  Guarded<std::int32_t> none(1, 1);
  const KernelArray<std::int64_t> trained(kTrained);
  Guarded<TypeParam> dout(1, 8);
  Guarded<float> grads(3, 8);
  grads.fill([](auto, auto) { return 2.0F; });
  const auto* const ids = none.data();
  embedding_backward_cuda(ids, ids, dout.read(), 1, grads.rows(), 0, 8, nullptr);
  trainable_rows_backward_cuda(ids, ids, dout.read(), 1, trained.data(), 3, grads.rows(), 0, 8, nullptr);
  embedding_forward_cuda(ids, dout.read(), trained.data(), 3, grads.read(), 1, dout.rows(), 0, 8, nullptr);
  EXPECT_TRUE(is_near(
      grads, 3, 8, [](auto, auto) { return 2.0; }, 0));
}

}  // namespace
}  // namespace lora_train::kernels
