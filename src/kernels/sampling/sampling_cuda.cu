// One block per row, without a sort. A search narrows a range of keys (the logits' bits in order, or ids) until one is
// left: each pass cuts the range into kBins parts, sums the weights from its upper end to each cut, and keeps the part
// in which the sum reaches the goal. All sums are fp64 in a fixed order.
// Memory traffic: a pass reads the row, 4 bytes per logit, from L2 after the first. Passes over the whole row: 1
// greedy, 2 without top_k and top_p; each of top_k, top_p and the draw after them takes at most kLinearPasses + 11, the
// last two 1 more, or 2 with ties. exp is computed only in the range that is left.
#include <cfloat>

#include "launch/elements.h"
#include "launch/launch.h"
#include "sampling_parts.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 512;    // with 111 registers each: nothing spills
constexpr int kBins = 8, kGroup = 8;  // a thread loads kGroup logits before it needs the first of them
constexpr int kLinearPasses = 3;      // a model's logits are spread evenly, their bits are not
constexpr std::uint64_t kNotFinite = ~std::uint64_t{0};

/// Larger for a larger logit; the same for 0 and -0.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  const std::uint32_t bits = bits_of_float(logit + 0.0F);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(std::uint32_t key) {
  return float_of_bits((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// Calls visit(id, logit) for the ids of this thread in [begin, end).
template <class Visit>
__device__ __forceinline__ void for_each(const float* logits, std::int64_t begin, std::int64_t end,
                                         const Visit& visit) {
  for (std::int64_t first = begin + threadIdx.x; first < end; first += std::int64_t{kGroup} * blockDim.x) {
    float group[kGroup];
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kGroup; ++k) {
      const std::int64_t i = first + std::int64_t{blockDim.x} * k;
      group[k] = i < end ? logits[i] : 0.0F;
    }
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kGroup; ++k) {
      const std::int64_t i = first + std::int64_t{blockDim.x} * k;
      if (i < end) visit(static_cast<std::int32_t>(i), group[k]);
    }
  }
}

/// Shared memory: `partial` kBins doubles per warp, `sums` kBins.
struct Scratch {
  double *partial, *sums;
};

/// scratch.sums = the sums over the block. Halves the values per lane in each step, so that 9 shuffles sum 8 values.
__device__ __forceinline__ void add_up(double (&values)[kBins], const Scratch& scratch) {
  const unsigned lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  LORA_TRAIN_UNROLL
  for (int size = kBins / 2; size > 0; size /= 2) {
    const unsigned offset = static_cast<unsigned>(size) * 32 / kBins;
    const bool is_upper = (lane & offset) != 0;
    LORA_TRAIN_UNROLL
    for (int i = 0; i < size; ++i) {
      const double kept = is_upper ? values[i + size] : values[i], given = is_upper ? values[i] : values[i + size];
      values[i] = kept + __shfl_xor_sync(kFullWarp, given, offset);
    }
  }
  for (unsigned offset = 32 / kBins / 2; offset > 0; offset /= 2)
    values[0] += __shfl_xor_sync(kFullWarp, values[0], offset);
  constexpr unsigned kLanes = 32 / kBins;  // lanes that hold the same sum
  if (lane % kLanes == 0) scratch.partial[warp * kBins + lane / kLanes] = values[0];
  __syncthreads();
  if (threadIdx.x < kBins) {
    double sum = 0;
    for (unsigned w = 0; w < blockDim.x / kWarpSize; ++w) sum += scratch.partial[w * kBins + threadIdx.x];
    scratch.sums[threadIdx.x] = sum;
  }
  __syncthreads();
}

