#include <memory>

#include "kernels/lora/lora_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t N, C, R, gap;
  bool is_aligned;
};
// Odd ones; several chunks, column blocks, tiles of tokens; more ranks than one pass takes; rows that allow no packs.
// Where gap and C are multiples of 8 and C is one of 16, bf16 goes through tensor cores.
const std::vector<Shape> kShapes = {
    {1, 1, 1, 0, true},     {3, 7, 2, 1, true},      {130, 528, 8, 8, true}, {70, 64, 16, 0, true},
    {257, 129, 9, 0, true}, {300, 48, 16, 8, false}, {65, 530, 17, 2, true}, {9, 48, 130, 0, true},
    {128, 16, 64, 0, true}, {284, 16, 4, 0, true},   {15, 144, 33, 0, true}, {17, 400, 20, 8, true},
    {76, 144, 48, 8, true}, {33, 1040, 5, 0, true},  {75, 96, 15, 8, true},  {50, 80, 32, 0, true}};

template <class T>
class LoraCuda : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(LoraCuda, Elements);

/// Two adapters: outputs [0, C / 2) with some ranks and the rest of them with R.
LoraTargets targets_of(const Shape& shape, Guarded<float>& first, Guarded<float>& second) {
  const std::int64_t few = std::max<std::int64_t>(shape.R / 2, 1), half = shape.C / 2;
  return {{{0, few, 0, half, 0.5F, first.rows()}, {few + 1, shape.R, half, shape.C, 2.0F, second.rows()}}, 2};
}

template <class T>
struct Product {
  Guarded<T> big, thin;
  Guarded<float> workspace;
  LoraProduct product;
  Shape shape;

  /// For make(big), the product of the kernel which is tested; it takes `width` columns at a time.
  template <class Make>
  Product(const Shape& s, const Make& make, std::int64_t width)
      : big(s.N, s.C, s.gap, s.is_aligned),
        thin(s.N, 2 * s.R + 2, 3),
        workspace(1, make(big.read()).workspace_elements()),
        product(make(big.read())),
        shape(s) {
    big.fill_uniform(1);
    thin.fill_uniform(2);
    EXPECT_EQ(product.on_tensor_cores, sizeof(T) == 2 && fits_packs(big.read(), width)) << s.C;
  }
  /// Over the tokens, of columns of the thin and of the big side.
  double sum(std::int64_t r, std::int64_t c) {
    double all = 0;
    for (std::int64_t n = 0; n < shape.N; ++n) all += thin.at(n, r) * big.at(n, c);
    return all;
  }
  bool is_intact() { return big.is_intact() && thin.is_intact() && workspace.is_intact(); }
};

auto product_b(const LoraTargets& targets, std::int64_t N) {
  return [&targets, N](auto dy) { return lora_product_b(dy, targets, N); };
}
auto product_a(const LoraTargets& targets, const Shape& shape) {
  return [&targets, shape](auto x) { return lora_product_a(x, targets, shape.N, shape.C); };
}

std::string text(const Shape& s) { return std::to_string(s.N) + " " + std::to_string(s.C) + " " + std::to_string(s.R); }

TYPED_TEST(LoraCuda, GradientsOfBAddScaledProductsOfTheirOutputs) {
  for (const Shape& shape : kShapes) {
    const std::int64_t few = std::max<std::int64_t>(shape.R / 2, 1), half = shape.C / 2;
    Guarded<float> first(half, few, 1), second(shape.C - half, shape.R, 2);
    const LoraTargets targets = targets_of(shape, first, second);
    Product<TypeParam> p(shape, product_b(targets, shape.N), shape.C / 2);
    const auto run = [&] {
      for (auto* grad : {&first, &second}) grad->fill([](auto, auto r) { return static_cast<float>(r % 3); });
      p.workspace.poison_values();
      lora_grad_b_cuda(p.big.read(), p.thin.read(), targets, p.product, p.workspace.data(), nullptr);
    };
    std::vector<std::vector<float>> of_second;
    run_in_both_orders(first, [&] {
      run();
      of_second.push_back(second.values());
    });
    EXPECT_EQ(of_second[0], of_second[1]) << "other numbers in another order: a barrier is missing";
    for (int i = 0; i < 2; ++i) {
      const LoraTarget& t = targets.list[i];
      const auto want = [&](auto c, auto r) {
        return static_cast<double>(r % 3) + static_cast<double>(t.scale) * p.sum(t.column + r, t.out_begin + c);
      };
      if (t.out_begin == t.out_end) continue;
      EXPECT_TRUE(is_near(i == 0 ? first : second, t.out_end - t.out_begin, t.rank, want, 2e-6))
          << text(shape) << " " << i;
    }
    EXPECT_TRUE(p.is_intact() && first.is_intact() && second.is_intact());
  }
}

