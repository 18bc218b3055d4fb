// How the LoRA products are cut into blocks, chunks and pieces: nothing runs.
#include "lora_train/kernels/lora/lora.h"

#include <functional>
#include <memory>
#include <vector>

#include "lora/lora_parts.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Size {
  int64_t N, C, R;
};
// Of bf16, multiples of 48 columns go through tensor cores on CUDA: ends of chunks, warps and steps, one to four tiles of ranks,
// more ranks than one pass takes.
const std::vector<Size> kSizes = {{0, 48, 4},    {1, 1, 1},     {3, 7, 2},     {257, 129, 8},  {100, 1000, 16},
                                  {65, 70, 33},  {31, 5, 64},   {9, 96, 5},    {600, 100, 16}, {130, 528, 8},
                                  {76, 144, 48}, {33, 1056, 5}, {17, 384, 20}, {284, 48, 4},   {128, 48, 64},
                                  {9, 48, 130},  {50, 240, 32}};

class LoraProducts : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(LoraProducts);

// Sums are fp32 (fp64) whatever the inputs, so bf16 inputs lose nothing.
double sum_tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-13 : kTightFloatTolerance; }

/// Adapters side by side on O outputs, the second without the outputs before it, and columns of nobody between and after.
struct Adapters {
  std::vector<LoraPart> parts;
  std::vector<at::Tensor> before;
};

Adapters adapters(const Place& place, int64_t O, int64_t R,
                  const std::function<std::vector<int64_t>(const LoraPart&)>& shape) {
  Adapters made;
  const int64_t first = (O + 2) / 3;
  made.parts = {{1, R, 0, first, 0.3, {}}, {R + 2, std::max<int64_t>(R / 2, 1), O / 2, O, -2.0, {}}};
  for (LoraPart& part : made.parts) {
    part.grad = with_row_gaps(uniform(shape(part), 3).to(place.statistic({1}).options()));
    made.before.push_back(part.grad.clone());
  }
  return made;
}

int64_t thin_columns(const std::vector<LoraPart>& parts) { return parts.back().column + parts.back().rank + 3; }

std::vector<int64_t> shape_of_b(const LoraPart& part) { return {part.out_end - part.out_begin, part.rank}; }

/// Of every adapter the gradient of B from dy and s, added to what was there.
void expect_gradients_of_b(const Adapters& made, const at::Tensor& dy, const at::Tensor& s, at::ScalarType dtype) {
  for (std::size_t i = 0; i < made.parts.size(); ++i) {
    const LoraPart& part = made.parts[i];
    const auto dy_part = f64(dy).narrow(1, part.out_begin, part.out_end - part.out_begin);
    const auto product = dy_part.t().matmul(f64(s).narrow(1, part.column, part.rank));
    EXPECT_CLOSE(part.grad, f64(made.before[i]) + part.scale * product, sum_tolerance(dtype)) << i;
  }
}

std::string text(const Size& s) { return (std::ostringstream() << s.N << " " << s.C << " " << s.R).str(); }

TEST_P(LoraProducts, GradientsOfBAddScaledProductsOfTheirOutputs) {
  for (const auto& [N, O, R] : kSizes) {
    SCOPED_TRACE(text({N, O, R}));
    const Adapters made = adapters(place, O, R, shape_of_b);
    const auto dy = place.put(uniform({N, O}, 1)), s = place.put(uniform({N, thin_columns(made.parts)}, 2));
    lora_grad_b(dy, s, made.parts);
    expect_gradients_of_b(made, dy, s, place.dtype);
    for (const LoraPart& part : made.parts) EXPECT_TRUE(gaps_are_untouched(part.grad));
  }
}

class LoraProductsOfNativeKernels : public LoraProducts {};
INSTANTIATE_TEST_SUITE_P(Fp32Cores, LoraProductsOfNativeKernels,
                         ::testing::Values(Place{at::kCUDA, at::kFloat}, Place{at::kCPU, at::kFloat, true}),
                         place_name);

