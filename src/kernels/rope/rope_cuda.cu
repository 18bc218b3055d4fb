// One block per token; a group of lanes takes its heads in turn. A lane has a pack of the lower elements of pairs and
// the pack of the upper ones. Sums over a head are shuffles within the group.
// Elements moved: rope 1 read, 1 written; with norm 1 read, 2 written (raw); its backward 2 read, 1 written; weight
// gradients 2 read. The backwards also copy v if it is elsewhere. The table's rows are read from memory once per token,
// then cached.
#include "launch/elements.h"
#include "launch/launch.h"
#include "rope_parts.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 256;

/// The lane group of this thread, and its first head.
struct Place {
  unsigned lane, group, groups;  ///< groups of the block
  __device__ explicit Place(unsigned lanes_per_head)
      : lane(threadIdx.x % lanes_per_head), group(threadIdx.x / lanes_per_head), groups(blockDim.x / lanes_per_head) {}
};

/// Where pair i of the E / 2 pairs of a head is. The first R / 2 rotate; the others take the dimensions that pass
/// through by halves.
struct Pairs {
  int turning, count;  ///< a head is short: offsets in it fit
  __device__ explicit Pairs(const HeadCounts& heads)
      : turning(static_cast<int>(heads.rotary / 2)), count(static_cast<int>(heads.head_size / 2)) {}
  __device__ int low(int i) const { return i < turning ? i : turning + i; }
  __device__ int high(int i) const { return i < turning ? turning + i : count + i; }
};

/// One pack of cos, and of sin times the direction; for pairs that pass through, 1 and 0. `scale` is
/// RotationTable::scale_of a head, rounded to its dtype.
template <int kSize>
struct Rotation {
  float cos[kSize], sin[kSize];
  __device__ Rotation(const RotationTable& table, std::int64_t n, int first, float direction) {
    const std::int64_t position = table.positions[n];
    load_floats<kSize>(table.cos[position] + first, cos);
    load_floats<kSize>(table.sin[position] + first, sin);
    for (int i = 0; i < kSize; ++i) sin[i] *= direction;
  }
  __device__ Rotation(const RotationTable& table, const Pairs& pairs, std::int64_t n, int first, float direction) {
    for (int i = 0; i < kSize; ++i) {
      cos[i] = 1;
      sin[i] = 0;
    }
    if (first < pairs.turning) *this = Rotation(table, n, first, direction);
  }
  __device__ float first(int i, float a, float b) const { return a * cos[i] - b * sin[i]; }
  __device__ float second(int i, float a, float b) const { return b * cos[i] + a * sin[i]; }
  template <class T>
  __device__ void apply(Pack<T, kSize>& low, Pack<T, kSize>& high) const {
    for (int i = 0; i < kSize; ++i) {
      const float a = to_float(low.values[i]), b = to_float(high.values[i]);
      store(&low.values[i], first(i, a, b));
      store(&high.values[i], second(i, a, b));
    }
  }
  /// Rotates, then scales.
  template <class T>
  __device__ void apply_before(float scale, Pack<T, kSize>& low, Pack<T, kSize>& high) const {
    for (int i = 0; i < kSize; ++i) {
      const float a = to_float(low.values[i]), b = to_float(high.values[i]);
      store(&low.values[i], rounded_to<T>(first(i, a, b)) * scale);
      store(&high.values[i], rounded_to<T>(second(i, a, b)) * scale);
    }
  }
  /// Scales, then rotates.
  template <class T>
  __device__ void apply_after(float scale, Pack<T, kSize>& low, Pack<T, kSize>& high) const {
    for (int i = 0; i < kSize; ++i) {
      const float a = rounded_to<T>(to_float(low.values[i]) * scale);
      const float b = rounded_to<T>(to_float(high.values[i]) * scale);
      store(&low.values[i], first(i, a, b));
      store(&high.values[i], second(i, a, b));
    }
  }
};

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(Rows<T> x, RotationTable table, bool inverse, HeadCounts heads, unsigned lanes) {
  const Place place(lanes);
  const std::int64_t n = blockIdx.x;
  const int half = static_cast<int>(heads.rotary / 2);
  const float q_scale = rounded_to<T>(table.scale_of(n, /*is_q=*/true));
  for (int i = static_cast<int>(place.lane) * kSize; i < half; i += static_cast<int>(lanes) * kSize) {
    const Rotation<kSize> rotation(table, n, i, inverse ? -1.0F : 1.0F);
    for (std::int64_t head = place.group; head < heads.total(); head += place.groups) {
      T* const at = x[n] + head * heads.head_size + i;
      Pack<T, kSize> a = load_pack<kSize>(at), b = load_pack<kSize>(at + half);
      const float scale = head < heads.num_q ? q_scale : 1.0F;
      inverse ? rotation.apply_after(scale, a, b) : rotation.apply_before(scale, a, b);
      store_pack<kSize>(at, a);
      store_pack<kSize>(at + half, b);
    }
  }
}