TYPED_TEST(LoraCuda, GradientsOfAAddScaledProducts) {
  for (const Shape& shape : kShapes) {
    const std::int64_t few = std::max<std::int64_t>(shape.R / 2, 1);
    Guarded<float> first(few, shape.C, 5), second(shape.R, shape.C, 1);
    const LoraTargets targets = targets_of(shape, first, second);
    Product<TypeParam> p(shape, product_a(targets, shape), shape.C);
    const auto run = [&] {
      for (auto* grad : {&first, &second}) grad->fill([](auto, auto c) { return static_cast<float>(c % 3); });
      p.workspace.poison_values();
      lora_grad_a_cuda(p.thin.read(), p.big.read(), targets, p.product, p.workspace.data(), nullptr);
    };
    std::vector<std::vector<float>> of_second;
    run_in_both_orders(first, [&] {
      run();
      of_second.push_back(second.values());
    });
    EXPECT_EQ(of_second[0], of_second[1]) << "other numbers in another order: a barrier is missing";
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

TYPED_TEST(LoraCuda, AProjectionTakesOnePairOfLaunches) {
  if (num_launches() < 0) GTEST_SKIP() << "a matter of the host: nothing counts launches on a GPU";
  const Shape shape{200, 600, 16, 0, true};
  Guarded<float> first(300, 8), second(300, 16);
  const LoraTargets of_b = targets_of(shape, first, second);
  Product<TypeParam> p(shape, product_b(of_b, shape.N), shape.C / 2);
  std::int64_t before = num_launches();
  lora_grad_b_cuda(p.big.read(), p.thin.read(), of_b, p.product, p.workspace.data(), nullptr);
  EXPECT_EQ(num_launches() - before, 2);
  Guarded<float> first_a(8, 600), second_a(16, 600);
  const LoraTargets of_a = targets_of(shape, first_a, second_a);
  Product<TypeParam> q(shape, product_a(of_a, shape), shape.C);
  before = num_launches();
  lora_grad_a_cuda(q.thin.read(), q.big.read(), of_a, q.product, q.workspace.data(), nullptr);
  EXPECT_EQ(num_launches() - before, 2);
}

TYPED_TEST(LoraCuda, NoTokensAddNothing) {
  Guarded<float> first(2, 8), second(4, 8);
  const Shape shape{0, 8, 4, 0, true};
  const LoraTargets targets = targets_of(shape, first, second);
  Product<TypeParam> p(shape, product_a(targets, shape), shape.C);
  first.fill([](auto, auto) { return 3.0F; });
  lora_grad_a_cuda(p.thin.read(), p.big.read(), targets, p.product, p.workspace.data(), nullptr);
  EXPECT_TRUE(is_near(
      first, 2, 8, [](auto, auto) { return 3.0; }, 0));
}

/// As q, k and v: outputs and ranks of each adapter; unused columns of the thin side before, between and after them.
struct Adapters {
  std::int64_t N;
  std::vector<std::int64_t> widths, ranks;
  std::int64_t gap = 8;
};
// Chunk, group and step ends; one and two tiles of ranks; several column blocks, wide ones too; an adapter without outputs.
const std::vector<Adapters> kAdapters = {
    {1, {8}, {4}},         {15, {24, 72, 8}, {4, 8, 16}},     {17, {64}, {16}, 0},    {76, {72}, {20}},
    {48, {0, 16}, {3, 5}}, {33, {520, 64, 200}, {16, 32, 1}}, {65, {72, 24}, {8, 8}}, {40, {1032, 64}, {8, 5}},
    {45, {1024}, {16}},    {38, {2040, 1000}, {15, 8}},       {49, {80}, {17}},       {34, {1024, 1024}, {1, 9}}};

struct SAndB {
  static constexpr std::int64_t kBefore = 1;  // columns of nobody, after each adapter too
  Adapters shape;
  std::int64_t O = 0, C = kBefore;
  std::vector<std::unique_ptr<Guarded<float>>> grads;
  LoraTargets targets{};
  std::unique_ptr<Guarded<Bf16>> dy, scaled_b, s, ds;
  std::unique_ptr<Guarded<float>> workspace;
  LoraProduct product;

  /// Fewer num_sms make chunks longer.
  explicit SAndB(const Adapters& a, std::int64_t workspace_elements = kWorkspaceElements,
                 std::int64_t num_sms = kTensorSms)
      : shape(a) {
    for (std::size_t i = 0; i < a.widths.size(); ++i) {
      grads.push_back(std::make_unique<Guarded<float>>(a.widths[i], a.ranks[i], 1));
      targets.list[i] = {C, a.ranks[i], O, O + a.widths[i], 0.5F + static_cast<float>(i), grads[i]->rows()};
      O += a.widths[i];
      C += a.ranks[i] + kBefore;
    }
    targets.count = static_cast<int>(a.widths.size());
    dy = std::make_unique<Guarded<Bf16>>(a.N, O, a.gap);
    s = std::make_unique<Guarded<Bf16>>(a.N, C, 3);
    ds = std::make_unique<Guarded<Bf16>>(a.N, C, 5);
    scaled_b = std::make_unique<Guarded<Bf16>>(O, C, 2);
    dy->fill_uniform(1);
    s->fill_uniform(2);
    scaled_b->fill_uniform(3);  // what is not an adapter's own must not be read
    product = lora_product_s_and_b(dy->read(), targets, a.N, workspace_elements);
    EXPECT_TRUE(product.with_ds);
    product.num_sms = num_sms;
    workspace = std::make_unique<Guarded<float>>(1, product.workspace_elements());
  }
  void run() {
    for (auto& grad : grads) grad->fill([](auto c, auto r) { return static_cast<float>(c % 2 + r % 3); });
    ds->poison_values();
    workspace->poison_values();
    lora_grad_s_and_b_cuda(dy->read(), scaled_b->read(), s->read(), targets, product, C, ds->rows(), workspace->data(),
                           nullptr);
  }
  double ds_at(std::int64_t n, std::int64_t c) {
    double sum = 0;
    for (const LoraTarget& t : targets) {
      if (c < t.column || c >= t.column + t.rank) continue;
      for (std::int64_t o = t.out_begin; o < t.out_end; ++o) sum += dy->at(n, o) * scaled_b->at(o, c);
    }
    return sum;
  }
  double grad_at(const LoraTarget& t, std::int64_t o, std::int64_t r) {
    double sum = 0;
    for (std::int64_t n = 0; n < shape.N; ++n) sum += dy->at(n, t.out_begin + o) * s->at(n, t.column + r);
    return static_cast<double>(o % 2 + r % 3) + static_cast<double>(t.scale) * sum;
  }
};

TEST(LoraSAndB, GivesBothFromOneReadOfDy) {
  for (const Adapters& adapters : kAdapters) {
    SAndB p(adapters);
    const auto before = num_launches();
    std::vector<std::vector<float>> grads;  // of both runs
    run_in_both_orders(*p.ds, [&] {
      p.run();
      for (auto& grad : p.grads) grads.push_back(grad->values());
    });
    EXPECT_EQ(num_launches() - before, before < 0 ? 0 : 2 * 2);
    EXPECT_TRUE(is_near(
        *p.ds, adapters.N, p.C, [&](auto n, auto c) { return p.ds_at(n, c); }, 4e-3))
        << adapters.N;
    for (std::size_t i = 0; i < p.grads.size(); ++i) {
      const LoraTarget& t = p.targets.list[i];
      EXPECT_EQ(grads[i], grads[i + p.grads.size()]) << "other numbers in another order: a barrier is missing";
      if (t.out_begin == t.out_end) continue;
      EXPECT_TRUE(is_near(
          *p.grads[i], t.out_end - t.out_begin, t.rank, [&](auto o, auto r) { return p.grad_at(t, o, r); }, 2e-6))
          << adapters.N << " " << i;
      EXPECT_TRUE(p.grads[i]->is_intact());
    }
    EXPECT_TRUE(p.dy->is_intact() && p.s->is_intact() && p.scaled_b->is_intact() && p.ds->is_intact() &&
                p.workspace->is_intact());
  }
}

TEST(LoraSAndB, LongChunksTakeTheirTokensGroupByGroup) {
  constexpr std::int64_t N = 187;
  SAndB p({N, {8}, {2}}, kWorkspaceElements, 1);
  EXPECT_EQ(p.product.chunks().chunk_tokens, 3 * 32);
  p.run();
  EXPECT_TRUE(is_near(
      *p.ds, N, p.C, [&](auto n, auto c) { return p.ds_at(n, c); }, 4e-3));
  EXPECT_TRUE(is_near(
      *p.grads[0], 8, 2, [&](auto o, auto r) { return p.grad_at(p.targets.list[0], o, r); }, 1e-5));
  Guarded<float> grad(2, 8);
  LoraTargets of_a = p.targets;
  of_a.list[0].grad = grad.rows();
  for (const std::int64_t tokens : {N, std::int64_t{140}}) {  // dA has other chunks
    LoraProduct product = lora_product_a(p.dy->read(), of_a, tokens, 8);
    product.num_sms = 1;
    EXPECT_EQ(product.chunks().chunk_tokens, 64);
    Guarded<float> workspace(1, product.workspace_elements());
    grad.fill([](auto, auto) { return 0.0F; });
    lora_grad_a_cuda(p.s->read(), p.dy->read(), of_a, product, workspace.data(), nullptr);
    const auto want = [&](auto r, auto c) {
      double sum = 0;
      for (std::int64_t n = 0; n < tokens; ++n) sum += p.s->at(n, of_a.list[0].column + r) * p.dy->at(n, c);
      return static_cast<double>(of_a.list[0].scale) * sum;
    };
    EXPECT_TRUE(is_near(grad, 2, 8, want, 1e-5)) << tokens;
  }
}

TEST(LoraSAndB, WideBlocksTakeTheirTokensGroupByGroup) {
  constexpr std::int64_t N = 76;
  SAndB p({N, {1024}, {2}}, kWorkspaceElements, 2);
  EXPECT_EQ(p.product.num_warps(), 16);
  EXPECT_EQ(p.product.chunks().chunk_tokens, 2 * 32);
  p.run();
  EXPECT_TRUE(is_near(
      *p.ds, N, p.C, [&](auto n, auto c) { return p.ds_at(n, c); }, 4e-3));
  EXPECT_TRUE(is_near(
      *p.grads[0], 1024, 2, [&](auto o, auto r) { return p.grad_at(p.targets.list[0], o, r); }, 1e-5));
}

TEST(LoraSAndB, TakesTheTokensInPiecesThatFitTheWorkspace) {
  // 135168 partial sums of dB and 1 of dS per token: room for 1056 tokens.
  constexpr std::int64_t kLimit = 135168 + 1080, N = 2500;
  SAndB p({N, {8}, {1}}, kLimit);
  EXPECT_LE(p.product.workspace_elements(), kLimit);
  std::vector<std::int64_t> firsts;
  std::int64_t tokens = 0;
  p.product.for_each_piece([&](std::int64_t first, const LoraProduct& piece) {
    firsts.push_back(first);
    tokens += piece.num_tokens;
    EXPECT_EQ(piece.partial_sums(), piece.num_tokens + piece.chunks().num_chunks * 8);
  });
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 864, 1728}));
  EXPECT_EQ(tokens, N);
  p.run();
  EXPECT_TRUE(is_near(
      *p.ds, N, p.C, [&](auto n, auto c) { return p.ds_at(n, c); }, 4e-3));
  EXPECT_TRUE(is_near(
      *p.grads[0], 8, 1, [&](auto o, auto r) { return p.grad_at(p.targets.list[0], o, r); }, 1e-5));
  EXPECT_TRUE(p.ds->is_intact() && p.workspace->is_intact() && p.grads[0]->is_intact());
}

