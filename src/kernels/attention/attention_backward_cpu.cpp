// Scores are transposed, [keys, rows], and so are their gradients: as left operands they give dv and dk as they are, and
// as a right operand the transposed dq.
#include <functional>
#include <numeric>

#include "attention_blocks.h"

namespace lora_train::kernels {

#if defined(__x86_64__)
namespace {

constexpr std::int64_t kKeys = 256;  // per block
constexpr std::int64_t kMaxParts = 8;

/// fp32 sums of dk and dv [num_keys, width].
struct KeySums {
  std::int64_t num_keys, width;
  std::int64_t size = round_up(num_keys, kStep) * width;
  Buffer<float> k = make_buffer<float>(size), v = make_buffer<float>(size);

  void clear() {
    std::fill_n(k.get(), size, 0.0F);
    std::fill_n(v.get(), size, 0.0F);
  }
  /// The first keys, as many as `other` has.
  void add(const KeySums& other) {
    for (std::int64_t i = 0; i < other.size; ++i) k[i] += other.k[i];
    for (std::int64_t i = 0; i < other.size; ++i) v[i] += other.v[i];
  }
};

/// Rows past the last one see no key.
struct RowTerms {
  alignas(64) float lse[kRows];
  alignas(64) float delta[kRows];  ///< sum of dout * out
  alignas(64) std::int32_t last_key[kRows];
};

/// Rows of q or dout as operands.
template <class T>
struct RowBlock {
  std::int64_t width;
  Buffer<T> rows = make_buffer<T>(kRows * width), transposed = make_buffer<T>(kRows * width);
  Buffer<T> pairs = make_buffer<T>(kRows * width);
  const T* right = nullptr;

  void load(HeadRows<const T> from, Range range) {
    copy_rows(from, range, kRows, width, rows.get());
    pack_transposed(rows.get(), kRows, width, transposed.get(), kRows);
    right = packed(rows.get(), kRows, width, pairs.get());
  }
};

template <class T>
struct Scratch {
  std::int64_t max_keys, width;
  std::int64_t key_elements = round_up(max_keys, kKeys) * width;
  // Of a group. transposed_k in blocks [width, kKeys].
  Buffer<T> k = make_buffer<T>(key_elements), v = make_buffer<T>(key_elements);
  Buffer<T> transposed_k = make_buffer<T>(key_elements), pairs_of_k = make_buffer<T>(kRows * width);
  // Of a row block. dq [width, kRows].
  RowBlock<T> q{width}, dout{width};
  Buffer<T> out = make_buffer<T>(kRows * width);
  Buffer<float> dq = make_buffer<float>(kRows * width), dq_rows = make_buffer<float>(kRows * width);
  RowTerms terms{};
  // Of a row block and a key block: [kKeys, kRows].
  Buffer<float> scores = make_buffer<float>(kKeys * kRows), dscores = make_buffer<float>(kKeys * kRows);
  Buffer<T> rounded_p = make_buffer<T>(kKeys * kRows), rounded_ds = make_buffer<T>(kKeys * kRows);
  Buffer<T> ds_pairs = make_buffer<T>(kKeys * kRows);
};

template <class T>
struct Problem {
  const AttentionOperands<T>& call;
  const AttentionGradientRows<T>& gradients;
};

// Keys.

/// to [width, kKeys]: 64 rows of k transposed as a left operand.
LORA_TRAIN_V4 void transpose(const Bf16* rows, std::int64_t width, Bf16* to, Bf16* pairs) {
  pack_transposed(rows, kRows, width, pairs, kRows);
  for (std::int64_t e = 0; e < width; e += 2, to += 2 * kKeys, pairs += 2 * kRows) {
    for (std::int64_t i = 0; i < kRows; i += kLanes) {
      const __m512i pair = _mm512_loadu_si512(pairs + 2 * i);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtepi32_epi16(pair));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kKeys + i),
                          _mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16)));
    }
  }
}
void transpose(const float* rows, std::int64_t width, float* to, float* /*pairs*/) {
  pack_transposed(rows, kRows, width, to, kKeys);
}