/// Copies v of token n from d to dx. All threads of the block call it.
template <class T, int kSize>
__device__ __forceinline__ void copy_values(const QkvGradients<T>& d, Rows<T> dx, std::int64_t n,
                                            const HeadCounts& heads) {
  if (d.v.data == nullptr) return;
  copy_row<kSize>(d.v[n], dx[n] + heads.total() * heads.head_size, heads.num_k * heads.head_size);
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    rope_backward_kernel(QkvGradients<T> d, RotationTable table, Rows<T> dx, HeadCounts heads, unsigned lanes) {
  const Place place(lanes);
  const std::int64_t n = blockIdx.x;
  if (n >= d.num_tokens) return clear_row<kSize>(dx[n], heads.width());
  const int half = static_cast<int>(heads.rotary / 2);
  const float q_scale = rounded_to<T>(table.scale_of(n, /*is_q=*/true));
  for (int i = static_cast<int>(place.lane) * kSize; i < half; i += static_cast<int>(lanes) * kSize) {
    const Rotation<kSize> rotation(table, n, i, -1.0F);
    for (std::int64_t head = place.group; head < heads.total(); head += place.groups) {
      const T* const from = d.head(n, head, heads) + i;
      Pack<T, kSize> a = load_pack<kSize>(from), b = load_pack<kSize>(from + half);
      rotation.apply_after(head < heads.num_q ? q_scale : 1.0F, a, b);
      T* const to = dx[n] + head * heads.head_size + i;
      store_pack<kSize>(to, a);
      store_pack<kSize>(to + half, b);
    }
  }
  copy_values<T, kSize>(d, dx, n, heads);
}

/// Copies the dimensions of q and k that pass through. Within rope_backward_kernel, this would cost registers, also of
/// models that rotate whole heads.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    rope_pass_through_kernel(QkvGradients<T> d, Rows<T> dx, HeadCounts heads, unsigned lanes) {
  const Place place(lanes);
  const std::int64_t n = blockIdx.x;
  const int E = static_cast<int>(heads.head_size), step = static_cast<int>(lanes) * kSize;
  const int begin = static_cast<int>(heads.rotary) + static_cast<int>(place.lane) * kSize;
  for (std::int64_t head = place.group; head < heads.total(); head += place.groups) {
    const T* const from = d.head(n, head, heads);
    T* const to = dx[n] + head * E;
    for (int i = begin; i < E; i += step) store_pack<kSize>(to + i, load_pack<kSize>(from + i));
  }
}

// 4 blocks per multiprocessor: 64 registers. Without a number, nvcc takes 40 for elements, and spills.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads, 4)
    qk_norm_rope_forward_kernel(Rows<T> x, RotationTable table, QkNormWeights<T> weights, float eps, Rows<T> raw,
                                Rows<float> rstd, HeadCounts heads, unsigned lanes) {
  const Place place(lanes);
  const std::int64_t n = blockIdx.x;
  const Pairs pairs(heads);
  const int begin = static_cast<int>(place.lane) * kSize, step = static_cast<int>(lanes) * kSize;
  for (std::int64_t first = 0; first < heads.total(); first += place.groups) {
    const std::int64_t head = first + place.group;
    const bool is_head = head < heads.total();
    T* const at = x[n] + head * heads.head_size;
    Pack<T, kSize> a = {}, b = {};  // enough for most heads: one pack per lane
    float sum = 0;
    for (int i = begin; is_head && i < pairs.count; i += step) {
      const Pack<T, kSize> low = load_pack<kSize>(at + pairs.low(i)), high = load_pack<kSize>(at + pairs.high(i));
      for (int k = 0; k < kSize; ++k) {
        sum += to_float(low.values[k]) * to_float(low.values[k]) + to_float(high.values[k]) * to_float(high.values[k]);
      }
      if (i != begin) continue;
      a = low;
      b = high;
    }
    sum = group_sum(sum, lanes);
    if (!is_head) continue;
    const float scale = rsqrtf(sum / static_cast<float>(heads.head_size) + eps);
    if (place.lane == 0) rstd[head][n] = scale;
    const NormWeight<T> weight = weights.of_head(head, heads);
    T* const copy = raw[n] + head * heads.head_size;
    for (int i = begin; i < pairs.count; i += step) {
      const int low = pairs.low(i), high = pairs.high(i);
      if (i != begin) {
        a = load_pack<kSize>(at + low);
        b = load_pack<kSize>(at + high);
      }
      store_pack<kSize>(copy + low, a);
      store_pack<kSize>(copy + high, b);
      const Rotation<kSize> rotation(table, pairs, n, i, 1.0F);
      const Pack<T, kSize> of_a = load_pack<kSize>(weight.values + low), of_b = load_pack<kSize>(weight.values + high);
      for (int k = 0; k < kSize; ++k) {
        const float p =
            rounded_to<T>(times_norm_weight<T>(to_float(a.values[k]) * scale, to_float(of_a.values[k]), weight.offset));
        const float q =
            rounded_to<T>(times_norm_weight<T>(to_float(b.values[k]) * scale, to_float(of_b.values[k]), weight.offset));
        store(&a.values[k], rotation.first(k, p, q));
        store(&b.values[k], rotation.second(k, p, q));
      }
      store_pack<kSize>(at + low, a);
      store_pack<kSize>(at + high, b);
    }
  }
}

