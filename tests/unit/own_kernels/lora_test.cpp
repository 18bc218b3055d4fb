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

template <class T>
struct Product {
  Guarded<T> big, thin;
  Guarded<float> workspace;
  Shape shape;

  explicit Product(const Shape& s)
      : big(s.N, s.C, s.gap, s.is_aligned),
        thin(s.N, s.R, 3),
        workspace(1, lora_chunks(s.N, s.C, s.R).workspace_elements),
        shape(s) {
    big.fill_uniform(1);
    thin.fill_uniform(2);
  }
  /// Sums over the tokens, [R, C].
  std::vector<double> sums() {
    std::vector<double> all;
    for (std::int64_t r = 0; r < shape.R; ++r) {
      for (std::int64_t c = 0; c < shape.C; ++c) {
        double sum = 0;
        for (std::int64_t n = 0; n < shape.N; ++n) sum += thin.at(n, r) * big.at(n, c);
        all.push_back(sum);
      }
    }
    return all;
  }
  bool is_intact() { return big.is_intact() && thin.is_intact() && workspace.is_intact(); }
};

TYPED_TEST(LoraOnCpu, GradientOfBAddsScaledProduct) {
  for (const Shape& shape : kShapes) {
    Product<TypeParam> p(shape);
    Guarded<float> grad(shape.C, shape.R, 1);
    run_in_both_orders(grad, [&] {
      grad.fill([](auto, auto r) { return static_cast<float>(r % 3); });
      p.workspace.poison_values();
      lora_grad_b_cuda(p.big.read(), p.thin.read(), 0.5F, grad.rows(), shape.N, shape.C, shape.R, p.workspace.data(),
                       nullptr);
    });
    const std::vector<double> sums = p.sums();
    const auto want = [&](auto c, auto r) {
      return static_cast<double>(r % 3) + 0.5 * sums[static_cast<std::size_t>(r * shape.C + c)];
    };
    EXPECT_TRUE(is_near(grad, shape.C, shape.R, want, 2e-6)) << shape.N << " " << shape.C << " " << shape.R;
    EXPECT_TRUE(p.is_intact() && grad.is_intact());
  }
}

TYPED_TEST(LoraOnCpu, GradientOfAAddsProduct) {
  for (const Shape& shape : kShapes) {
    Product<TypeParam> p(shape);
    Guarded<float> grad(shape.R, shape.C, 5);
    run_in_both_orders(grad, [&] {
      grad.fill([](auto, auto c) { return static_cast<float>(c % 3); });
      p.workspace.poison_values();
      lora_grad_a_cuda(p.thin.read(), p.big.read(), grad.rows(), shape.N, shape.C, shape.R, p.workspace.data(),
                       nullptr);
    });
    const std::vector<double> sums = p.sums();
    const auto want = [&](auto r, auto c) {
      return static_cast<double>(c % 3) + sums[static_cast<std::size_t>(r * shape.C + c)];
    };
    EXPECT_TRUE(is_near(grad, shape.R, shape.C, want, 2e-6)) << shape.N << " " << shape.C << " " << shape.R;
    EXPECT_TRUE(p.is_intact() && grad.is_intact());
  }
}

TYPED_TEST(LoraOnCpu, NoTokensAddNothing) {
  Product<TypeParam> p({0, 8, 4, 0, true});
  Guarded<float> grad(4, 8);
  grad.fill([](auto, auto) { return 3.0F; });
  lora_grad_a_cuda(p.thin.read(), p.big.read(), grad.rows(), 0, 8, 4, p.workspace.data(), nullptr);
  EXPECT_TRUE(is_near(
      grad, 4, 8, [](auto, auto) { return 3.0; }, 0));
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

}  // namespace
}  // namespace lora_train::kernels
