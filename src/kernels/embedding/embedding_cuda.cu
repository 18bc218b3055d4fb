// Forward: one block per token copies, or scales, its row; picked rows are copied in the same way. Elements moved: 1
// read, 1 written.
// Backward without atomics: tokens are sorted by id, so that equal ids are neighbours; the block of the first one sums
// them all, 8 tokens at a time. Elements moved: 1 read per token; 4 bytes read and written per distinct id.
#include "embedding_parts.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    embedding_forward_kernel(const std::int32_t* ids, Rows<const T> weight, const std::int64_t* trained,
                             std::int64_t num_trained, Rows<const float> values, float scale, Rows<T> out,
                             std::int64_t D) {
  LORA_TRAIN_SHARED(std::int64_t, found, 1);
  const std::int64_t n = blockIdx.x, id = ids[n];
  std::int64_t slot = -1;
  if (num_trained > 0) {
    if (threadIdx.x == 0) found[0] = -1;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < num_trained; i += blockDim.x) {
      if (trained[i] == id) found[0] = i;
    }
    __syncthreads();
    slot = found[0];
  }
  const std::int64_t step = std::int64_t{blockDim.x} * kSize;
  for (std::int64_t d = std::int64_t{threadIdx.x} * kSize; d < D; d += step) {
    Pack<T, kSize> pack;
    if (slot < 0) {
      pack = load_pack<kSize>(weight[id] + d);
    } else {
      for (int i = 0; i < kSize; ++i) store(&pack.values[i], values[slot][d + i]);
    }
    if (scale != 1) {
      for (int i = 0; i < kSize; ++i) store(&pack.values[i], scale * to_float(pack.values[i]));
    }
    store_pack<kSize>(out[n] + d, pack);
  }
}

constexpr unsigned kColumnLanes = 32, kTokenLanes = 8;
constexpr int kUnroll = 4;  // tokens that a thread reads at once

/// to[d] += scale * sum of the tokens order[first...] that have this id, for the columns of this block. Lane l takes
/// tokens l, l + 8, ...; then lanes are added in order.
template <class T, int kSize>
__device__ __forceinline__ void add_run(const std::int32_t* ids, const std::int32_t* order, Rows<const T> dout,
                                        float scale, float* to, std::int64_t first, std::int64_t id,
                                        std::int64_t num_tokens, std::int64_t D) {
  LORA_TRAIN_SHARED(float, partial, kTokenLanes* kColumnLanes* kSize);
  const unsigned column = threadIdx.x % kColumnLanes, lane = threadIdx.x / kColumnLanes;
  const std::int64_t begin = std::int64_t{blockIdx.y} * kColumnLanes * kSize, d = begin + column * kSize;
  float sums[kSize] = {};
  bool goes_on = d < D;
  const unsigned count = static_cast<unsigned>(num_tokens);  // fits: order is int32
  for (unsigned j = static_cast<unsigned>(first) + lane; goes_on; j += kTokenLanes * kUnroll) {
    Pack<T, kSize> packs[kUnroll] = {};
    bool is_in[kUnroll];
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kUnroll; ++k) {
      const unsigned at = j + static_cast<unsigned>(k) * kTokenLanes;
      const std::int32_t token = at < count ? order[at] : -1;
      is_in[k] = token >= 0 && ids[token] == id;
      if (is_in[k]) packs[k] = load_pack<kSize>(dout[token] + d);
    }
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kUnroll; ++k) {
      if (!is_in[k]) continue;
      for (int i = 0; i < kSize; ++i) sums[i] += to_float(packs[k].values[i]);
    }
    goes_on = is_in[kUnroll - 1];
  }
  for (int i = 0; i < kSize; ++i) partial[(lane * kColumnLanes + column) * kSize + static_cast<unsigned>(i)] = sums[i];
  __syncthreads();
  constexpr unsigned kWidth = kColumnLanes * kSize;
  for (unsigned t = threadIdx.x; t < kWidth && begin + t < D; t += blockDim.x) {
    float sum = 0;
    for (unsigned other = 0; other < kTokenLanes; ++other) sum += partial[other * kWidth + t];
    to[begin + t] += scale * sum;
  }
}

template <class T, int kSize>
__global__ void __launch_bounds__(kColumnLanes* kTokenLanes)
    embedding_backward_kernel(const std::int32_t* ids, const std::int32_t* order, Rows<const T> dout, float scale,
                              Rows<float> dweight, std::int64_t num_tokens, std::int64_t D) {
  const std::int64_t first = blockIdx.x, id = ids[order[first]];
  if (first > 0 && ids[order[first - 1]] == id) return;
  add_run<T, kSize>(ids, order, dout, scale, dweight[id], first, id, num_tokens, D);
}

