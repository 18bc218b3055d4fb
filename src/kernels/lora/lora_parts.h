// Contracts in lora.h; T is float or Bf16. Both gradients compute thin^T big; lora_grad_b then transposes it. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "launch/elements.h"
#include "lora_train/kernels/dispatch/implementation.h"

namespace lora_train::kernels {

/// A LoraPart (lora.h).
struct LoraTarget {
  std::int64_t column, rank, out_begin, out_end;
  float scale;
  Rows<float> grad;
};

/// An upper bound on the adapters per projection.
constexpr int kMaxLoraTargets = 4;

struct LoraTargets {
  LoraTarget list[kMaxLoraTargets];
  int count;

  const LoraTarget* begin() const { return list; }
  const LoraTarget* end() const { return list + count; }
  /// The end of the last adapter's columns in the thin operand.
  std::int64_t num_columns() const {
    std::int64_t most = 0;
    for (const LoraTarget& target : *this)
      most = target.column + target.rank > most ? target.column + target.rank : most;
    return most;
  }
};

// On a CPU.

template <class T>
void lora_grad_b_cpu(Rows<const T> dy, Rows<const T> s, const LoraTargets& targets, std::int64_t N);

/// x has D columns.
template <class T>
void lora_grad_a_cpu(Rows<const T> ds, Rows<const T> x, const LoraTargets& targets, std::int64_t N, std::int64_t D);

// On a GPU in stream order: pointers are device memory.

/// Ranks per pass over the big matrix.
constexpr std::int64_t kLoraRanks = 64;

/// Split-K of thin^T big along the tokens: every chunk writes [ranks, columns] partial sums to the workspace.
struct LoraChunks {
  std::int64_t num_chunks, chunk_tokens;
  std::int64_t padded_columns;  ///< a multiple of 8
  std::int64_t workspace_elements;
};

/// An upper bound on the number of partial sums.
constexpr std::int64_t kMaxPartialSums = 12 * 1024 * 1024;

/// The chunks on fp32 cores, for N tokens, C columns and R ranks: enough to keep a large GPU busy, with at most
/// kMaxPartialSums partial sums (or one chunk, if that alone has more). A chunk has at least 128 tokens, so that it
/// writes far less than it reads. Small models and micro-batches would leave SMs without a block; their chunks go down
/// to 32 tokens.
constexpr LoraChunks lora_chunks(std::int64_t N, std::int64_t C, std::int64_t R) {
  constexpr std::int64_t kManyTokens = 128, kFewTokens = 32, kThreads = 132 * 1024, kFewBlocks = 2 * 132,
                         kBlockColumns = 512;
  const std::int64_t ranks = std::min(R, kLoraRanks), padded = (C + 7) / 8 * 8;
  const std::int64_t block_threads = (ranks + 7) / 8 * 64, column_blocks = (C + kBlockColumns - 1) / kBlockColumns;
  const std::int64_t wanted = kThreads / (block_threads * std::max<std::int64_t>(column_blocks, 1));
  const std::int64_t fit = kMaxPartialSums / std::max<std::int64_t>(ranks * padded, 1);
  const std::int64_t most = std::max<std::int64_t>(1, std::min(wanted, fit));
  const std::int64_t for_blocks = N * column_blocks / kFewBlocks;
  const std::int64_t tokens = std::max(std::clamp(for_blocks, kFewTokens, kManyTokens), (N + most - 1) / most);
  const std::int64_t num_chunks = (N + tokens - 1) / tokens;
  return {num_chunks, tokens, padded, num_chunks * ranks * padded};
}

/// On tensor cores: columns of big per warp, ranks per tile, the step of a chunk's tokens, SMs of a large GPU.
constexpr std::int64_t kWarpColumns = 64, kChunkStep = 32, kTensorSms = 132;
constexpr int kTileRanks = 16;
/// The most warps per block, and the number of such blocks per SM: 12 warps (with dS, 16) keep enough loads in flight,
/// 8 if the sums of more ranks take the registers.
constexpr std::int64_t most_warps(std::int64_t tiles, bool with_ds) { return !with_ds ? 4 : tiles == 1 ? 16 : 8; }
constexpr std::int64_t resident_blocks(std::int64_t tiles, bool with_ds) { return with_ds ? 1 : tiles <= 2 ? 3 : 2; }

/// The chunks on tensor cores: as many as possible with at most `blocks` blocks.
constexpr LoraChunks lora_tensor_chunks(std::int64_t N, std::int64_t column_blocks, std::int64_t padded, std::int64_t R,
                                        std::int64_t blocks) {
  const std::int64_t ranks = std::min(R, kLoraRanks);
  const std::int64_t fit = kMaxPartialSums / std::max<std::int64_t>(ranks * padded, 1);
  const std::int64_t wanted = blocks / std::max<std::int64_t>(column_blocks, 1);
  const std::int64_t most = std::max<std::int64_t>(1, std::min(wanted, fit)), tokens = (N + most - 1) / most;
  const std::int64_t rounded = std::max<std::int64_t>(1, (tokens + kChunkStep - 1) / kChunkStep) * kChunkStep;
  const std::int64_t num_chunks = (N + rounded - 1) / rounded;
  return {num_chunks, rounded, padded, num_chunks * ranks * padded};
}

/// One product thin^T big: columns [begin, begin + width) of big, columns [column, column + ranks) of the thin side.
struct LoraSlice {
  std::int64_t begin, width, column, ranks;
};

/// Products computed together. They read big once per kLoraRanks ranks of the largest slice. With dS they take the
/// tokens in pieces, one pair of launches each, whose partial sums fit the workspace.
struct LoraProduct {
  LoraSlice slices[kMaxLoraTargets];
  int num_slices;
  std::int64_t num_tokens;
  bool on_tensor_cores = false;  ///< else fp32 cores
  bool with_ds = false;          ///< dS = big sB too, from the same read
  std::int64_t num_pieces = 1;
  std::int64_t num_sms = kTensorSms;  ///< SMs for the chunks on tensor cores to fill