TEST(LoraSAndB, NoTokensWriteNothing) {
  SAndB p({0, {16, 8}, {4, 4}});
  p.run();
  EXPECT_TRUE(is_near(
      *p.grads[0], 16, 4, [](auto c, auto r) { return static_cast<double>(c % 2 + r % 3); }, 0));
}

TEST(LoraSAndB, TakesOneKernelWhereThatReadsLess) {
  Guarded<float> grad(64, 200);
  const auto together = [&](Rows<const Bf16> dy, std::int64_t begin, std::int64_t end, std::int64_t rank,
                            std::int64_t N) {
    return lora_product_s_and_b(dy, {{{0, rank, begin, end, 1, grad.rows()}}, 1}, N).with_ds;
  };
  Guarded<Bf16> dy(2, 64, 8), unaligned(2, 64, 8, false), odd_rows(2, 64, 7);
  EXPECT_TRUE(together(dy.read(), 0, 64, 32, 100));
  EXPECT_TRUE(together(dy.read(), 8, 16, 1, 100));
  EXPECT_FALSE(together(dy.read(), 0, 64, 33, 100));
  EXPECT_FALSE(together(dy.read(), 4, 12, 8, 100));
  EXPECT_FALSE(together(dy.read(), 0, 60, 8, 100));
  EXPECT_FALSE(together(unaligned.read(), 0, 64, 8, 100));
  EXPECT_FALSE(together(odd_rows.read(), 0, 64, 8, 100));
  EXPECT_TRUE(together(dy.read(), 0, 64, 32, 1 << 20));  // in pieces
  const LoraTargets narrow{{{0, 32, 0, 64, 1, grad.rows()}}, 1};
  EXPECT_FALSE(lora_product_s_and_b(dy.read(), narrow, 1 << 20, 1 << 20).with_ds);  // not even in pieces
  Guarded<float> fp32(2, 64);
  EXPECT_FALSE(lora_product_s_and_b(fp32.read(), {{{0, 8, 0, 64, 1, grad.rows()}}, 1}, 100).with_ds);
}

}  // namespace
}  // namespace lora_train::kernels