template <class T>
void load_keys(const Group& group, const Problem<T>& problem, Scratch<T>& s) {
  const std::int64_t total = round_up(group.num_keys, kRows);
  copy_rows(group.keys(problem.call.k), {0, group.num_keys}, total, s.width, s.k.get());
  copy_rows(group.keys(problem.call.v), {0, group.num_keys}, total, s.width, s.v.get());
  for (std::int64_t key = 0; key < total; key += kRows) {
    const std::int64_t in_block = key % kKeys;
    transpose(s.k.get() + key * s.width, s.width, s.transposed_k.get() + (key - in_block) * s.width + in_block,
              s.pairs_of_k.get());
  }
}

template <class T>
void write_keys(const Group& group, const KeySums& sums, const Problem<T>& problem) {
  const HeadRows<T> dk = group.keys(problem.gradients.dk), dv = group.keys(problem.gradients.dv);
  for (std::int64_t key = 0; key < group.num_keys; ++key) {
    write_row(sums.k.get() + key * sums.width, problem.call.scale, group.head_size, dk[key]);
    write_row(sums.v.get() + key * sums.width, 1.0F, group.head_size, dv[key]);
  }
}

// Rows.

template <class T>
LORA_TRAIN_V4 float dot(const T* a, const T* b, std::int64_t width) {
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t e = 0; e < width; e += kLanes) sum = _mm512_fmadd_ps(load16(a + e), load16(b + e), sum);
  return _mm512_reduce_add_ps(sum);
}

template <class T>
void load_rows(const Group& group, std::int64_t block, const Problem<T>& problem, Scratch<T>& s) {
  const std::int64_t begin = block * kRows, count = group.rows_in(block);
  s.q.load(group.rows(problem.call.q), {begin, begin + count});
  s.dout.load(group.rows(problem.gradients.dout), {begin, begin + count});
  copy_rows(group.rows(problem.gradients.out), {begin, begin + count}, kRows, s.width, s.out.get());
  s.terms = {};
  std::fill_n(s.terms.last_key, kRows, -1);
  for (std::int64_t r = 0; r < count; ++r) {
    s.terms.last_key[r] = static_cast<std::int32_t>(group.seen_by_row(begin + r).end - 1);
    s.terms.lse[r] = kLog2E * *group.lse(problem.gradients.lse, begin + r);
    s.terms.delta[r] = dot(s.dout.rows.get() + r * s.width, s.out.get() + r * s.width, s.width);
  }
  std::fill_n(s.dq.get(), kRows * s.width, 0.0F);
}

template <class T>
void write_rows(const Group& group, std::int64_t block, const Problem<T>& problem, Scratch<T>& s) {
  const HeadRows<T> to = group.rows(problem.gradients.dq);
  pack_transposed(s.dq.get(), s.width, kRows, s.dq_rows.get(), s.width);
  for (std::int64_t r = 0; r < group.rows_in(block); ++r) {
    write_row(s.dq_rows.get() + r * s.width, problem.call.scale, group.head_size, to[block * kRows + r]);
  }
}

// Scores.

/// Scores, the gradients of probabilities, and what becomes of them. [num_keys, kRows].
template <class T>
struct Tile {
  float *scores, *dp;
  T *p, *ds;
  std::int64_t key, num_keys, window;
};

/// p = 2^(scale * scores - lse), ds = p * (dp - delta).
template <bool kIsMasked, class T>
LORA_TRAIN_V4 void differentiate(const Tile<T>& tile, const RowTerms& terms, float scale) {
  const __m512i window = _mm512_set1_epi32(static_cast<std::int32_t>(tile.window));
  for (std::int64_t r = 0; r < kRows; r += kLanes) {
    const __m512 lse = load16(terms.lse + r), delta = load16(terms.delta + r);
    const __m512i last_key = _mm512_loadu_si512(terms.last_key + r);
    for (std::int64_t j = 0; j < tile.num_keys; ++j) {
      const std::int64_t at = j * kRows + r;
      __m512 p = exp2_16(_mm512_fmsub_ps(load16(tile.scores + at), _mm512_set1_ps(scale), lse));
      __m512 ds = _mm512_mul_ps(p, _mm512_sub_ps(load16(tile.dp + at), delta));
      if constexpr (kIsMasked) {
        // As unsigned numbers, keys after the last one are far away.
        const __m512i key = _mm512_set1_epi32(static_cast<std::int32_t>(tile.key + j));
        const __mmask16 is_seen = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(last_key, key), window);
        p = _mm512_maskz_mov_ps(is_seen, p);
        ds = _mm512_maskz_mov_ps(is_seen, ds);
      }
      store16(tile.p + at, p);
      store16(tile.ds + at, ds);
    }
  }
}

