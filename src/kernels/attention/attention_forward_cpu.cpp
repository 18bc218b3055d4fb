// FlashAttention 2 (arxiv.org/abs/2307.08691), in blocks.
#include <cmath>

#include "attention_blocks.h"

namespace lora_train::kernels {

#if defined(__x86_64__)
namespace {

constexpr std::int64_t kKeys = 512;  // per block

/// Of a row: the largest score so far in powers of 2, and the sum of probabilities relative to it.
struct Statistics {
  float largest = -kInfinity, total = 0;
};

template <class T>
struct Scratch {
  std::int64_t width;
  // Of the task's rows.
  Buffer<T> q = make_buffer<T>(kTaskBlocks * kRows * width);
  Buffer<float> sums = make_buffer<float>(kTaskBlocks * kRows * width);
  std::vector<Statistics> statistics{};
  // Of a block of keys.
  Buffer<T> k = make_buffer<T>(kKeys * width), v = make_buffer<T>(kKeys * width);
  Buffer<T> packed_k = make_buffer<T>(kKeys * width), packed_v = make_buffer<T>(kKeys * width);
  const T* values = nullptr;
  // Of both.
  Buffer<float> scores = make_buffer<float>(kRows * kKeys);
  Buffer<T> rounded = make_buffer<T>(kRows * kKeys);
  T* probabilities() const {
    if constexpr (std::is_same_v<T, float>) return scores.get();
    return rounded.get();
  }
};

/// Lanes [begin, end).
LORA_TRAIN_V4_INLINE __mmask16 lanes(std::int64_t begin, std::int64_t end) {
  return static_cast<__mmask16>(first_lanes(end) & ~first_lanes(begin));
}

LORA_TRAIN_V4_INLINE float largest_of(const float* scores, Range seen, float scale) {
  __m512 largest = _mm512_set1_ps(-kInfinity);
  for (std::int64_t i = seen.begin / kLanes * kLanes; i < seen.end; i += kLanes) {
    const __m512 scaled = _mm512_mul_ps(load16(scores + i), _mm512_set1_ps(scale));
    largest = _mm512_mask_max_ps(largest, lanes(seen.begin - i, seen.end - i), largest, scaled);
  }
  return _mm512_reduce_max_ps(largest);
}

/// probabilities [num_keys] = 2^(scale * scores - largest), 0 outside `seen`. Returns their sum.
template <class T>
LORA_TRAIN_V4_INLINE float exponentiate(const float* scores, Range seen, std::int64_t num_keys, float scale,
                                        float largest, T* probabilities) {
  __m512 total = _mm512_setzero_ps();
  std::int64_t i = 0;
  for (; i + kLanes <= seen.begin; i += kLanes) store16(probabilities + i, _mm512_setzero_ps());
  for (; i < seen.end; i += kLanes) {
    const __m512 x = _mm512_fmsub_ps(load16(scores + i), _mm512_set1_ps(scale), _mm512_set1_ps(largest));
    const __m512 p = _mm512_maskz_mov_ps(lanes(seen.begin - i, seen.end - i), exp2_16(x));
    total = _mm512_add_ps(total, p);
    store16(probabilities + i, p);
  }
  for (; i < num_keys; i += kLanes) store16(probabilities + i, _mm512_setzero_ps());
  return _mm512_reduce_add_ps(total);
}

/// Probabilities of a row relative to its largest score so far, to which the sums [width] are rescaled.
template <class T>
LORA_TRAIN_V4 void softmax(const float* scores, Range seen, std::int64_t num_keys, float scale, T* probabilities,
                           Statistics& row, float* sums, std::int64_t width) {
  // Where nothing was seen yet, the largest is -inf, and -inf less -inf is NaN.
  if (seen.begin >= seen.end) return static_cast<void>(std::fill_n(probabilities, num_keys, T{}));
  const float largest = std::max(row.largest, largest_of(scores, seen, scale));
  const float total = exponentiate(scores, seen, num_keys, scale, largest, probabilities);
  if (largest != row.largest) {
    const __m512 factor = exp2_16(_mm512_set1_ps(row.largest - largest));
    row.total *= _mm512_cvtss_f32(factor);
    for (std::int64_t e = 0; e < width; e += kLanes) store16(sums + e, _mm512_mul_ps(load16(sums + e), factor));
  }
  row.total += total;
  row.largest = largest;
}

/// Row block `index` of the task, and the packed keys, which begin at `key`.
template <class T>
void add_block(const Task& task, std::int64_t index, std::int64_t key, float scale, Scratch<T>& s) {
  const Group& group = *task.group;
  const std::int64_t block = task.blocks.begin + index, width = s.width;
  const Range seen = group.seen_by_block(block);
  const std::int64_t begin = std::max<std::int64_t>(0, seen.begin - key) / kStep * kStep;
  const std::int64_t num_keys = std::min(kKeys, round_up(seen.end - key, kStep)) - begin;
  if (num_keys <= 0) return;
  float* const sums = s.sums.get() + index * kRows * width;
  T* const p = s.probabilities();
  brgemm({kRows, num_keys, width, width, kKeys, kKeys}, s.q.get() + index * kRows * width,
         s.packed_k.get() + begin * kPair<T>, s.scores.get());
  for (std::int64_t r = 0; r < group.rows_in(block); ++r) {
    const Range own = group.seen_by_row(block * kRows + r);
    const Range in_block = {std::max<std::int64_t>(0, own.begin - key - begin),
                            std::min(num_keys, own.end - key - begin)};
    softmax(s.scores.get() + r * kKeys, in_block, num_keys, scale, p + r * kKeys,
            s.statistics[static_cast<std::size_t>(index * kRows + r)], sums + r * width, width);
  }
  brgemm({kRows, width, num_keys, kKeys, width, width, true}, p, s.values + begin * width, sums);
}

template <class T>
void load_keys(const Group& group, const AttentionOperands<T>& call, Range keys, Scratch<T>& s) {
  const std::int64_t total = round_up(keys.end - keys.begin, kStep);
  copy_rows(group.keys(call.k), keys, total, s.width, s.k.get());
  copy_rows(group.keys(call.v), keys, total, s.width, s.v.get());
  pack_transposed(s.k.get(), total, s.width, s.packed_k.get(), kKeys);
  s.values = packed(s.v.get(), total, s.width, s.packed_v.get());
}

template <class T>
void write_rows(const Group& group, Range rows, Rows<T> out, PackedLse<float> lse, const Scratch<T>& s) {
  const HeadRows<T> to = group.rows(out);
  const float* sums = s.sums.get();
  for (std::int64_t row = rows.begin; row < rows.end; ++row, sums += s.width) {
    const auto& [largest, total] = s.statistics[static_cast<std::size_t>(row - rows.begin)];
    write_row(sums, 1 / total, group.head_size, to[row]);
    *group.lse(lse, row) = (largest + std::log2(total)) * kLn2;
  }
}

template <class T>
void run(const Task& task, const AttentionOperands<T>& call, Rows<T> out, PackedLse<float> lse, Scratch<T>& s) {
  const Group& group = *task.group;
  const std::int64_t num_blocks = task.blocks.end - task.blocks.begin;
  const Range rows = {task.blocks.begin * kRows, std::min(group.num_rows, task.blocks.end * kRows)};
  const Range seen = group.seen_by(task.blocks);
  copy_rows(group.rows(call.q), rows, num_blocks * kRows, s.width, s.q.get());
  std::fill_n(s.sums.get(), num_blocks * kRows * s.width, 0.0F);
  s.statistics.assign(static_cast<std::size_t>(num_blocks * kRows), {});
  for (std::int64_t key = seen.begin / kStep * kStep; key < seen.end; key += kKeys) {
    load_keys(group, call, {key, std::min(seen.end, key + kKeys)}, s);
    for (std::int64_t i = 0; i < num_blocks; ++i) add_block(task, i, key, call.scale * kLog2E, s);
  }
  write_rows(group, rows, out, lse, s);
}

}  // namespace

template <class T>
void attention_forward_blocks(const AttentionOperands<T>& call, Rows<T> out, PackedLse<float> lse) {
  const std::int64_t H = call.sizes.num_heads, E = call.sizes.head_size;
  const std::vector<Group> groups = groups_of(call);
  std::vector<Task> tasks;
  for (const Group& group : groups) {
    for (std::int64_t block = 0; block < group.num_blocks(); block += kTaskBlocks) {
      tasks.push_back({&group, {block, std::min(group.num_blocks(), block + kTaskBlocks)}});
    }
  }
  run_tasks(
      std::move(tasks), [&, width = round_up(E, kStep)] { return Scratch<T>{width}; },
      [&](Scratch<T>& scratch, const Task& task) { run(task, call, out, lse, scratch); });
  for_blind_queries(call.documents, [&](std::int64_t query) {
    std::fill_n(out[query], H * E, T{});
    for (std::int64_t h = 0; h < H; ++h) lse.data[query * lse.token_stride + h * lse.head_stride] = -kInfinity;
  });
}

#else
bool has_attention_blocks() { return false; }
template <class T>
void attention_forward_blocks(const AttentionOperands<T>&, Rows<T>, PackedLse<float>) {}
#endif

LORA_TRAIN_INSTANTIATE(attention_forward_blocks);

}  // namespace lora_train::kernels
