// A block takes one row. The first pass reads it for the largest logit and the sum of exponentials. The second goes
// backwards and reads it again for the gradient, except the last kCached packs of a thread, which are still in
// registers: a row of up to 16384 bf16 or 8192 fp32 is read once. Memory traffic of bf16, bytes per logit:
// 2 for the loss; 2 to 4 read and 2 written with the gradient. Rows may start anywhere: elements before the first and
// after the last whole 16 bytes are handled one by one.
#include <cfloat>
#include <cmath>

#include "cross_entropy_parts.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 512;
constexpr int kCached = 4;  // packs a thread loads before it needs the first of them

/// The largest of some logits and the sum of exp(logit - largest). Starts with the lowest finite number, from which
/// minus infinity can be subtracted.
struct SoftmaxSum {
  float largest = -FLT_MAX, sum = 0;

  __device__ __forceinline__ void raise(float to) {
    const float higher = fmaxf(largest, to);
    sum *= expf(largest - higher);
    largest = higher;
  }
  __device__ __forceinline__ void add(float logit) { sum += expf(logit - largest); }
};

/// A row in whole packs, `head` elements before them and `tail` after them. Threads take packs in groups of kCached.
template <class T>
struct PackedRow {
  static constexpr int kSize = kFullPack<T>;
  using Cache = Pack<T, kSize>[kCached];

  T *row, *packed;
  unsigned head, tail;
  std::int64_t packs, groups;

  __device__ __forceinline__ PackedRow(T* begin, std::int64_t V) : row(begin) {
    const std::int64_t before =
        static_cast<std::int64_t>((16 - reinterpret_cast<std::uintptr_t>(begin) % 16) % 16 / sizeof(T));
    head = static_cast<unsigned>(before < V ? before : V);
    packed = row + head;
    packs = (V - head) / kSize;
    tail = static_cast<unsigned>(V - head - packs * kSize);
    groups = blocks_for(packs, std::int64_t{kCached} * blockDim.x);
  }

  __device__ __forceinline__ std::int64_t pack_of(std::int64_t group, int k) const {
    return (group * kCached + k) * blockDim.x + threadIdx.x;
  }
  __device__ __forceinline__ void load(std::int64_t group, Cache& cache) const {
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kCached; ++k) {
      if (pack_of(group, k) < packs) cache[k] = load_pack<kSize>(packed + pack_of(group, k) * kSize);
    }
  }
  /// The element of this thread before or after the packs; null if it has none.
  __device__ __forceinline__ T* head_element() const { return threadIdx.x < head ? row + threadIdx.x : nullptr; }
  __device__ __forceinline__ T* tail_element() const {
    return threadIdx.x < tail ? packed + packs * kSize + threadIdx.x : nullptr;
  }
};

template <class T>
__device__ __forceinline__ void add_group(const PackedRow<T>& row, std::int64_t group,
                                          const typename PackedRow<T>::Cache& cache, SoftmaxSum& sum) {
  float largest = -FLT_MAX;
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCached; ++k) {
    if (row.pack_of(group, k) >= row.packs) continue;
    for (int i = 0; i < row.kSize; ++i) largest = fmaxf(largest, to_float(cache[k].values[i]));
  }
  sum.raise(largest);
  LORA_TRAIN_UNROLL
  for (int k = 0; k < kCached; ++k) {
    if (row.pack_of(group, k) >= row.packs) continue;
    for (int i = 0; i < row.kSize; ++i) sum.add(to_float(cache[k].values[i]));
  }
}

/// The same for the whole row, for every thread; cache holds the last group.
template <class T>
__device__ __forceinline__ SoftmaxSum sum_row(const PackedRow<T>& row, typename PackedRow<T>::Cache& cache,
                                              float* slots) {
  SoftmaxSum sum;
  for (const T* element : {row.head_element(), row.tail_element()}) {
    if (element == nullptr) continue;
    sum.raise(to_float(*element));
    sum.add(to_float(*element));
  }
  for (std::int64_t group = 0; group < row.groups; ++group) {
    row.load(group, cache);
    add_group(row, group, cache, sum);
  }
  const float largest = block_max(sum.largest, slots);
  sum.raise(largest);
  sum.sum = block_sum(sum.sum, slots);
  return sum;
}

