// A group of lanes takes a head, a lane a pack of it; sums over a head are shuffles within the group. Packs of a longer
// head are read again.
// Elements moved: forward 2 read, 1 written; backward 3 read, 2 written; weight gradient 3 read.
#include "gated_norm_parts.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;

/// The head of this thread's group, and the first element of its lane.
struct HeadPlace {
  std::int64_t n, column;  ///< of the head
  int first, step, size;
  bool is_head;

  __device__ __forceinline__ HeadPlace(unsigned lanes, int num_heads, int head_size, int pack)
      : n(blockIdx.x), size(head_size) {
    const int head = static_cast<int>(blockIdx.y * (blockDim.x / lanes) + threadIdx.x / lanes);
    column = std::int64_t{head} * head_size;
    first = static_cast<int>(threadIdx.x % lanes) * pack;
    step = static_cast<int>(lanes) * pack;
    is_head = head < num_heads;
  }
};

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    gated_norm_forward_kernel(Rows<const T> x, Rows<const T> gate, const T* weight, float eps, Rows<T> y, int H, int E,
                              unsigned lanes) {
  const HeadPlace place(lanes, H, E, kSize);
  const T *const from = x[place.n] + place.column, *const z = gate[place.n] + place.column;
  Pack<T, kSize> values = {}, gates = {};  // enough for most heads: one pack per lane
  float sum = 0;
  for (int e = place.first; place.is_head && e < E; e += place.step) {
    const Pack<T, kSize> pack = load_pack<kSize>(from + e);
    for (int k = 0; k < kSize; ++k) sum += to_float(pack.values[k]) * to_float(pack.values[k]);
    if (e != place.first) continue;
    values = pack;
    gates = load_pack<kSize>(z + e);
  }
  const float rstd = rsqrtf(group_sum(sum, lanes) / static_cast<float>(E) + eps);
  for (int e = place.first; place.is_head && e < E; e += place.step) {
    if (e != place.first) {
      values = load_pack<kSize>(from + e);
      gates = load_pack<kSize>(z + e);
    }
    const Pack<T, kSize> w = load_pack<kSize>(weight + e);
    for (int k = 0; k < kSize; ++k) {
      const float g = to_float(gates.values[k]);
      store(&values.values[k],
            gated<T>(to_float(values.values[k]) * rstd, to_float(w.values[k]), g, sigmoid_for<T>(g)));
    }
    store_pack(y[place.n] + place.column + e, values);
  }
}

/// Packs of the backward's inputs.
template <class T, int kSize>
struct GatedGradients {
  Pack<T, kSize> dy, x, gate, weight;
  __device__ __forceinline__ void read(const T* from_dy, const T* from_x, const T* from_gate, const T* from_weight) {
    dy = load_pack<kSize>(from_dy);
    x = load_pack<kSize>(from_x);
    gate = load_pack<kSize>(from_gate);
    weight = load_pack<kSize>(from_weight);
  }
};

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    gated_norm_backward_kernel(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, const T* weight, float eps,
                               Rows<T> dx, Rows<T> d_gate, int H, int E, unsigned lanes) {
  const HeadPlace place(lanes, H, E, kSize);
  const std::int64_t n = place.n, c = place.column;
  GatedGradients<T, kSize> kept = {};
  float squares = 0, sum = 0;
  for (int e = place.first; place.is_head && e < E; e += place.step) {
    GatedGradients<T, kSize> now;
    now.read(dy[n] + c + e, x[n] + c + e, gate[n] + c + e, weight + e);
    for (int k = 0; k < kSize; ++k) {
      const float v = to_float(now.x.values[k]), g = to_float(now.gate.values[k]);
      squares += v * v;
      sum += to_float(now.dy.values[k]) * to_float(now.weight.values[k]) * (g * sigmoid_for<T>(g)) * v;
    }
    if (e == place.first) kept = now;
  }
  const float rstd = rsqrtf(group_sum(squares, lanes) / static_cast<float>(E) + eps);
  const float along_x = -rstd * rstd * rstd * (group_sum(sum, lanes) / static_cast<float>(E));
  for (int e = place.first; place.is_head && e < E; e += place.step) {
    if (e != place.first) kept.read(dy[n] + c + e, x[n] + c + e, gate[n] + c + e, weight + e);
    Pack<T, kSize> of_x, of_gate;
    for (int k = 0; k < kSize; ++k) {
      const float v = to_float(kept.x.values[k]), g = to_float(kept.gate.values[k]);
      const float d = to_float(kept.dy.values[k]) * to_float(kept.weight.values[k]), sigmoid = sigmoid_for<T>(g);
      store(&of_x.values[k], d * (g * sigmoid) * rstd + v * along_x);
      store(&of_gate.values[k], d * (v * rstd) * sigmoid * (1.0F + g * (1.0F - sigmoid)));
    }
    store_pack(dx[n] + c + e, of_x);
    store_pack(d_gate[n] + c + e, of_gate);
  }
}