  std::int64_t most_ranks() const {
    std::int64_t most = 0;
    for (int i = 0; i < num_slices; ++i) most = std::max(most, slices[i].ranks);
    return most;
  }
  /// Columns of the partial sums, in which every slice begins at a multiple of 8.
  std::int64_t padded_columns() const {
    std::int64_t sum = 0;
    for (int i = 0; i < num_slices; ++i) sum += (slices[i].width + 7) / 8 * 8;
    return sum;
  }
  std::int64_t tiles() const { return (std::min(most_ranks(), kLoraRanks) + kTileRanks - 1) / kTileRanks; }
  std::int64_t num_passes() const { return (most_ranks() + kLoraRanks - 1) / kLoraRanks; }
  /// Warps per block, on tensor cores. With dS, wide blocks leave fewer partial sums of it, but take columns in larger
  /// steps, which must pay off.
  std::int64_t num_warps() const {
    const std::int64_t most = most_warps(tiles(), with_ds);
    std::int64_t columns = 0, taken = 0;
    for (int i = 0; i < num_slices; ++i) {
      columns += slices[i].width;
      taken += (slices[i].width + most * kWarpColumns - 1) / (most * kWarpColumns) * most * kWarpColumns;
    }
    return with_ds && 16 * taken > 17 * columns ? 8 : most;
  }
  std::int64_t block_columns() const { return num_warps() * kWarpColumns; }
  /// Column blocks of slice i, on tensor cores.
  std::int64_t column_blocks(int i) const { return (slices[i].width + block_columns() - 1) / block_columns(); }
  /// Blocks that a large GPU runs at once, on tensor cores.
  std::int64_t blocks_at_once() const {
    return num_sms * resident_blocks(tiles(), with_ds) * most_warps(tiles(), with_ds) / num_warps();
  }
  LoraChunks chunks() const {
    if (!on_tensor_cores) return lora_chunks(num_tokens, padded_columns(), most_ranks());
    std::int64_t blocks = 0;
    for (int i = 0; i < num_slices; ++i) blocks += column_blocks(i);
    return lora_tensor_chunks(num_tokens, blocks, padded_columns(), most_ranks(), blocks_at_once());
  }
  /// Partial sums of dS per token: `ranks` for every column block of a slice.
  std::int64_t ds_sums() const {
    std::int64_t sum = 0;
    for (int i = 0; with_ds && i < num_slices; ++i) sum += column_blocks(i) * slices[i].ranks;
    return sum;
  }
  std::int64_t partial_sums() const { return chunks().workspace_elements + num_tokens * ds_sums(); }
  /// Calls run(first token, product) for every piece.
  template <class Run>
  void for_each_piece(const Run& run) const {
    const std::int64_t even = (num_tokens + num_pieces - 1) / num_pieces;
    const std::int64_t tokens = num_pieces == 1 ? num_tokens : (even + kChunkStep - 1) / kChunkStep * kChunkStep;
    for (std::int64_t first = 0; first < num_tokens; first += tokens) {
      LoraProduct piece = *this;
      piece.num_tokens = std::min(tokens, num_tokens - first);
      piece.num_pieces = 1;
      run(first, piece);
    }
  }
  /// The partial sums of the largest piece.
  std::int64_t workspace_elements() const {
    std::int64_t most = 0;
    for_each_piece([&](std::int64_t, const LoraProduct& piece) { most = std::max(most, piece.partial_sums()); });
    return most;
  }
  std::int64_t flops() const {
    std::int64_t sum = 0;
    for (int i = 0; i < num_slices; ++i) sum += 2 * num_tokens * slices[i].width * slices[i].ranks;
    return with_ds ? 2 * sum : sum;
  }
};

/// True if every slice of big can be read in packs of 16 bytes. Checks the address, so big may be a view into aligned
/// memory.
template <class T>
bool fits_packs(const LoraProduct& product, Rows<const T> big) {
  for (int i = 0; i < product.num_slices; ++i) {
    if (!fits_packs(big, product.slices[i].width, product.slices[i].begin)) return false;
  }
  return true;
}

/// The product of lora_grad_b: every part has its own columns of dy and of s.
template <class T>
LoraProduct lora_product_b(Rows<const T> dy, const LoraTargets& targets, std::int64_t N) {
  LoraProduct product{{}, targets.count, N};
  for (int i = 0; i < targets.count; ++i) {
    const LoraTarget& t = targets.list[i];
    product.slices[i] = {t.out_begin, t.out_end - t.out_begin, t.column, t.rank};
  }
  product.on_tensor_cores = std::is_same_v<T, Bf16> && fits_packs(product, dy);
  return product;
}

/// The product of lora_grad_a: all parts share x.
template <class T>
LoraProduct lora_product_a(Rows<const T> x, const LoraTargets& targets, std::int64_t N, std::int64_t D) {
  LoraProduct product{{{0, D, 0, targets.num_columns()}}, 1, N};
  product.on_tensor_cores = std::is_same_v<T, Bf16> && fits_packs(product, x);
  return product;
}

/// The product of lora_grad_s_and_b. Sets with_ds if one kernel computes both: on tensor cores, with at most
/// kMaxRanksWithDs ranks, in pieces whose partial sums fit workspace_elements. Otherwise dS takes a separate GEMM.
template <class T>
LoraProduct lora_product_s_and_b(Rows<const T> dy, const LoraTargets& targets, std::int64_t N,
                                 std::int64_t workspace_elements = kWorkspaceElements) {
  const LoraProduct product = lora_product_b(dy, targets, N);
  if (!product.on_tensor_cores || product.most_ranks() > kMaxRanksWithDs) return product;
  LoraProduct both = product;
  both.with_ds = true;
  // Chunks of all column blocks have at most these sums of dB, whatever the number of tokens in a piece.
  const std::int64_t columns = std::max(both.padded_columns(), both.blocks_at_once() * both.block_columns());
  const std::int64_t room = workspace_elements - both.most_ranks() * columns;
  const std::int64_t fit = room / std::max<std::int64_t>(both.ds_sums(), 1) / kChunkStep * kChunkStep;
  constexpr std::int64_t kFewTokens = 1024;  // fewer would not fill a GPU
  if (fit < std::min(N, kFewTokens)) return product;
  both.num_pieces = N == 0 ? 1 : (N + fit - 1) / fit;
  return both;
}

/// For a product of lora_product_b(dy, targets, N). Here and below, workspace [product.workspace_elements()] is aligned
/// to 16 bytes.
template <class T>
void lora_grad_b_cuda(Rows<const T> dy, Rows<const T> s, const LoraTargets& targets, const LoraProduct& product,
                      float* workspace, Stream stream);

/// For a product of lora_product_a(x, targets, N, D).
template <class T>
void lora_grad_a_cuda(Rows<const T> ds, Rows<const T> x, const LoraTargets& targets, const LoraProduct& product,
                      float* workspace, Stream stream);

/// Computes all C columns of dS, and dB, for a product of lora_product_s_and_b(dy, targets, N) with_ds.
void lora_grad_s_and_b_cuda(Rows<const Bf16> dy, Rows<const Bf16> scaled_b, Rows<const Bf16> s,
                            const LoraTargets& targets, const LoraProduct& product, std::int64_t C, Rows<Bf16> ds,
                            float* workspace, Stream stream);

}  // namespace lora_train::kernels
