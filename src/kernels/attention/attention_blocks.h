// Parts of attention as products of blocks by oneDNN (ATen's brgemm), for CPUs with AVX-512. H heads, K kv heads, E head
// size, padded with zeros to width, a multiple of 32. T is float or Bf16.
// The G = H / K heads that share a kv head form one matrix: row r is query r / G of head r % G. So short documents fill
// blocks, and the products themselves sum dk and dv over the heads. oneDNN generates code for each shape of a product
// and keeps it per thread: no shape depends on a document's length.
#pragma once

#if defined(__x86_64__)
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "attention_parts.h"
#include "gemm/gemm_parts.h"
#include "launch/avx512.h"
#include "lora_train/base/ceil_div.h"

namespace lora_train::kernels {

constexpr std::int64_t kRows = 64;        // per block
constexpr std::int64_t kStep = 32;        // keys of a product are a multiple of it, and so is width
constexpr std::int64_t kTaskBlocks = 16;  // row blocks per task of the forward, and at least in a part of the backward
constexpr std::int64_t kMinWork = 1 << 16;  // scores; with fewer, another thread costs more than it gains
constexpr float kLn2 = 0.693147181F, kInfinity = std::numeric_limits<float>::infinity();

// Documents and tasks.

struct Range {
  std::int64_t begin, end;
};

/// Rows of a group in a tensor [tokens, heads, E].
template <class T>
struct HeadRows {
  T* data;
  std::int64_t token_stride, num_heads, head_size;
  T* operator[](std::int64_t row) const { return data + row / num_heads * token_stride + row % num_heads * head_size; }
};

/// A document and a kv head: all keys, and the queries that see any.
struct Group {
  std::int64_t kv_head, query, num_rows, key, num_keys;
  std::int64_t diagonal;  ///< row r sees keys up to r / heads + diagonal
  std::int64_t heads, window, head_size;

  std::int64_t num_blocks() const { return ceil_div(num_rows, kRows); }
  std::int64_t rows_in(std::int64_t block) const { return std::min(kRows, num_rows - block * kRows); }

  Range seen_by_row(std::int64_t row) const {
    const std::int64_t last = row / heads + diagonal;
    return {window > 0 ? std::max<std::int64_t>(0, last - window + 1) : 0, last + 1};
  }
  /// The keys that any row of these blocks sees.
  Range seen_by(Range blocks) const {
    return {seen_by_row(blocks.begin * kRows).begin, seen_by_row(std::min(num_rows, blocks.end * kRows) - 1).end};
  }
  Range seen_by_block(std::int64_t block) const { return seen_by({block, block + 1}); }

  template <class T>
  HeadRows<T> rows(Rows<T> tokens) const {
    return {tokens[query] + kv_head * heads * head_size, tokens.stride, heads, head_size};
  }
  template <class T>
  HeadRows<T> keys(Rows<T> tokens) const {
    return {tokens[key] + kv_head * head_size, tokens.stride, 1, head_size};
  }
  template <class L>
  L* lse(PackedLse<L> all, std::int64_t row) const {
    return all.data + (query + row / heads) * all.token_stride + (kv_head * heads + row % heads) * all.head_stride;
  }
};

template <class T>
std::vector<Group> groups_of(const AttentionOperands<T>& call) {
  const auto& [num_heads, num_kv_heads, E] = call.sizes;
  const std::int64_t heads = num_heads / num_kv_heads;
  std::vector<Group> groups;
  for (const auto& [query, len_q, key, len_k] : call.documents) {
    const std::int64_t seeing = std::min(len_q, len_k);
    for (std::int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      groups.push_back({kv_head, query + len_q - seeing, seeing * heads, key, len_k, len_k - seeing, heads,
                        std::min(call.window, len_k), E});
    }
  }
  return groups;
}

/// fill(query) for queries that see no key.
template <class Fill>
void for_blind_queries(std::span<const AttentionDocument> documents, const Fill& fill) {
  for (const auto& [query, len_q, key, len_k] : documents) {
    for (std::int64_t i = 0; i < len_q - len_k; ++i) fill(query + i);
  }
}

/// Row blocks of a group.
struct Task {
  const Group* group;
  Range blocks;
  std::size_t index = 0;  ///< of its sums, where tasks share a group