/// The keys of a key block that a row block sees, in whole steps. p and ds of floats take the place of their sources.
template <class T>
Tile<T> tile_of(const Group& group, std::int64_t block, std::int64_t key_block, const Scratch<T>& s) {
  const Range seen = group.seen_by_block(block);
  const std::int64_t begin = std::max(key_block * kKeys, seen.begin / kStep * kStep);
  const std::int64_t end = std::min((key_block + 1) * kKeys, round_up(seen.end, kStep));
  Tile<T> tile = {s.scores.get(),
                  s.dscores.get(),
                  s.rounded_p.get(),
                  s.rounded_ds.get(),
                  begin,
                  end - begin,
                  group.window > 0 ? group.window : group.num_keys};
  if constexpr (std::is_same_v<T, float>) {
    tile.p = tile.scores;
    tile.ds = tile.dp;
  }
  return tile;
}

bool is_masked(const Group& group, std::int64_t block, std::int64_t key, std::int64_t num_keys) {
  return group.rows_in(block) < kRows || key + num_keys > group.seen_by_row(block * kRows).end ||
         key < group.seen_by_row(block * kRows + kRows - 1).begin;
}

template <class T>
void add_block(const Group& group, std::int64_t block, std::int64_t key_block, float scale, KeySums& sums,
               Scratch<T>& s) {
  const Tile<T> tile = tile_of(group, block, key_block, s);
  const std::int64_t n = tile.num_keys, width = s.width, offset = tile.key * width;
  brgemm({n, kRows, width, width, kRows, kRows}, s.k.get() + offset, s.q.transposed.get(), tile.scores);
  brgemm({n, kRows, width, width, kRows, kRows}, s.v.get() + offset, s.dout.transposed.get(), tile.dp);
  is_masked(group, block, tile.key, n) ? differentiate<true>(tile, s.terms, scale)
                                       : differentiate<false>(tile, s.terms, scale);
  brgemm({n, width, kRows, kRows, width, width, true}, tile.p, s.dout.right, sums.v.get() + offset);
  brgemm({n, width, kRows, kRows, width, width, true}, tile.ds, s.q.right, sums.k.get() + offset);
  const std::int64_t first = key_block * kKeys;
  brgemm({width, kRows, n, kKeys, kRows, kRows, true}, s.transposed_k.get() + first * width + tile.key - first,
         packed(tile.ds, n, kRows, s.ds_pairs.get()), s.dq.get());
}

/// Writes dq of the task's rows and what they add to dk and dv.
template <class T>
void run(const Task& task, const Problem<T>& problem, KeySums& sums, Scratch<T>& s) {
  const Group& group = *task.group;
  sums.clear();
  for (std::int64_t block = task.blocks.begin; block < task.blocks.end; ++block) {
    load_rows(group, block, problem, s);
    const Range seen = group.seen_by_block(block);
    for (std::int64_t key = seen.begin / kKeys; key * kKeys < seen.end; ++key) {
      add_block(group, block, key, problem.call.scale * kLog2E, sums, s);
    }
    write_rows(group, block, problem, s);
  }
}

// Parts: of a group's rows. Their sums are added in this order whether one task takes all or each has its own task, so
// that bits do not depend on it.