TEST_P(LoraProductsOfNativeKernels, TakeTheTokensOfALongChunkTileByTile) {
  constexpr int64_t N = 1400, O = 8200;
  ASSERT_GT(lora_chunks(N, O * 5 / 6, 1).chunk_tokens, 64)
      << "no more than a tile; the adapters have 5/6 of the outputs";
  const Adapters made = adapters(place, O, 1, shape_of_b);
  const auto dy = place.put(uniform({N, O}, 1)), s = place.put(uniform({N, thin_columns(made.parts)}, 2));
  lora_grad_b(dy, s, made.parts);
  expect_gradients_of_b(made, dy, s, place.dtype);
}

TEST_P(LoraProducts, GradientsOfAAddScaledProducts) {
  for (const auto& [N, D, R] : kSizes) {
    SCOPED_TRACE(text({N, D, R}));
    const int64_t inputs = D;
    const Adapters made = adapters(place, D, R, [&](const LoraPart& part) { return std::vector{part.rank, inputs}; });
    const auto ds = place.put(uniform({N, thin_columns(made.parts)}, 1)), x = place.put(uniform({N, D}, 2));
    lora_grad_a(ds, x, made.parts);
    for (std::size_t i = 0; i < made.parts.size(); ++i) {
      const LoraPart& part = made.parts[i];
      const auto product = f64(ds).narrow(1, part.column, part.rank).t().matmul(f64(x));
      const auto want = f64(made.before[i]) + part.scale * product;
      EXPECT_TRUE(rows_are_close(part.grad, want, sum_tolerance(place.dtype))) << i;
    }
  }
}

/// sB for these parts: uniform where a part is, else zero.
at::Tensor scaled_b_for(const std::vector<LoraPart>& parts, int64_t O, int64_t C) {
  const at::Tensor b = at::zeros({O, C});
  for (const LoraPart& part : parts) {
    const int64_t outputs = part.out_end - part.out_begin;
    b.narrow(0, part.out_begin, outputs).narrow(1, part.column, part.rank).copy_(uniform({outputs, part.rank}, 7));
  }
  return b;
}

/// Counts calls of kernels.
struct Calls : WorkRecorder {
  Calls() { set_work_recorder(this); }
  ~Calls() override { set_work_recorder(nullptr); }
  void begin(const Work&) override { ++count; }
  void end(const Work&) override {}
  int count = 0;
};

TEST_P(LoraProducts, GradientsOfSAndBComeTogether) {
  // Of bf16 all but the last three take one kernel on CUDA, one of them in wide blocks; those have more ranks, odd widths,
  // outputs from no multiple of 8 on.
  const std::vector<Size> sizes = {{1, 24, 3},     {15, 96, 8},  {300, 72, 16}, {33, 600, 32}, {76, 72, 20},
                                   {33, 3072, 16}, {33, 72, 33}, {40, 129, 8},  {257, 20, 4}};
  for (const auto& [N, O, R] : sizes) {
    SCOPED_TRACE(text({N, O, R}));
    Adapters made = adapters(place, O, R, shape_of_b);
    if (O % 24 == 0) {  // outputs of the adapters begin at multiples of 8
      made.parts[0].out_end = O / 3;
      made.parts[1].out_begin = O / 3;
      made.parts[1].grad = place.statistic(shape_of_b(made.parts[1])).zero_();
      made.before[1] = made.parts[1].grad.clone();
    }
    const int64_t C = thin_columns(made.parts), width = (O + C + 7) / 8 * 8;
    const auto rows = place.put(uniform({N, width}, 1)), s = place.put(uniform({N, C}, 2));
    const auto dy = rows.narrow(1, 0, O), b = place.put(scaled_b_for(made.parts, O, C));
    at::Tensor ds = rows.narrow(1, O, C);
    const at::Tensor dy_before = dy.clone();
    {
      const Calls calls;
      lora_grad_s_and_b(dy, b, s, ds, made.parts);
      EXPECT_EQ(calls.count, place.dtype == at::kBFloat16 && O % 24 == 0 && R <= 32 ? 1 : 2);
    }
    EXPECT_TRUE(at::equal(dy, dy_before));
    EXPECT_CLOSE(ds, f64(dy).matmul(f64(b)), tolerance(place.dtype));
    expect_gradients_of_b(made, dy, s, place.dtype);
  }
}