template <class T, int kSize>
__global__ void __launch_bounds__(kColumnLanes* kTokenLanes)
    trainable_rows_backward_kernel(const std::int32_t* ids, const std::int32_t* order, Rows<const T> dout, float scale,
                                   const std::int64_t* trained, Rows<float> grads, std::int64_t num_tokens,
                                   std::int64_t D) {
  const std::int64_t id = trained[blockIdx.x];
  std::int64_t begin = 0, end = num_tokens;  // the first token with an id not below it
  while (begin < end) {
    const std::int64_t middle = (begin + end) / 2;
    if (ids[order[middle]] < id) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  add_run<T, kSize>(ids, order, dout, scale, grads[blockIdx.x], begin, id, num_tokens, D);
}

// Picked rows: one block each.

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) gather_rows_kernel(Rows<const T> from, const std::int64_t* rows, Rows<T> to,
                                                               std::int64_t num_rows, std::int64_t D) {
  const std::int64_t row = rows[blockIdx.x];
  row < num_rows ? copy_row<kSize>(from[row], to[blockIdx.x], D) : clear_row<kSize>(to[blockIdx.x], D);
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) scatter_rows_kernel(Rows<const T> from, const std::int64_t* rows,
                                                                Rows<T> to, std::int64_t num_rows, std::int64_t D) {
  if (rows[blockIdx.x] < num_rows) copy_row<kSize>(from[blockIdx.x], to[rows[blockIdx.x]], D);
}

constexpr unsigned kListThreads = 1024;

__global__ void __launch_bounds__(kListThreads)
    take_next_kernel(const std::int64_t* rows, const std::int32_t* targets, const float* weights, std::int64_t* next,
                     std::int64_t* picked_rows, std::int32_t* picked_targets, float* picked_weights,
                     std::int64_t count) {
  const std::int64_t first = *next;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    picked_rows[i] = rows[first + i];
    picked_targets[i] = targets[first + i];
    if (weights != nullptr) picked_weights[i] = weights[first + i];
  }
  __syncthreads();  // all threads have read the start
  if (threadIdx.x == 0) *next = first + count;
}

}  // namespace

template <class T>
void embedding_forward_cuda(const std::int32_t* ids, Rows<const T> weight, const std::int64_t* trained,
                            std::int64_t num_trained, Rows<const float> values, float scale, Rows<T> out,
                            std::int64_t num_tokens, std::int64_t D, Stream stream) {
  with_packs<T>(fits_packs(weight, D) && fits_packs(out, D), [&]<int kSize>(PackSize<kSize>) {
    launch("embedding_forward", embedding_forward_kernel<T, kSize>, {num_tokens}, even_threads_for(D / kSize, kThreads),
           stream, ids, weight, trained, num_trained, values, scale, out, D);
  });
}

template <class T>
void embedding_backward_cuda(const std::int32_t* ids, const std::int32_t* order, Rows<const T> dout, float scale,
                             Rows<float> dweight, std::int64_t num_tokens, std::int64_t D, Stream stream) {
  with_packs<T>(fits_packs(dout, D), [&]<int kSize>(PackSize<kSize>) {
    launch("embedding_backward", embedding_backward_kernel<T, kSize>, {num_tokens, blocks_for(D / kSize, kColumnLanes)},
           kColumnLanes * kTokenLanes, stream, ids, order, dout, scale, dweight, num_tokens, D);
  });
}

template <class T>
void trainable_rows_backward_cuda(const std::int32_t* ids, const std::int32_t* order, Rows<const T> dout, float scale,
                                  const std::int64_t* trained, std::int64_t num_trained, Rows<float> grads,
                                  std::int64_t num_tokens, std::int64_t D, Stream stream) {
  with_packs<T>(fits_packs(dout, D), [&]<int kSize>(PackSize<kSize>) {
    launch("trainable_rows_backward", trainable_rows_backward_kernel<T, kSize>,
           {num_trained, blocks_for(D / kSize, kColumnLanes)}, kColumnLanes * kTokenLanes, stream, ids, order, dout,
           scale, trained, grads, num_tokens, D);
  });
}

template <class T>
void gather_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                      std::int64_t num_rows, std::int64_t D, Stream stream) {
  with_packs<T>(fits_packs(from, D) && fits_packs(to, D), [&]<int kSize>(PackSize<kSize>) {
    launch("gather_rows", gather_rows_kernel<T, kSize>, {num_picked}, even_threads_for(D / kSize, kThreads), stream,
           from, rows, to, num_rows, D);
  });
}

template <class T>
void scatter_rows_cuda(Rows<const T> from, const std::int64_t* rows, Rows<T> to, std::int64_t num_picked,
                       std::int64_t num_rows, std::int64_t D, Stream stream) {
  with_packs<T>(fits_packs(from, D) && fits_packs(to, D), [&]<int kSize>(PackSize<kSize>) {
    launch("scatter_rows", scatter_rows_kernel<T, kSize>, {num_picked}, even_threads_for(D / kSize, kThreads), stream,
           from, rows, to, num_rows, D);
  });
}

void take_next_cuda(const std::int64_t* rows, const std::int32_t* targets, const float* weights, std::int64_t* next,
                    std::int64_t* picked_rows, std::int32_t* picked_targets, float* picked_weights, std::int64_t count,
                    Stream stream) {
  launch("take_next", take_next_kernel, {1}, threads_for(count, kListThreads), stream, rows, targets, weights, next,
         picked_rows, picked_targets, picked_weights, count);
}

LORA_TRAIN_INSTANTIATE(embedding_forward_cuda);
LORA_TRAIN_INSTANTIATE(embedding_backward_cuda);
LORA_TRAIN_INSTANTIATE(trainable_rows_backward_cuda);
LORA_TRAIN_INSTANTIATE(gather_rows_cuda);
LORA_TRAIN_INSTANTIATE(scatter_rows_cuda);

}  // namespace lora_train::kernels