/// The largest over the block, for every thread.
__device__ __forceinline__ std::uint64_t block_largest(std::uint64_t value, std::uint64_t* slots) {
  const auto over_warp = [](std::uint64_t largest) {
    for (unsigned offset = 16; offset > 0; offset /= 2) {
      const auto other = __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(largest), offset);
      largest = other > largest ? other : largest;
    }
    return largest;
  };
  const std::uint64_t of_warp = over_warp(value);
  const unsigned lane = threadIdx.x % kWarpSize;
  if (lane == 0) slots[threadIdx.x / kWarpSize] = of_warp;
  __syncthreads();
  const std::uint64_t largest = over_warp(slots[lane < blockDim.x / kWarpSize ? lane : 0]);
  __syncthreads();
  return largest;
}

struct Row {
  const float* logits;
  std::int64_t V;
  double largest, temperature;

  __device__ __forceinline__ double probability(float logit) const {
    return exp((static_cast<double>(logit) - largest) / temperature);
  }
};

/// The tokens left by the filters: those above `floor`, and those at it up to id `last`. No key is below lowest_key.
struct Kept {
  double floor = 0;
  std::int32_t last = INT32_MAX;
  std::uint32_t lowest_key = 0;

  __device__ __forceinline__ bool holds(double probability, std::int32_t id) const {
    return probability > floor || (probability == floor && id <= last);
  }
};

/// The goal that a sum of weights must reach, or exceed: a number, or a share of the sum of all weights.
struct Goal {
  double number;
  bool is_share, is_strict;

  __device__ __forceinline__ bool is_met(double sum, double wanted) const {
    return is_strict ? sum > wanted : sum >= wanted;
  }
};

struct Found {
  std::uint32_t at;
  double before, wanted;  ///< the sum of the weights of larger keys; the goal
};

/// The j-th of kBins cuts through the keys [low, high], from above; the last is `low`.
__device__ __forceinline__ std::uint32_t cut_at(std::uint32_t low, std::uint32_t high, int j, bool is_linear) {
  if (j == kBins) return low;
  if (is_linear) {
    const double top = logit_of(high), bottom = logit_of(low);
    const std::uint32_t cut = key_of(static_cast<float>(top - (top - bottom) * j / kBins));
    return cut < low ? low : cut;
  }
  const std::uint64_t width = std::uint64_t{high} - low + 1;
  return static_cast<std::uint32_t>(high + 1 - (width * static_cast<unsigned>(j) + kBins - 1) / kBins);
}

/// The largest key at which the weights, summed downwards from `high`, reach the goal. If rounding keeps them from
/// reaching it, the smallest key with a weight. Keys are those of logits, or V - 1 - id. weight(id, logit) is not
/// negative, and not 0 for all keys in [low, high].
template <bool kIsById, class Weight>
__device__ Found search(const Row& row, std::uint32_t low, std::uint32_t high, const Weight& weight, const Goal& goal,
                        const Scratch& scratch) {
  Found found{low, 0, 0};
  for (int pass = 0; pass == 0 || low < high; ++pass) {
    const bool is_linear = !kIsById && pass < kLinearPasses;
    std::uint32_t cuts[kBins];
    LORA_TRAIN_UNROLL
    for (int j = 0; j < kBins; ++j) cuts[j] = cut_at(low, high, j + 1, is_linear);
    double sums[kBins] = {};
    const std::int64_t begin = kIsById ? row.V - 1 - high : 0, end = kIsById ? row.V - low : row.V;
    for_each(row.logits, begin, end, [&](std::int32_t id, float logit) {
      const std::uint32_t key = kIsById ? static_cast<std::uint32_t>(row.V - 1 - id) : key_of(logit);
      if (key < low || key > high) return;
      const double value = weight(id, logit);
      LORA_TRAIN_UNROLL
      for (int j = 0; j < kBins; ++j) sums[j] += key >= cuts[j] ? value : 0.0;
    });
    add_up(sums, scratch);
    if (pass == 0) found.wanted = goal.is_share ? goal.number * scratch.sums[kBins - 1] : goal.number;
    int part = -1, last = 0;
    for (int j = 0; j < kBins; ++j) {
      if (part < 0 && goal.is_met(found.before + scratch.sums[j], found.wanted)) part = j;
      if (j > 0 && scratch.sums[j] > scratch.sums[j - 1]) last = j;
    }
    if (part < 0) part = last;
    const std::uint32_t above = part > 0 ? cut_at(low, high, part, is_linear) - 1 : high;
    if (part > 0) found.before += scratch.sums[part - 1];
    low = cut_at(low, high, part + 1, is_linear);
    high = above;
  }
  found.at = low;
  return found;
}