std::vector<Task> parts_of(const Group& group) {
  const std::int64_t blocks = group.num_blocks(), count = std::clamp<std::int64_t>(blocks / kTaskBlocks, 1, kMaxParts);
  std::vector<Task> parts;
  for (std::int64_t i = 0; i < count; ++i) parts.push_back({&group, {blocks * i / count, blocks * (i + 1) / count}});
  return parts;
}

/// The first part's sums become those of the group.
KeySums sums_of(const Task& part, std::int64_t width) {
  const bool is_first = part.blocks.begin == 0;
  return {is_first ? part.group->num_keys : part.group->seen_by(part.blocks).end, width};
}

template <class T>
void run_groups(const std::vector<Task>& groups, const Problem<T>& problem, std::int64_t max_keys, std::int64_t width) {
  run_tasks(
      groups,
      [&] {
        return Scratch<T>{max_keys, width};
      },
      [&](Scratch<T>& s, const Task& task) {
        const std::vector<Task> parts = parts_of(*task.group);
        load_keys(*task.group, problem, s);
        KeySums sums = sums_of(parts[0], width);
        run(parts[0], problem, sums, s);
        for (std::size_t i = 1; i < parts.size(); ++i) {
          KeySums part_sums = sums_of(parts[i], width);
          run(parts[i], problem, part_sums, s);
          sums.add(part_sums);
        }
        write_keys(*task.group, sums, problem);
      });
}

template <class T>
void run_parts(const std::vector<Task>& groups, const Problem<T>& problem, std::int64_t max_keys, std::int64_t width) {
  std::vector<KeySums> sums;
  std::vector<Task> parts;
  for (const Task& group : groups) {
    for (Task part : parts_of(*group.group)) {
      part.index = sums.size();
      sums.push_back(sums_of(part, width));
      parts.push_back(part);
    }
  }
  run_tasks(
      parts,
      [&] {
        return Scratch<T>{max_keys, width};
      },
      [&](Scratch<T>& s, const Task& part) {
        load_keys(*part.group, problem, s);
        run(part, problem, sums[part.index], s);
      });
  const auto count = static_cast<std::int64_t>(groups.size());
  parallel_ranges(count, 1, [&](std::int64_t begin, std::int64_t end) {
    KeySums* first = nullptr;
    for (const Task& part : parts) {
      const std::int64_t group = part.group - groups[0].group;
      if (group < begin || group >= end) continue;
      part.blocks.begin == 0 ? static_cast<void>(first = &sums[part.index]) : first->add(sums[part.index]);
      if (part.blocks.end == part.group->num_blocks()) write_keys(*part.group, *first, problem);
    }
  });
}

/// True if whole groups would leave threads idle for more than an eighth of the time.
bool is_unbalanced(const std::vector<Task>& groups) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(num_threads())), work;
  for (const Task& group : groups) work.push_back(group.work());
  std::sort(work.begin(), work.end(), std::greater());
  for (const std::int64_t scores : work) *std::min_element(loads.begin(), loads.end()) += scores;
  const std::int64_t total = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
  return total > kMinWork && *std::max_element(loads.begin(), loads.end()) * std::ssize(loads) > total + total / 8;
}

}  // namespace

template <class T>
void attention_backward_blocks(const AttentionOperands<T>& call, const AttentionGradientRows<T>& gradients) {
  const std::vector<Group> groups = groups_of(call);
  std::vector<Task> tasks;
  std::int64_t max_keys = 0;
  for (const Group& group : groups) {
    tasks.push_back({&group, {0, group.num_blocks()}});
    max_keys = std::max(max_keys, group.num_keys);
  }
  const auto run_all = is_unbalanced(tasks) ? run_parts<T> : run_groups<T>;
  run_all(tasks, {call, gradients}, max_keys, round_up(call.sizes.head_size, kStep));
  for_blind_queries(call.documents, [&](std::int64_t query) {
    std::fill_n(gradients.dq[query], call.sizes.num_heads * call.sizes.head_size, T{});
  });
}

#else
template <class T>
void attention_backward_blocks(const AttentionOperands<T>&, const AttentionGradientRows<T>&) {}
#endif

LORA_TRAIN_INSTANTIATE(attention_backward_blocks);

}  // namespace lora_train::kernels
