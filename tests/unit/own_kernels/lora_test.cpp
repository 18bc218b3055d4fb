#include "kernels/lora_cuda.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t N, C, R, gap;
  bool is_aligned;
};
// Odd ones; several chunks, column blocks, tiles of tokens; more ranks than one pass takes; rows that allow no packs.
const std::vector<Shape> kShapes = {{1, 1, 1, 0, true},     {3, 7, 2, 1, true},     {130, 520, 8, 8, true},
                                    {70, 64, 16, 0, true},  {257, 129, 9, 0, true}, {300, 40, 16, 8, false},
                                    {65, 530, 17, 2, true}, {9, 24, 130, 0, true},  {128, 8, 64, 0, true},
                                    {1100, 8, 4, 0, true}};

template <class T>
class LoraOnCpu : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(LoraOnCpu, Elements);

/// Two adapters: outputs [0, C / 2) with some ranks and the rest of them with R.
LoraTargets targets_of(const Shape& shape, Guarded<float>& first, Guarded<float>& second) {
  const std::int64_t few = std::max<std::int64_t>(shape.R / 2, 1), half = shape.C / 2;
  return {{{0, few, 0, half, 0.5F, first.rows()}, {few + 1, shape.R, half, shape.C, 2.0F, second.rows()}}, 2};
}

template <class T>
struct Product {
  Guarded<T> big, thin;
  Guarded<float> workspace;
  Shape shape;

  Product(const Shape& s, const LoraProduct& product)
      : big(s.N, s.C, s.gap, s.is_aligned),
        thin(s.N, 2 * s.R + 2, 3),
        workspace(1, product.chunks().workspace_elements),
        shape(s) {
    big.fill_uniform(1);
    thin.fill_uniform(2);
  }
  /// Over the tokens, of columns of the thin and of the big side.
  double sum(std::int64_t r, std::int64_t c) {
    double all = 0;
    for (std::int64_t n = 0; n < shape.N; ++n) all += thin.at(n, r) * big.at(n, c);
    return all;
  }
  bool is_intact() { return big.is_intact() && thin.is_intact() && workspace.is_intact(); }
};

std::string text(const Shape& s) {
  return std::to_string(s.N) + " " + std::to_string(s.C) + " " + std::to_string(s.R);
}

TYPED_TEST(LoraOnCpu, GradientsOfBAddScaledProductsOfTheirOutputs) {
  for (const Shape& shape : kShapes) {
    const std::int64_t few = std::max<std::int64_t>(shape.R / 2, 1), half = shape.C / 2;
    Guarded<float> first(half, few, 1), second(shape.C - half, shape.R, 2);
    const LoraTargets targets = targets_of(shape, first, second);
    Product<TypeParam> p(shape, lora_product_b(targets, shape.N));
    const auto run = [&] {
      for (auto* grad : {&first, &second}) grad->fill([](auto, auto r) { return static_cast<float>(r % 3); });
      p.workspace.poison_values();
      lora_grad_b_cuda(p.big.read(), p.thin.read(), targets, shape.N, p.workspace.data(), nullptr);
    };
    run_in_both_orders(first, run);
    run_in_both_orders(second, run);
    for (int i = 0; i < 2; ++i) {
      const LoraTarget& t = targets.list[i];
      const auto want = [&](auto c, auto r) {
        return static_cast<double>(r % 3) + static_cast<double>(t.scale) * p.sum(t.column + r, t.out_begin + c);
      };
      if (t.out_begin == t.out_end) continue;
      EXPECT_TRUE(is_near(i == 0 ? first : second, t.out_end - t.out_begin, t.rank, want, 2e-6)) << text(shape) << " " << i;
    }
    EXPECT_TRUE(p.is_intact() && first.is_intact() && second.is_intact());
  }
}

