// How the LoRA products are cut into blocks, chunks and pieces: nothing runs.
#include <gtest/gtest.h>

#include <vector>

#include "lora/lora_parts.h"

namespace lora_train::kernels {
namespace {

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