/// A pack of pairs of a head: gradients after the inverse rotation, rounded to T, and the values before the norm.
template <class T, int kSize>
struct RotatedBack {
  Pack<T, kSize> d_low, d_high, x_low, x_high;
  __device__ void read(const T* d, const T* x, int low, int high, const Rotation<kSize>& rotation) {
    d_low = load_pack<kSize>(d + low);
    d_high = load_pack<kSize>(d + high);
    x_low = load_pack<kSize>(x + low);
    x_high = load_pack<kSize>(x + high);
    rotation.apply(d_low, d_high);
  }
};

/// Sum of d * weight * x over a pack, `at` elements into the head.
template <class T, int kSize>
__device__ __forceinline__ float weighted(const Pack<T, kSize>& d, NormWeight<T> weight, int at,
                                          const Pack<T, kSize>& x) {
  const Pack<T, kSize> w = load_pack<kSize>(weight.values + at);
  float sum = 0;
  for (int k = 0; k < kSize; ++k) {
    sum += to_float(d.values[k]) * (to_float(w.values[k]) + weight.offset) * to_float(x.values[k]);
  }
  return sum;
}

template <class T, int kSize>
__device__ __forceinline__ void put_gradient(T* to, const Pack<T, kSize>& d, NormWeight<T> weight, int at,
                                             const Pack<T, kSize>& x, float scale, float along_x) {
  const Pack<T, kSize> w = load_pack<kSize>(weight.values + at);
  Pack<T, kSize> out;
  for (int k = 0; k < kSize; ++k) {
    const float gradient = to_float(d.values[k]) * (to_float(w.values[k]) + weight.offset);
    store(&out.values[k], gradient * scale + to_float(x.values[k]) * along_x);
  }
  store_pack<kSize>(to + at, out);
}

template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_backward_kernel(QkvGradients<T> d, Rows<const T> raw, Rows<const float> rstd, RotationTable table,
                                 QkNormWeights<T> weights, Rows<T> dx, HeadCounts heads, unsigned lanes) {
  const Place place(lanes);
  const std::int64_t n = blockIdx.x;
  if (n >= d.num_tokens) return clear_row<kSize>(dx[n], heads.width());
  const Pairs pairs(heads);
  const int begin = static_cast<int>(place.lane) * kSize, step = static_cast<int>(lanes) * kSize;
  for (std::int64_t first = 0; first < heads.total(); first += place.groups) {
    const std::int64_t head = first + place.group;
    const bool is_head = head < heads.total();
    const T* const from = d.head(n, head, heads);  // read only if there is such a head
    const T* const x = raw[n] + head * heads.head_size;
    const NormWeight<T> weight = weights.of_head(head, heads);
    RotatedBack<T, kSize> kept = {};
    float sum = 0;
    for (int i = begin; is_head && i < pairs.count; i += step) {
      const int low = pairs.low(i), high = pairs.high(i);
      RotatedBack<T, kSize> now;
      now.read(from, x, low, high, Rotation<kSize>(table, pairs, n, i, -1.0F));
      sum += weighted(now.d_low, weight, low, now.x_low) + weighted(now.d_high, weight, high, now.x_high);
      if (i == begin) kept = now;
    }
    sum = group_sum(sum, lanes);
    if (!is_head) continue;
    const float scale = rstd[head][n];
    const float along_x = -scale * scale * scale * (sum / static_cast<float>(heads.head_size));
    T* const to = dx[n] + head * heads.head_size;
    for (int i = begin; i < pairs.count; i += step) {
      const int low = pairs.low(i), high = pairs.high(i);
      if (i != begin) kept.read(from, x, low, high, Rotation<kSize>(table, pairs, n, i, -1.0F));
      put_gradient(to, kept.d_low, weight, low, kept.x_low, scale, along_x);
      put_gradient(to, kept.d_high, weight, high, kept.x_high, scale, along_x);
    }
  }
  copy_values<T, kSize>(d, dx, n, heads);
}