/// True if an element before `target` is as large. All threads of the block call it.
template <class T>
__device__ __forceinline__ bool has_earlier(const T* row, std::int64_t target, float largest, float* slots) {
  float found = 0;
  for (std::int64_t i = threadIdx.x; i < target; i += blockDim.x) {
    if (to_float(row[i]) == largest) found = 1;
  }
  return block_max(found, slots) != 0;
}

/// Replaces every logit with exp(logit - largest) * factor; if the factor is 0, with 0 whatever the logit.
template <class T>
__device__ __forceinline__ void write_row(const PackedRow<T>& row, typename PackedRow<T>::Cache& cache, float largest,
                                          float factor) {
  const auto gradient = [&](T& value) { store(&value, factor == 0 ? 0.0F : expf(to_float(value) - largest) * factor); };
  for (std::int64_t group = row.groups - 1; group >= 0; --group) {
    if (group != row.groups - 1) row.load(group, cache);
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kCached; ++k) {
      if (row.pack_of(group, k) >= row.packs) continue;
      for (int i = 0; i < row.kSize; ++i) gradient(cache[k].values[i]);
      store_pack<PackedRow<T>::kSize>(row.packed + row.pack_of(group, k) * row.kSize, cache[k]);
    }
  }
  for (T* element : {row.head_element(), row.tail_element()}) {
    if (element != nullptr) gradient(*element);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(Rows<T> logits, const std::int32_t* targets, const float* weights, const double* denominator,
                         float* losses, bool* correct, float* confidence, std::int64_t V) {
  LORA_TRAIN_SHARED(float, slots, 32);
  const std::int64_t m = blockIdx.x;
  const bool has_target = targets[m] >= 0;
  const std::int64_t target = has_target ? targets[m] : 0;
  const double weight = weights != nullptr ? static_cast<double>(weights[m]) : 1.0;
  const float scale = denominator != nullptr ? static_cast<float>(weight / *denominator) : 0.0F;
  const PackedRow<T> row(logits[m], V);
  const float target_logit = to_float(row.row[target]);
  typename PackedRow<T>::Cache cache;
  const SoftmaxSum s = sum_row(row, cache, slots);
  const bool is_largest = target_logit == s.largest;
  const bool is_first =
      correct != nullptr && has_target && is_largest && !has_earlier(row.row, target, s.largest, slots);
  const double from_largest = static_cast<double>(target_logit) - static_cast<double>(s.largest);
  if (threadIdx.x == 0) {
    losses[m] = has_target ? static_cast<float>(std::log(static_cast<double>(s.sum)) - from_largest) : 0.0F;
    if (correct != nullptr) correct[m] = is_first;
    if (confidence != nullptr) confidence[m] = 1.0F / s.sum;
  }
  if (denominator == nullptr) return;
  write_row(row, cache, s.largest, has_target ? scale / s.sum : 0.0F);
  __syncthreads();
  if (threadIdx.x != 0 || !has_target) return;
  const double probability = std::exp(from_largest) / static_cast<double>(s.sum);
  store(row.row + target, static_cast<float>((probability - 1.0) * static_cast<double>(scale)));
}

constexpr unsigned kSumThreads = 1024;

__global__ void __launch_bounds__(kSumThreads)
    add_losses_kernel(const float* losses, const float* weights, std::int64_t num_rows, double* sum) {
  LORA_TRAIN_SHARED(double, slots, 32);
  double own = 0;
  for (std::int64_t m = threadIdx.x; m < num_rows; m += kSumThreads) {
    const double weight = weights != nullptr ? static_cast<double>(weights[m]) : 1.0;
    own += weight * static_cast<double>(losses[m]);
  }
  own = block_sum(own, slots);
  if (threadIdx.x == 0) *sum += own;
}

}  // namespace

template <class T>
void cross_entropy_in_place_cuda(Rows<T> logits, const std::int32_t* targets, const float* weights,
                                 const double* denominator, float* losses, bool* correct, float* confidence,
                                 std::int64_t num_rows, std::int64_t V, Stream stream) {
  launch("cross_entropy_in_place", cross_entropy_kernel<T>, {num_rows}, threads_for(V / kFullPack<T>, kThreads), stream,
         logits, targets, weights, denominator, losses, correct, confidence, V);
}

void add_losses_cuda(const float* losses, const float* weights, std::int64_t num_rows, double* sum, Stream stream) {
  launch("add_losses", add_losses_kernel, {1}, kSumThreads, stream, losses, weights, num_rows, sum);
}

LORA_TRAIN_INSTANTIATE(cross_entropy_in_place_cuda);

}  // namespace lora_train::kernels