TEST(LoraProducts, BlocksAndVectorsAgree) {
  if (!has_avx512()) GTEST_SKIP() << "this CPU has no AVX-512";
  bool are_all_equal = true;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [N, O, R] : kSizes) {
      if (N == 0) continue;
      const auto dy = uniform({N, O}, 1, dtype), s = uniform({N, R}, 2, dtype);
      std::vector<at::Tensor> grads;
      for (const bool in_blocks : {true, false}) {
        const auto older_cpu = in_blocks ? nullptr : std::make_unique<BelowAvx512>();
        grads.push_back(at::zeros({O, R}));
        lora_grad_b(dy, s, {{0, R, 0, O, 1, grads.back()}});
      }
      EXPECT_CLOSE(grads[0], grads[1], kTightFloatTolerance);
      are_all_equal = are_all_equal && at::equal(grads[0], grads[1]);
    }
  }
  EXPECT_FALSE(are_all_equal) << "the same code computed both";
}

TEST(LoraProducts, RefusesPartsThatDoNotFit) {
  const auto big = at::ones({2, 4}), thin = at::ones({2, 5});
  const auto refuses_b = [&](const LoraPart& part) { EXPECT_THROW(lora_grad_b(big, thin, {part}), ShapeError); };
  const auto refuses_a = [&](const LoraPart& part) { EXPECT_THROW(lora_grad_a(thin, big, {part}), ShapeError); };
  refuses_b({0, 5, 0, 4, 1, at::zeros({3, 5})});
  refuses_b({1, 5, 0, 4, 1, at::zeros({4, 5})});
  refuses_b({0, 5, 2, 6, 1, at::zeros({4, 5})});
  refuses_a({0, 5, 0, 0, 1, at::zeros({3, 5})});
  refuses_a({-1, 5, 0, 0, 1, at::zeros({5, 4})});
  at::Tensor ds = at::zeros({2, 5}), narrow = at::zeros({2, 4});
  const LoraPart part{0, 5, 0, 4, 1, at::zeros({4, 5})};
  EXPECT_THROW(lora_grad_s_and_b(big, at::zeros({4, 5}), thin, narrow, {part}), ShapeError);
  EXPECT_THROW(lora_grad_s_and_b(big, at::zeros({5, 5}), thin, ds, {part}), ShapeError);
  EXPECT_THROW(lora_grad_s_and_b(big, at::zeros({4, 5}, at::kDouble), thin, ds, {part}), ShapeError);
  EXPECT_THROW(lora_grad_a(thin, big, std::vector<LoraPart>(5, {0, 1, 0, 0, 1, at::zeros({1, 4})})), ShapeError);
}

/// Rows whose address alone matters.
template <class T = Bf16>
Rows<const T> rows_of(std::int64_t stride, std::int64_t first = 0) {
  alignas(16) static const T memory[8] = {};
  return {memory + first, stride};
}

TEST(LoraChunks, WideBlocksLeaveFewerPartialSumsOfDs) {
  const auto product = [](std::vector<std::int64_t> widths, std::int64_t rank) {
    LoraTargets targets{};
    std::int64_t O = 0;
    for (const std::int64_t width : widths) {
      targets.list[targets.count] = {targets.count * rank, rank, O, O + width, 1, {}};
      O += width;
      ++targets.count;
    }
    return lora_product_s_and_b(rows_of(O), targets, 16384);
  };
  const LoraProduct gate_up = product({18944, 18944}, 16);  // Qwen2.5-7B
  EXPECT_TRUE(gate_up.with_ds);
  EXPECT_EQ(gate_up.num_pieces, 1);
  EXPECT_EQ(gate_up.ds_sums(), 2 * 19 * 16);
  EXPECT_EQ(gate_up.chunks().num_chunks, 3);                   // 114 blocks for 132 multiprocessors
  EXPECT_EQ(product({3584, 512, 512}, 16).ds_sums(), 9 * 16);  // q|k|v: wide blocks would be half empty
  const LoraProduct more_ranks = product({18944, 18944}, 32);
  EXPECT_EQ(more_ranks.ds_sums(), 2 * 37 * 32);
  EXPECT_GT(more_ranks.num_pieces, 1);
}

