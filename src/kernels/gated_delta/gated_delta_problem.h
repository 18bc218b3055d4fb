// What the CUDA kernels of both directions share: scratch memory, and which part of the problem a block has.
#pragma once

#include <type_traits>

#include "gated_delta_device.h"

namespace lora_train::kernels {

constexpr int kSlice = 32;          // columns of a state in a block that walks over the chunks of a sequence
constexpr int kTokenThreads = 128;  // of a block that has one token, or walks token by token

template <int kD>
constexpr int kScanWarps = kD / 16 > 4 ? kD / 16 : 4;
template <int kD>
constexpr int kScanThreads = 32 * kScanWarps<kD>;
template <int kD>
constexpr int kSlices = kD / kSlice;
/// Rows or columns of a state that are in shared memory at one time.
template <int kD>
constexpr int kStateSlab = kD < kChunk ? kD : kChunk;

/// What the kernels leave for each other. D: gated_delta_padded_size; columns past dk and dv are zero.
template <class T>
struct Scratch {
  T *q, *k;                  ///< [Hk, N, D] normalised, q scaled
  T *states, *d_states;      ///< [(N - 1) / 64, Hv, D, D]: before each chunk but the first of a sequence
  T *w, *values, *d_values;  ///< [Hv, N, D]: W; U, then N; what is known of dN, then dN
  T* inverse;                ///< [Hv, N, 64]: (I + A)^-1
  LogDecay<T>* gates;        ///< [Hv, N]: g, then G, then dg
  float* beta;               ///< [Hv, N]
};

struct Chunk {
  int begin, head, rows;
  bool is_first, is_last;  ///< of its sequence
};

template <class T>
struct Problem {
  GatedDeltaSizes shape;
  GatedDeltaRows<T> inputs;
  DeviceSequences sequences;
  Scratch<T> scratch;
  bool qk_has_packs, v_has_packs;

  __device__ __forceinline__ int key_head(std::int64_t head) const {
    return static_cast<int>(head) / static_cast<int>(shape.value_heads / shape.key_heads);
  }
  /// Rows of a head in scratch memory.
  template <int kD>
  __device__ __forceinline__ GlobalMatrix<T> rows(const T* of, std::int64_t head, std::int64_t begin, int count) const {
    return {of + (head * sequences.num_tokens + begin) * kD, kD, count, kD};
  }
  __device__ __forceinline__ GlobalMatrix<T> v(std::int64_t head, std::int64_t begin, int count) const {
    const std::int64_t column = 2 * shape.key_heads * shape.key_size + head * shape.value_size;
    return {inputs.qkv[begin] + column, inputs.qkv.stride, count, static_cast<int>(shape.value_size), v_has_packs};
  }
  template <int kD>
  __device__ __forceinline__ GlobalMatrix<T> q(const Chunk& chunk) const {
    return rows<kD>(scratch.q, key_head(chunk.head), chunk.begin, chunk.rows);
  }
  template <int kD>
  __device__ __forceinline__ GlobalMatrix<T> k(const Chunk& chunk) const {
    return rows<kD>(scratch.k, key_head(chunk.head), chunk.begin, chunk.rows);
  }
  __device__ __forceinline__ std::int64_t first_row(const Chunk& chunk) const {
    return chunk.head * sequences.num_tokens + chunk.begin;
  }
  /// The place of the state before the chunk at `begin`. Such chunks begin at least 64 tokens apart, the first at 64.
  template <int kD>
  __device__ __forceinline__ T* state(T* of, std::int64_t head, std::int64_t begin) const {
    return of + ((begin / kChunk - 1) * shape.value_heads + head) * kD * kD;
  }
  __device__ __forceinline__ LogDecay<T>* gates(std::int64_t head, std::int64_t begin) const {
    return scratch.gates + head * sequences.num_tokens + begin;
  }
};

/// Gradients of the output, in rows like it.
template <class T>
struct OutputGradient {
  Rows<const T> rows;
  bool has_packs;
  __device__ __forceinline__ GlobalMatrix<T> of(const GatedDeltaSizes& shape, std::int64_t head, std::int64_t begin,
                                                int count) const {
    const int width = static_cast<int>(shape.value_size);
    return {rows[begin] + head * width, rows.stride, count, width, has_packs};
  }
};

/// The chunk and value head of this block of kChunkThreads; without rows if there is no such chunk.
template <class T>
__device__ __forceinline__ Chunk chunk_of_block(const Problem<T>& p) {
  const auto heads = static_cast<unsigned>(p.shape.value_heads);
  const int i = static_cast<int>(blockIdx.x / heads), s = p.sequences.chunk_sequence[i];
  Chunk chunk{0, static_cast<int>(blockIdx.x % heads), 0, false, false};
  if (s < 0) return chunk;
  const int end = p.sequences.cu[s + 1], index = i - p.sequences.cu_chunks[s];
  chunk.begin = p.sequences.cu[s] + index * kChunk;
  chunk.is_first = index == 0;
  chunk.is_last = end - chunk.begin <= kChunk;
  chunk.rows = chunk.is_last ? end - chunk.begin : kChunk;
  return chunk;
}

/// G of a chunk, constant after its last row. Threads may use it after the next barrier.
template <class T>
__device__ __forceinline__ void load_log_decays(const Problem<T>& p, const Chunk& chunk, LogDecay<T>* log_decays) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < kChunk) log_decays[t] = p.gates(chunk.head, chunk.begin)[t < chunk.rows ? t : chunk.rows - 1];
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0F ? x : log1pf(expf(x)); }