  /// Scores, roughly.
  std::int64_t work() const {
    std::int64_t keys = 0;
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
      const Range seen = group->seen_by_block(block);
      keys += seen.end - seen.begin;
    }
    return keys * kRows;
  }
};

/// run(scratch, task) for all tasks, longest first; each thread has its own make_scratch(). Which thread takes a task
/// changes no bits.
template <class MakeScratch, class Run>
void run_tasks(std::vector<Task> tasks, const MakeScratch& make_scratch, const Run& run) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.work() > b.work(); });
  std::int64_t total = 0;
  for (const Task& task : tasks) total += task.work();
  const auto count = static_cast<std::int64_t>(tasks.size());
  std::atomic<std::size_t> next = 0;
  parallel_ranges(count, total < kMinWork ? count : 1, [&](std::int64_t, std::int64_t) {
    auto scratch = make_scratch();
    for (std::size_t i = next++; i < tasks.size(); i = next++) run(scratch, tasks[i]);
    end_brgemm();
  });
}

// Products. kPair: as many rows of a right operand are interleaved.

template <class T>
constexpr std::int64_t kPair = 4 / sizeof(T);

/// factor * row [E], rounded.
template <class T>
LORA_TRAIN_V4 void write_row(const float* row, float factor, std::int64_t E, T* to) {
  std::int64_t e = 0;
  for (; e + kLanes <= E; e += kLanes) store16(to + e, _mm512_mul_ps(load16(row + e), _mm512_set1_ps(factor)));
  for (; e < E; ++e) store(to + e, row[e] * factor);
}

// Packing of rows [count, width], where count is a multiple of 16.

/// to [total, width]: these rows, zeros after E columns and after the last row.
template <class T>
void copy_rows(HeadRows<const T> from, Range rows, std::int64_t total, std::int64_t width, T* to) {
  const auto E = static_cast<std::size_t>(from.head_size), padded = static_cast<std::size_t>(width);
  for (std::int64_t row = rows.begin; row < rows.end; ++row, to += width) {
    std::memcpy(to, from[row], E * sizeof(T));
    std::memset(to + E, 0, (padded - E) * sizeof(T));
  }
  std::memset(to, 0, static_cast<std::size_t>(total - (rows.end - rows.begin)) * padded * sizeof(T));
}

/// to [width / kPair, to_stride, kPair]: the transposed rows as a right operand.
template <class T>
LORA_TRAIN_V4 void pack_transposed(const T* rows, std::int64_t count, std::int64_t width, T* to,
                                   std::int64_t to_stride) {
  const auto* const from = reinterpret_cast<const std::uint32_t*>(rows);
  auto* const words_to = reinterpret_cast<std::uint32_t*>(to);
  const std::int64_t words = width / kPair<T>;
  for (std::int64_t row = 0; row < count; row += kLanes) {
    for (std::int64_t word = 0; word < words; word += kLanes) {
      __m512i block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = _mm512_loadu_si512(from + (row + i) * words + word);
      transpose(block);
      for (int i = 0; i < kLanes; ++i) _mm512_storeu_si512(words_to + (word + i) * to_stride + row, block[i]);
    }
  }
}

/// The rows as a right operand [count / kPair, width, kPair]; uses `pairs` if T has pairs.
LORA_TRAIN_V4 inline const Bf16* packed(const Bf16* rows, std::int64_t count, std::int64_t width, Bf16* pairs) {
  for (std::int64_t i = 0; i < count * width; i += 2 * width) {
    for (std::int64_t e = 0; e < width; e += kLanes) {
      const auto* const even = reinterpret_cast<const __m256i*>(rows + i + e);
      const auto* const odd = reinterpret_cast<const __m256i*>(rows + i + width + e);
      const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(odd)), 16);
      _mm512_storeu_si512(pairs + i + 2 * e, _mm512_or_si512(upper, _mm512_cvtepu16_epi32(_mm256_loadu_si256(even))));
    }
  }
  return pairs;
}
inline const float* packed(const float* rows, std::int64_t /*count*/, std::int64_t /*width*/, float* /*pairs*/) {
  return rows;
}

}  // namespace lora_train::kernels
#endif