TEST(LoraChunks, PartialSumsOnTensorCoresAreFewBesideWhatIsRead) {
  const auto product = [](std::int64_t O, std::int64_t R, std::int64_t N) {
    return lora_product_s_and_b(rows_of(8), {{{0, R, 0, O, 1, {}}}, 1}, N);
  };
  const std::int64_t N = 16384, O = 3584;
  const LoraTargets targets{{{0, 16, 0, O, 1, {}}}, 1};
  const LoraProduct both = lora_product_s_and_b(rows_of(O), targets, N), alone = lora_product_b(rows_of(O), targets, N);
  EXPECT_TRUE(both.with_ds && both.on_tensor_cores && alone.on_tensor_cores);
  EXPECT_LE(8 * both.workspace_elements() * 100, 27 * 2 * N * O);
  EXPECT_LE(8 * alone.workspace_elements() * 100, 12 * 2 * N * O);
  EXPECT_GE(both.column_blocks(0) * both.chunks().num_chunks, 250);  // for 132 multiprocessors
  EXPECT_LE(both.column_blocks(0) * both.chunks().num_chunks, 264);
  for (const std::int64_t tokens : {1, 31, 4096, 65536, 1 << 20}) {
    for (const std::int64_t width : {8, 1536, 18944}) {
      for (const std::int64_t ranks : {1, 16, 64, 256}) {
        const LoraProduct p = product(width, ranks, tokens);
        EXPECT_TRUE(p.on_tensor_cores);
        const LoraChunks chunks = p.chunks();
        EXPECT_LE(p.workspace_elements(), kWorkspaceElements);
        EXPECT_EQ(p.with_ds, ranks <= 32);
        EXPECT_TRUE(chunks.num_chunks == 1 || p.column_blocks(0) * chunks.num_chunks <= p.blocks_at_once());
        EXPECT_GE(chunks.num_chunks * chunks.chunk_tokens, tokens);
        EXPECT_LT((chunks.num_chunks - 1) * chunks.chunk_tokens, tokens);
        EXPECT_LE(chunks.num_chunks, 65535);
        EXPECT_EQ(chunks.chunk_tokens % 32, 0);
      }
    }
  }
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

TEST(LoraChunks, TakeOneKernelForSAndBWhereThatReadsLess) {
  const auto together = [](Rows<const Bf16> dy, std::int64_t begin, std::int64_t end, std::int64_t rank,
                           std::int64_t N) {
    return lora_product_s_and_b(dy, {{{0, rank, begin, end, 1, {}}}, 1}, N).with_ds;
  };
  EXPECT_TRUE(together(rows_of(72), 0, 64, 32, 100));
  EXPECT_TRUE(together(rows_of(72), 8, 16, 1, 100));
  EXPECT_FALSE(together(rows_of(72), 0, 64, 33, 100));
  EXPECT_FALSE(together(rows_of(72), 4, 12, 8, 100));
  EXPECT_FALSE(together(rows_of(72), 0, 60, 8, 100));
  EXPECT_FALSE(together(rows_of(72, 1), 0, 64, 8, 100)) << "misaligned";
  EXPECT_FALSE(together(rows_of(71), 0, 64, 8, 100)) << "rows are";
  EXPECT_TRUE(together(rows_of(72), 0, 64, 32, 1 << 20));  // in pieces
  const LoraTargets narrow{{{0, 32, 0, 64, 1, {}}}, 1};
  EXPECT_FALSE(lora_product_s_and_b(rows_of(72), narrow, 1 << 20, 1 << 20).with_ds);  // not even in pieces
  EXPECT_FALSE(lora_product_s_and_b(rows_of<float>(72), {{{0, 8, 0, 64, 1, {}}}, 1}, 100).with_ds);
}

}  // namespace
}  // namespace lora_train::kernels