TYPED_TEST(LoraOnCpu, GradientsOfAAddScaledProducts) {
  for (const Shape& shape : kShapes) {
    const std::int64_t few = std::max<std::int64_t>(shape.R / 2, 1);
    Guarded<float> first(few, shape.C, 5), second(shape.R, shape.C, 1);
    const LoraTargets targets = targets_of(shape, first, second);
    Product<TypeParam> p(shape, lora_product_a(targets, shape.N, shape.C));
    const auto run = [&] {
      for (auto* grad : {&first, &second}) grad->fill([](auto, auto c) { return static_cast<float>(c % 3); });
      p.workspace.poison_values();
      lora_grad_a_cuda(p.thin.read(), p.big.read(), targets, shape.N, shape.C, p.workspace.data(), nullptr);
    };
    run_in_both_orders(first, run);
    run_in_both_orders(second, run);
    for (int i = 0; i < 2; ++i) {
      const LoraTarget& t = targets.list[i];
      const auto want = [&](auto r, auto c) {
        return static_cast<double>(c % 3) + static_cast<double>(t.scale) * p.sum(t.column + r, c);
      };
      EXPECT_TRUE(is_near(i == 0 ? first : second, t.rank, shape.C, want, 2e-6)) << text(shape) << " " << i;
    }
    EXPECT_TRUE(p.is_intact() && first.is_intact() && second.is_intact());
  }
}

TYPED_TEST(LoraOnCpu, AProjectionTakesOnePairOfLaunches) {
  const Shape shape{200, 600, 16, 0, true};
  Guarded<float> first(300, 8), second(300, 16);
  const LoraTargets of_b = targets_of(shape, first, second);
  Product<TypeParam> p(shape, lora_product_b(of_b, shape.N));
  std::int64_t before = on_cpu::num_launches();
  lora_grad_b_cuda(p.big.read(), p.thin.read(), of_b, shape.N, p.workspace.data(), nullptr);
  EXPECT_EQ(on_cpu::num_launches() - before, 2);
  Guarded<float> first_a(8, 600), second_a(16, 600);
  const LoraTargets of_a = targets_of(shape, first_a, second_a);
  Product<TypeParam> q(shape, lora_product_a(of_a, shape.N, shape.C));
  before = on_cpu::num_launches();
  lora_grad_a_cuda(q.thin.read(), q.big.read(), of_a, shape.N, shape.C, q.workspace.data(), nullptr);
  EXPECT_EQ(on_cpu::num_launches() - before, 2);
}

TYPED_TEST(LoraOnCpu, NoTokensAddNothing) {
  Guarded<float> first(2, 8), second(4, 8);
  const Shape shape{0, 8, 4, 0, true};
  const LoraTargets targets = targets_of(shape, first, second);
  Product<TypeParam> p(shape, lora_product_a(targets, 0, 8));
  first.fill([](auto, auto) { return 3.0F; });
  lora_grad_a_cuda(p.thin.read(), p.big.read(), targets, 0, 8, p.workspace.data(), nullptr);
  EXPECT_TRUE(is_near(
      first, 2, 8, [](auto, auto) { return 3.0; }, 0));
}

TEST(LoraChunks, FitTheWorkspaceAndCoverTheTokens) {
  for (const std::int64_t N : {1, 127, 4096, 16384, 65536}) {
    for (const std::int64_t C : {8, 1536, 3584, 18944, 19001}) {
      for (const std::int64_t R : {1, 8, 16, 64, 256}) {
        const LoraChunks chunks = lora_chunks(N, C, R);
        EXPECT_LE(chunks.workspace_elements, 16 * 1024 * 1024);
        EXPECT_EQ(chunks.workspace_elements, chunks.num_chunks * std::min(R, kLoraRanks) * chunks.padded_columns);
        EXPECT_GE(chunks.num_chunks * chunks.chunk_tokens, N);
        EXPECT_LT((chunks.num_chunks - 1) * chunks.chunk_tokens, N);
        EXPECT_TRUE(chunks.padded_columns >= C && chunks.padded_columns % 8 == 0);
        EXPECT_LE(chunks.num_chunks, 65535);
      }
    }
  }
}

TEST(LoraChunks, SmallModelsHaveABlockForNearlyEveryMultiprocessor) {
  // Blocks of 512 columns: Qwen2.5-0.5B with 2,048 tokens had 32.
  EXPECT_GE(2 * lora_chunks(2048, 896, 16).num_chunks, 128);
  EXPECT_GE(2 * lora_chunks(2048, 896, 48).num_chunks, 128);
  EXPECT_GE(lora_chunks(16384, 512, 16).num_chunks, 264);
  EXPECT_EQ(lora_chunks(16384, 3584, 16).chunk_tokens, 128);  // where there are enough, partial sums stay few
}

}  // namespace
}  // namespace lora_train::kernels