/// The tokens as likely as one with logit `logit`. There are none far from it, so exp is rarely computed.
struct Equals {
  const Row& row;
  Kept kept;
  double logit, probability;

  __device__ __forceinline__ Equals(const Row& of, const Kept& left, std::uint32_t key)
      : row(of), kept(left), logit(logit_of(key)), probability(of.probability(logit_of(key))) {}
  /// Logits that round to one probability are at most about 3e-13 temperatures apart, unless it underflows.
  __device__ __forceinline__ double lowest_logit() const {
    return probability < 1e-290 ? -FLT_MAX : logit - 1e-12 * row.temperature;
  }
  __device__ __forceinline__ bool hold(std::int32_t id, float other) const {
    const double distance = static_cast<double>(other) - logit;
    if (probability >= 1e-290 && (distance > 1e-12 * row.temperature || -distance > 1e-12 * row.temperature))
      return false;
    return row.probability(other) == probability && kept.holds(probability, id);
  }
  /// A lower bound for their keys.
  __device__ __forceinline__ std::uint32_t lowest_key(std::uint32_t lowest_of_row) const {
    const double bound = lowest_logit();
    if (bound <= logit_of(lowest_of_row)) return lowest_of_row;
    const std::uint32_t key = key_of(static_cast<float>(bound));
    return key > lowest_of_row ? key - 1 : lowest_of_row;  // the conversion may round up
  }
};

/// The token that reaches the goal; ties are in the order of their ids.
__device__ std::int32_t first_to_reach(const Row& row, const Equals& equals, const Found& found, const Goal& goal,
                                       const Scratch& scratch) {
  double sums[kBins] = {};
  for_each(row.logits, 0, row.V, [&](std::int32_t id, float logit) {
    if (!equals.hold(id, logit)) return;
    sums[0] += 1;
    sums[1] += key_of(logit) > found.at ? 1 : 0;
    sums[2] += id;
  });
  add_up(sums, scratch);
  const double count = scratch.sums[0], p = equals.probability;
  if (count == 1) return static_cast<std::int32_t>(scratch.sums[2]);
  const double before = found.before - __dmul_rn(scratch.sums[1], p);
  const auto reaches = [&](double number) { return goal.is_met(before + __dmul_rn(number, p), found.wanted); };
  const double ratio = floor((found.wanted - before) / p);
  double number = ratio < 1 ? 1 : (ratio > count ? count : ratio);
  if (number > 1 && reaches(number - 1)) number -= 1;
  while (number < count && !reaches(number)) number += 1;
  const Found id = search<true>(
      row, 0, static_cast<std::uint32_t>(row.V - 1),
      [&](std::int32_t other, float logit) { return equals.hold(other, logit) ? 1.0 : 0.0; },
      Goal{number, false, false}, scratch);
  return static_cast<std::int32_t>(row.V - 1 - id.at);
}

/// Keeps the most likely until their probabilities reach the goal; `last` is the last of them.
__device__ Kept keep_until(const Row& row, const Kept& kept, std::uint32_t highest, const Goal& goal,
                           const Scratch& scratch) {
  const auto weight = [&](std::int32_t id, float logit) {
    const double p = row.probability(logit);
    return kept.holds(p, id) ? p : 0.0;
  };
  const Found found = search<false>(row, kept.lowest_key, highest, weight, goal, scratch);
  const Equals equals(row, kept, found.at);
  return {equals.probability, first_to_reach(row, equals, found, goal, scratch), equals.lowest_key(kept.lowest_key)};
}