constexpr unsigned kColumns = 32, kTokenLanes = 16;  // per block that sums columns

/// Row c of workspace [chunks, 2E]: sums of chunk c of the tokens, E for q and E for k. A thread has the two
/// elements of a pair: c of the E pairs of q and k.
template <class T>
__global__ void __launch_bounds__(kColumns* kTokenLanes)
    qk_norm_partial_kernel(QkvGradients<T> d, Rows<const T> raw, Rows<const float> rstd, RotationTable table,
                           float* workspace, std::int64_t chunk, HeadCounts heads) {
  LORA_TRAIN_SHARED(float, low_sums, kColumns* kTokenLanes);
  LORA_TRAIN_SHARED(float, high_sums, kColumns* kTokenLanes);
  const unsigned column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  const std::int64_t c = std::int64_t{blockIdx.y} * kColumns + column, E = heads.head_size, half = E / 2;
  const std::int64_t end = (blockIdx.x + 1) * chunk < d.num_tokens ? (blockIdx.x + 1) * chunk : d.num_tokens;
  const std::int64_t first_head = c < half ? 0 : heads.num_q, end_head = c < half ? heads.num_q : heads.total();
  const Pairs pairs(heads);
  const int i = static_cast<int>(c % half), at_low = pairs.low(i), at_high = pairs.high(i);
  float low = 0, high = 0;
  for (std::int64_t n = blockIdx.x * chunk + lane; c < E && n < end; n += kTokenLanes) {
    const Rotation<1> rotation(table, pairs, n, i, -1.0F);
    for (std::int64_t head = first_head; head < end_head; ++head) {
      const T *const from = d.head(n, head, heads), *const x = raw[n] + head * E;
      const float a = to_float(from[at_low]), b = to_float(from[at_high]), scale = rstd[head][n];
      low += rounded_to<T>(rotation.first(0, a, b)) * (to_float(x[at_low]) * scale);
      high += rounded_to<T>(rotation.second(0, a, b)) * (to_float(x[at_high]) * scale);
    }
  }
  low_sums[threadIdx.x] = low;
  high_sums[threadIdx.x] = high;
  __syncthreads();
  if (lane != 0 || c >= E) return;
  for (unsigned other = 1; other < kTokenLanes; ++other) {
    low += low_sums[other * kColumns + column];
    high += high_sums[other * kColumns + column];
  }
  float* const to = workspace + blockIdx.x * 2 * E + (c < half ? 0 : E);
  to[at_low] = low;
  to[at_high] = high;
}

__global__ void __launch_bounds__(kThreads)
    qk_norm_total_kernel(const float* workspace, std::int64_t num_chunks, std::int64_t E, float* dq, float* dk) {
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  float* const to = c < E ? dq : dk;
  if (c >= 2 * E || to == nullptr) return;
  float sum = 0;
  for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) sum += workspace[chunk * 2 * E + c];
  to[c % E] += sum;
}

/// One block per token: packed_kernel if every row allows packs, else the element kernel.
template <class T, class Kernel, class... Arguments>
void launch_tokens(const char* name, bool is_packed, Kernel packed_kernel, Kernel kernel, std::int64_t num_tokens,
                   const HeadCounts& heads, Stream stream, Arguments... arguments) {
  const unsigned lanes = lanes_for(heads.head_size / 2 / (is_packed ? kFullPack<T> : 1));
  launch(name, is_packed ? packed_kernel : kernel, {num_tokens},
         threads_for(heads.total() * std::int64_t{lanes}, kThreads), stream, arguments..., lanes);
}

/// Also true only if no pack has pairs that rotate and pairs that do not.
template <class T>
bool fits_packs_of(const RotationTable& table, const HeadCounts& heads) {
  const std::int64_t turning = heads.rotary / 2;
  return turning % kFullPack<T> == 0 && fits_packs(table.cos, turning) && fits_packs(table.sin, turning);
}

template <class T>
bool fits_packs_of(QkvGradients<T> d, std::int64_t half) {
  return fits_packs(d.q, half) && fits_packs(d.k, half) && (d.v.data == nullptr || fits_packs(d.v, half));
}