/// Row r of workspace [chunks, E]: the sums over chunk r of all heads of all tokens. Block y takes as many packs of a
/// head as a group has lanes.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    gated_norm_partial_kernel(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, float eps, float* workspace,
                              std::int64_t num_heads, std::int64_t chunk, std::int64_t H, int E, unsigned lanes) {
  LORA_TRAIN_SHARED(float, slots, kThreads* kSize);
  const unsigned lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = kThreads / lanes;
  const int step = static_cast<int>(lanes) * kSize, first = static_cast<int>(lane) * kSize;
  const int own = static_cast<int>(blockIdx.y) * step + first;
  const std::int64_t begin = blockIdx.x * chunk, end = begin + chunk < num_heads ? begin + chunk : num_heads;
  float sums[kSize] = {};
  for (std::int64_t turn = begin; turn < end; turn += groups) {  // all lanes of a warp take the same turns
    const std::int64_t head = turn + group, n = head / H, c = (head - n * H) * E;
    const bool is_head = head < end;
    float squares = 0;
    for (int e = first; is_head && e < E; e += step) {
      const Pack<T, kSize> pack = load_pack<kSize>(x[n] + c + e);
      for (int k = 0; k < kSize; ++k) squares += to_float(pack.values[k]) * to_float(pack.values[k]);
    }
    const float rstd = rsqrtf(group_sum(squares, lanes) / static_cast<float>(E) + eps);
    if (!is_head || own >= E) continue;
    const Pack<T, kSize> d = load_pack<kSize>(dy[n] + c + own), v = load_pack<kSize>(x[n] + c + own),
                         z = load_pack<kSize>(gate[n] + c + own);
    for (int k = 0; k < kSize; ++k) {
      const float g = to_float(z.values[k]);
      sums[k] += to_float(d.values[k]) * (to_float(v.values[k]) * rstd) * (g * sigmoid_for<T>(g));
    }
  }
  for (int k = 0; k < kSize; ++k) slots[static_cast<unsigned>(k) * kThreads + threadIdx.x] = sums[k];
  __syncthreads();
  if (group != 0 || own >= E) return;
  for (unsigned other = 1; other < groups; ++other) {
    for (int k = 0; k < kSize; ++k) sums[k] += slots[static_cast<unsigned>(k) * kThreads + other * lanes + lane];
  }
  store_floats<kSize>(workspace + blockIdx.x * std::int64_t{E} + own, sums);
}

__global__ void __launch_bounds__(kThreads)
    gated_norm_total_kernel(const float* workspace, std::int64_t num_chunks, int E, float* dweight) {
  const int e = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (e >= E) return;
  float sum = 0;
  for (std::int64_t r = 0; r < num_chunks; ++r) sum += workspace[r * E + e];
  dweight[e] += sum;
}

/// Calls launch_blocks(size of packs, lanes, grid, threads) for one group per head.
template <class T, class Launch>
void for_heads(bool is_packed, const GatedNormShape& shape, const Launch& launch_blocks) {
  with_packs<T>(is_packed, [&]<int kSize>(PackSize<kSize> size) {
    const unsigned lanes = lanes_for(shape.head_size / kSize);
    const unsigned threads = threads_for(shape.num_heads * lanes, kThreads);
    launch_blocks(size, lanes, Grid{shape.num_tokens, blocks_for(shape.num_heads, threads / lanes)}, threads);
  });
}

}  // namespace

template <class T>
void gated_norm_forward_cuda(Rows<const T> x, Rows<const T> gate, const T* weight, float eps, Rows<T> y,
                             GatedNormShape shape, Stream stream) {
  const std::int64_t E = shape.head_size;
  const bool is_packed = all_fit_packs(E, x, gate, Rows<const T>{weight, 0}, y);
  for_heads<T>(is_packed, shape, [&]<int kSize>(PackSize<kSize>, unsigned lanes, Grid grid, unsigned threads) {
    launch("gated_norm_forward", gated_norm_forward_kernel<T, kSize>, grid, threads, stream, x, gate, weight, eps, y,
           shape.num_heads, E, lanes);
  });
}

template <class T>
void gated_norm_backward_cuda(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, const T* weight, float eps,
                              Rows<T> dx, Rows<T> d_gate, GatedNormShape shape, Stream stream) {
  const std::int64_t E = shape.head_size;
  const bool is_packed = all_fit_packs(E, dy, x, gate, Rows<const T>{weight, 0}, dx, d_gate);
  for_heads<T>(is_packed, shape, [&]<int kSize>(PackSize<kSize>, unsigned lanes, Grid grid, unsigned threads) {
    launch("gated_norm_backward", gated_norm_backward_kernel<T, kSize>, grid, threads, stream, dy, x, gate, weight, eps,
           dx, d_gate, shape.num_heads, E, lanes);
  });
}

template <class T>
void gated_norm_weight_gradient_cuda(Rows<const T> dy, Rows<const T> x, Rows<const T> gate, float eps, float* dweight,
                                     float* workspace, GatedNormShape shape, Stream stream) {
  const std::int64_t E = shape.head_size, num_heads = shape.num_tokens * shape.num_heads;
  if (num_heads == 0) return;
  with_packs<T>(all_fit_packs(E, dy, x, gate), [&]<int kSize>(PackSize<kSize>) {
    const unsigned lanes = lanes_for(E / kSize);
    const std::int64_t groups = kThreads / lanes;
    const std::int64_t chunk = blocks_for(blocks_for(num_heads, groups), kGatedNormChunks) * groups;
    const std::int64_t num_chunks = blocks_for(num_heads, chunk);
    launch("gated_norm_partial", gated_norm_partial_kernel<T, kSize>, {num_chunks, blocks_for(E / kSize, lanes)},
           kThreads, stream, dy, x, gate, eps, workspace, num_heads, chunk, shape.num_heads, E, lanes);
    launch("gated_norm_total", gated_norm_total_kernel, {blocks_for(E, kThreads)}, kThreads, stream, workspace,
           num_chunks, E, dweight);
  });
}

LORA_TRAIN_INSTANTIATE(gated_norm_forward_cuda);
LORA_TRAIN_INSTANTIATE(gated_norm_backward_cuda);
LORA_TRAIN_INSTANTIATE(gated_norm_weight_gradient_cuda);

}  // namespace lora_train::kernels
