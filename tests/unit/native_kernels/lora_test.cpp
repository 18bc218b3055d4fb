// Numbers of usual shapes: lora_test.cpp of kernels_test. Here also those of chunks and pieces that only many tokens, or few
// multiprocessors, give.
#include <memory>

#include "kernels/lora/lora_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Shape {
  std::int64_t N, C, R, gap = 0;
  bool is_aligned = true;
};
// Odd ones; several chunks, column blocks, tiles of tokens; more ranks than one pass takes; rows that allow no packs; nothing.
// Where gap and C are multiples of 8 and C is one of 16, bf16 goes through tensor cores.
const std::vector<Shape> kShapes = {{1, 1, 1},        {0, 16, 4},       {3, 7, 2, 1},     {9, 48, 130},
                                    {257, 129, 9},    {15, 144, 33},    {33, 1040, 5},    {130, 144, 8, 8},
                                    {65, 530, 17, 2}, {17, 400, 20, 8}, {76, 144, 48, 8}, {300, 48, 16, 8, false}};

/// The gradients of two adapters: of columns [0, C / 2) with some ranks, and of the others with R; of A, of all columns.
template <class T>
void expect_guarded_gradients(const Shape& s, bool is_of_b) {
  const std::int64_t few = std::max<std::int64_t>(s.R / 2, 1), half = s.C / 2;
  Guarded<T> big(s.N, s.C, s.gap, s.is_aligned), thin(s.N, 2 * s.R + 2, 3);
  Guarded<float> first(is_of_b ? RowShape{half, few, 1} : RowShape{few, s.C, 5}),
      second(is_of_b ? RowShape{s.C - half, s.R, 2} : RowShape{s.R, s.C, 1});
  const LoraTargets targets = {{{0, few, 0, half, 0.5F, first.rows()}, {few + 1, s.R, half, s.C, 2.0F, second.rows()}},
                               2};
  const LoraProduct product =
      is_of_b ? lora_product_b(big.read(), targets, s.N) : lora_product_a(big.read(), targets, s.N, s.C);
  EXPECT_EQ(product.on_tensor_cores, sizeof(T) == 2 && fits_packs(big.read(), is_of_b ? half : s.C)) << s.C;
  Guarded<float> workspace(1, product.workspace_elements());
  big.fill_uniform(1);
  thin.fill_uniform(2);
  const auto before = num_launches();
  const auto launch = [&] {
    for (auto* grad : {&first, &second}) grad->fill_uniform(3);
    workspace.poison_values();
    (is_of_b ? lora_grad_b_cuda<T>(big.read(), thin.read(), targets, product, workspace.data(), nullptr)
             : lora_grad_a_cuda<T>(thin.read(), big.read(), targets, product, workspace.data(), nullptr));
  };
  SCOPED_TRACE(testing::Message() << s.N << " " << s.C << " " << s.R);
  expect_guarded(launch, {&first, &second}, {&big, &thin});
  EXPECT_TRUE(workspace.is_intact());
  EXPECT_EQ(num_launches() - before, before < 0 || s.N == 0 ? 0 : 2 * 2 * product.num_passes());
}

TEST(LoraCuda, GradientsStayInTheirRowsInAPairOfLaunches) {
  for_each_element_type([]<class T>(T) {
    for (const Shape& s : kShapes) {
      for (const bool is_of_b : {true, false}) expect_guarded_gradients<T>(s, is_of_b);
    }
  });
}

/// As q, k and v: outputs and ranks of each adapter; unused columns of the thin side before, between and after them.
struct Adapters {
  std::int64_t N;
  std::vector<std::int64_t> widths, ranks;
  std::int64_t gap = 8;
};
// Chunk, group and step ends; one and two tiles of ranks; several column blocks, wide ones too; an adapter without outputs.
const std::vector<Adapters> kAdapters = {
    {1, {8}, {4}},         {40, {1032, 64}, {8, 5}},         {76, {72}, {20}},     {34, {1024, 1024}, {1, 9}},
    {17, {64}, {16}, 0},   {38, {2040, 1000}, {15, 8}},      {0, {16, 8}, {4, 4}}, {15, {24, 72, 8}, {4, 8, 16}},
    {48, {0, 16}, {3, 5}}, {33, {520, 64, 200}, {16, 32, 1}}};

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
    scaled_b->fill_uniform(3);
    product = lora_product_s_and_b(dy->read(), targets, a.N, workspace_elements);
    EXPECT_TRUE(product.with_ds);
    product.num_sms = num_sms;
    workspace = std::make_unique<Guarded<float>>(1, product.workspace_elements());
  }
  void expect_guarded_results() {
    std::vector<GuardedBytes*> outputs = {ds.get()};
    for (auto& grad : grads) outputs.push_back(grad.get());
    const auto launch = [&] {
      for (auto& grad : grads) grad->fill([](auto, auto) { return 1.0F; });
      workspace->poison_values();
      lora_grad_s_and_b_cuda(dy->read(), scaled_b->read(), s->read(), targets, product, C, ds->rows(),
                             workspace->data(), nullptr);
    };
    expect_guarded(launch, outputs, {dy.get(), scaled_b.get(), s.get()});
    EXPECT_TRUE(workspace->is_intact());
  }
  /// Of a single adapter.
  void expect_numbers() {
    const LoraTarget& t = targets.list[0];
    const auto want_ds = [&](std::int64_t n, std::int64_t c) {
      double sum = 0;
      for (std::int64_t o = 0; c >= t.column && c < t.column + t.rank && o < O; ++o) {
        sum += dy->at(n, o) * scaled_b->at(o, c);
      }
      return sum;
    };
    const auto want_grad = [&](std::int64_t o, std::int64_t r) {
      double sum = 0;
      for (std::int64_t n = 0; n < shape.N; ++n) sum += dy->at(n, o) * s->at(n, t.column + r);
      return 1 + static_cast<double>(t.scale) * sum;
    };
    EXPECT_TRUE(is_near(*ds, shape.N, C, want_ds, 4e-3));
    EXPECT_TRUE(is_near(*grads[0], O, t.rank, want_grad, 1e-5));
  }
};

TEST(LoraSAndB, StaysInItsRowsInAPairOfLaunches) {
  for (const Adapters& adapters : kAdapters) {
    SCOPED_TRACE(adapters.N);
    SAndB p(adapters);
    const auto before = num_launches();
    p.expect_guarded_results();
    EXPECT_EQ(num_launches() - before, before < 0 || adapters.N == 0 ? 0 : 2 * 2);
    if (adapters.N > 0) continue;
    EXPECT_TRUE(is_near(
        *p.grads[0], 16, 4, [](auto, auto) { return 1.0; }, 0));
  }
}

TEST(LoraSAndB, LongChunksTakeTheirTokensGroupByGroup) {
  constexpr std::int64_t N = 187;
  SAndB p({N, {8}, {2}}, kWorkspaceElements, 1);
  EXPECT_EQ(p.product.chunks().chunk_tokens, 3 * 32);
  p.expect_guarded_results();
  p.expect_numbers();
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
  SAndB p({76, {1024}, {2}}, kWorkspaceElements, 2);
  EXPECT_EQ(p.product.num_warps(), 16);
  EXPECT_EQ(p.product.chunks().chunk_tokens, 2 * 32);
  p.expect_guarded_results();
  p.expect_numbers();
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
  p.expect_guarded_results();
  p.expect_numbers();
}

}  // namespace
}  // namespace lora_train::kernels