/// g of token n.
template <class T>
__device__ __forceinline__ float log_decay(const GatedDeltaRows<T>& inputs, std::int64_t head, std::int64_t n) {
  return -expf(inputs.a_log[head]) * softplus(load(inputs.a[n] + head) + inputs.dt_bias[head]);
}

constexpr float kEps = 1e-6F;

/// The sequence, value head and columns of a state of a block of a scan.
struct ScanPlace {
  std::int64_t sequence, head, begin, end;
  int column;
  template <class T>
  __device__ ScanPlace(const Problem<T>& p, int slices) {
    const std::int64_t i = blockIdx.x / slices;
    column = static_cast<int>(blockIdx.x % slices) * kSlice;
    head = i % p.shape.value_heads;
    sequence = i / p.shape.value_heads;
    begin = p.sequences.cu[sequence];
    end = p.sequences.cu[sequence + 1];
  }
  __device__ int rows(std::int64_t at) const { return end - at < kChunk ? static_cast<int>(end - at) : kChunk; }
};

constexpr int kDecays = kChunk + 1;

/// The kDecays of a chunk: e^(G_C - G), then e^(G_C). Loaded by the first threads, and written to shared memory later.
template <class T>
struct Decays {
  LogDecay<T> own = 0, last = 0;
  __device__ __forceinline__ void load(const LogDecay<T>* log_decays, int rows) {
    const int t = static_cast<int>(threadIdx.x);
    if (t >= kChunk) return;
    last = log_decays[rows - 1];
    own = t < rows ? log_decays[t] : last;
  }
  __device__ __forceinline__ void place(float* decays) const {
    const int t = static_cast<int>(threadIdx.x);
    if (t < kChunk) decays[t] = decay_of(last - own);
    if (t == 0) decays[kChunk] = decay_of(last);
  }
};

/// What a scan reads of a chunk, a chunk ahead.
template <class T, int kD>
struct ScanInputs {
  Staged<T, kChunk, kD, kScanThreads<kD>> w, k;
  Fragment<kChunk, kSlice, kScanWarps<kD>> values;
  Decays<T> decays;

  /// All but W. The values are some columns of of_values [Hv, N, D].
  __device__ __forceinline__ void load(const Problem<T>& p, const ScanPlace& place, std::int64_t begin,
                                       const T* of_values) {
    const int rows = place.rows(begin);
    k.load(p.template rows<kD>(p.scratch.k, p.key_head(place.head), begin, rows));
    decays.load(p.gates(place.head, begin), rows);
    values.read(p.template rows<kD>(of_values, place.head, begin, rows).from_column(place.column));
  }
  __device__ __forceinline__ void load_w(const Problem<T>& p, const ScanPlace& place, std::int64_t begin) {
    w.load(p.template rows<kD>(p.scratch.w, place.head, begin, place.rows(begin)));
  }
};

/// Q K^T o Gam, with K by way of `tile`. It ends with a barrier.
template <int kD, class T, class Q>
__device__ __forceinline__ void write_decayed_products(const Problem<T>& p, const Chunk& chunk, const Q& q, T* tile,
                                                       const LogDecay<T>* log_decays,
                                                       const SharedMatrix<T, kChunk>& to) {
  const auto k = stage<kChunk, kD>(p.template k<kD>(chunk), tile);
  __syncthreads();
  Fragment<kChunk, kChunk> products;
  products.template add_product<false, true>(q, k, 0, kD);
  products.decay(log_decays, /*is_strict=*/false);
  products.write(to);
  __syncthreads();
}

/// run(D as a constant).
template <class Run>
void with_padded_size(const GatedDeltaSizes& shape, const Run& run) {
  if (gated_delta_padded_size(shape) == 32) return run(std::integral_constant<int, 32>());
  run(std::integral_constant<int, static_cast<int>(kGatedDeltaMostSize)>());
}

// In gated_delta_cuda.cu, for both directions.

template <class T>
Problem<T> problem_of(const GatedDeltaSizes& shape, const GatedDeltaRows<T>& inputs, const DeviceSequences& sequences,
                      float* scratch);

/// Normalised q and k, gates, U, W, and N and M of each chunk; for the backward also (I + A)^-1. An `out` with data
/// gets zeros for tokens of no sequence. state: null, or what sequences begin with and leave.
template <class T>
void launch_scan(const Problem<T>& p, float* state, Rows<T> out, bool is_backward, Stream stream);

}  // namespace lora_train::kernels