__device__ std::int32_t sample(const Row& row, std::uint32_t lowest, std::uint32_t highest,
                               const SamplingFilter& filter, double draw, const Scratch& scratch) {
  Kept kept{0, INT32_MAX, lowest};
  if (filter.top_k > 0 && filter.top_k < row.V) {
    const auto one = [](std::int32_t, float) { return 1.0; };
    const Found found =
        search<false>(row, lowest, highest, one, {static_cast<double>(filter.top_k), false, false}, scratch);
    const Equals equals(row, kept, found.at);
    kept = {equals.probability, INT32_MAX, equals.lowest_key(lowest)};
  }
  if (filter.top_p < 1) kept = keep_until(row, kept, highest, {filter.top_p, true, false}, scratch);
  if (filter.min_p > kept.floor) {
    kept.floor = filter.min_p;
    kept.last = INT32_MAX;
  }
  const Goal goal{draw, true, true};
  if (filter.top_k > 0 || filter.top_p < 1) return keep_until(row, kept, highest, goal, scratch).last;
  const auto weight = [&](std::int32_t id, float logit) {
    const double p = row.probability(logit);
    return kept.holds(p, id) ? p : 0.0;
  };
  const Found found = search<true>(row, 0, static_cast<std::uint32_t>(row.V - 1), weight, goal, scratch);
  return static_cast<std::int32_t>(row.V - 1 - found.at);
}

__global__ void __launch_bounds__(kThreads)
    sample_tokens_kernel(Rows<const float> logits, std::int64_t V, SamplingFilter filter, const std::int64_t* keys,
                         const std::int64_t* positions, std::int32_t* chosen) {
  LORA_TRAIN_SHARED(double, partial, kThreads / kWarpSize * kBins);
  LORA_TRAIN_SHARED(double, sums, kBins);
  LORA_TRAIN_SHARED(std::uint64_t, slots, kThreads / kWarpSize);
  const std::int64_t b = blockIdx.x;
  std::uint64_t best = 0;  // the key, then low bits that are larger for a lower id
  std::uint32_t lowest = 0xFFFFFFFFu;
  for_each(logits[b], 0, V, [&](std::int32_t id, float logit) {
    const std::uint32_t key = key_of(logit);
    const std::uint64_t place = std::uint64_t{key} << 32 | ~static_cast<std::uint32_t>(id);
    best = !(fabsf(logit) <= FLT_MAX) ? kNotFinite : (place > best ? place : best);
    lowest = key < lowest ? key : lowest;
  });
  best = block_largest(best, slots);
  lowest = ~static_cast<std::uint32_t>(block_largest(~lowest, slots));
  auto id = static_cast<std::int32_t>(~static_cast<std::uint32_t>(best));
  if (best == kNotFinite) {
    id = -1;
  } else if (filter.temperature != 0) {
    const auto highest = static_cast<std::uint32_t>(best >> 32);
    const Row row{logits[b], V, static_cast<double>(logit_of(highest)), filter.temperature};
    id = sample(row, lowest, highest, filter, sampling_draw(unpacked_key(keys[b]), positions[b]), {partial, sums});
  }
  if (threadIdx.x == 0) chosen[b] = id;
}

}  // namespace

void sample_tokens_cuda(Rows<const float> logits, std::int64_t num_rows, std::int64_t V, const SamplingFilter& filter,
                        const std::int64_t* keys, const std::int64_t* positions, std::int32_t* chosen, Stream stream) {
  launch("sample_tokens", sample_tokens_kernel, {num_rows}, threads_for(blocks_for(V, kGroup), kThreads), stream,
         logits, V, filter, keys, positions, chosen);
}

}  // namespace lora_train::kernels