template <class T>
bool fits_packs_of(QkNormWeights<T> weights, std::int64_t half) {
  return fits_packs(Rows<const T>{weights.q, 0}, half) && fits_packs(Rows<const T>{weights.k, 0}, half);
}

}  // namespace

template <class T>
void rope_cuda(Rows<T> x, RotationTable table, bool inverse, std::int64_t num_tokens, HeadCounts heads, Stream stream) {
  const std::int64_t half = heads.head_size / 2;
  launch_tokens<T>("rope", fits_packs(x, half) && fits_packs_of<T>(table, heads), rope_kernel<T, kFullPack<T>>,
                   rope_kernel<T, 1>, num_tokens, heads, stream, x, table, inverse, heads);
}

template <class T>
void qk_norm_rope_forward_cuda(Rows<T> x, RotationTable table, QkNormWeights<T> weights, float eps, Rows<T> raw,
                               Rows<float> rstd, std::int64_t num_tokens, HeadCounts heads, Stream stream) {
  const std::int64_t half = heads.head_size / 2;
  const bool is_packed =
      fits_packs(x, half) && fits_packs(raw, half) && fits_packs_of<T>(table, heads) && fits_packs_of(weights, half);
  launch_tokens<T>("qk_norm_rope_forward", is_packed, qk_norm_rope_forward_kernel<T, kFullPack<T>>,
                   qk_norm_rope_forward_kernel<T, 1>, num_tokens, heads, stream, x, table, weights, eps, raw, rstd,
                   heads);
}

template <class T>
void rope_backward_cuda(QkvGradients<T> d, RotationTable table, Rows<T> dx, std::int64_t num_tokens, HeadCounts heads,
                        Stream stream) {
  const std::int64_t half = heads.head_size / 2;
  const bool is_packed = fits_packs_of(d, half) && fits_packs(dx, half) && fits_packs_of<T>(table, heads);
  launch_tokens<T>("rope_backward", is_packed, rope_backward_kernel<T, kFullPack<T>>, rope_backward_kernel<T, 1>,
                   num_tokens, heads, stream, d, table, dx, heads);
  if (heads.rotary == heads.head_size) return;
  launch_tokens<T>("rope_pass_through", is_packed, rope_pass_through_kernel<T, kFullPack<T>>,
                   rope_pass_through_kernel<T, 1>, d.num_tokens, heads, stream, d, dx, heads);
}

template <class T>
void qk_norm_rope_backward_cuda(QkvGradients<T> d, Rows<const T> raw, Rows<const float> rstd, RotationTable table,
                                QkNormWeights<T> weights, Rows<T> dx, std::int64_t num_tokens, HeadCounts heads,
                                Stream stream) {
  const std::int64_t half = heads.head_size / 2;
  const bool is_packed = fits_packs_of(d, half) && fits_packs(raw, half) && fits_packs(dx, half) &&
                         fits_packs_of<T>(table, heads) && fits_packs_of(weights, half);
  launch_tokens<T>("qk_norm_rope_backward", is_packed, qk_norm_rope_backward_kernel<T, kFullPack<T>>,
                   qk_norm_rope_backward_kernel<T, 1>, num_tokens, heads, stream, d, raw, rstd, table, weights, dx,
                   heads);
}

template <class T>
void qk_norm_weight_gradient_cuda(QkvGradients<T> d, Rows<const T> raw, Rows<const float> rstd, RotationTable table,
                                  float* dq, float* dk, float* workspace, HeadCounts heads, Stream stream) {
  const std::int64_t E = heads.head_size, num_tokens = d.num_tokens;
  if (num_tokens == 0) return;
  const std::int64_t chunk = blocks_for(blocks_for(num_tokens, kTokenLanes), kQkNormChunks) * kTokenLanes;
  const std::int64_t num_chunks = blocks_for(num_tokens, chunk);
  launch("qk_norm_partial", qk_norm_partial_kernel<T>, {num_chunks, blocks_for(E, kColumns)}, kColumns * kTokenLanes,
         stream, d, raw, rstd, table, workspace, chunk, heads);
  launch("qk_norm_total", qk_norm_total_kernel, {blocks_for(2 * E, kThreads)}, kThreads, stream, workspace, num_chunks,
         E, dq, dk);
}

LORA_TRAIN_INSTANTIATE(rope_cuda);
LORA_TRAIN_INSTANTIATE(qk_norm_rope_forward_cuda);
LORA_TRAIN_INSTANTIATE(rope_backward_cuda);
LORA_TRAIN_INSTANTIATE(qk_norm_rope_backward_cuda);
LORA_TRAIN_INSTANTIATE(qk_norm_weight_gradient_cuda);

}  // namespace lora_train::kernels
