// Chunks of a sequence at once (arXiv 2412.06464, section 3; C its tokens, per value head, rows of tokens): with G the
// running sum of g in the chunk, Gam_ij = e^(G_i - G_j) for i >= j and M the state before it,
//   A = strictly lower part of beta_i (k_i . k_j) Gam, U = (I + A)^-1 (beta V), W = (I + A)^-1 (beta e^G K)
//   N = U - W M, O = e^G (Q M) + (Q K^T o Gam) N, M' = e^(G_C) M + (e^(G_C - G) K)^T N
// Only N and M' are computed chunk after chunk: a block of scan_kernel has some columns of M in registers. The other
// kernels have a block for each chunk and value head. The backward does the same the other way round, with the gradient
// of M'. Matrices between kernels are of dtype T, as operands of tensor cores are; M and beta are fp32, G is
// LogDecay<T>.
// Elements moved per token and value head, of sizes D and with R value heads to a key head: forward 8 D + 8 D / R +
// D^2 / 32, backward 21 D + 16 D / R + D^2 / 16 + 128.
#include <utility>

#include "gated_delta_problem.h"

namespace lora_train::kernels {
namespace {

/// A block per token: normalised q and k, beta and g. If there is an output, zeros in it for a token of no sequence.
template <class T, int kD>
__global__ void __launch_bounds__(kTokenThreads) normalize_kernel(Problem<T> p, Rows<T> out) {
  constexpr int kSize = kD / 32;
  const std::int64_t n = blockIdx.x, N = p.sequences.num_tokens, Hk = p.shape.key_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (n >= p.sequences.cu[p.sequences.count]) {
    const std::int64_t width = out.data == nullptr ? 0 : p.shape.value_heads * p.shape.value_size;
    for (std::int64_t c = threadIdx.x; c < width; c += kTokenThreads) store(out[n] + c, 0.0F);
    return;
  }
  const int dk = static_cast<int>(p.shape.key_size);
  for (std::int64_t head = warp; head < 2 * Hk; head += kTokenThreads / 32) {
    const GlobalMatrix<T> row{p.inputs.qkv[n] + head * dk, 0, 1, dk, p.qk_has_packs};
    const Pack<T, kSize> x = row.template pack<kSize>(0, lane * kSize);
    float values[kSize], sum = 0;
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kSize; ++i) {
      values[i] = to_float(x.values[i]);
      sum += values[i] * values[i];
    }
    const bool is_q = head < Hk;
    const float scale = rsqrtf(warp_sum(sum) + kEps) * (is_q ? rsqrtf(static_cast<float>(dk)) : 1.0F);
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kSize; ++i) values[i] *= scale;
    T* const to = is_q ? p.scratch.q + (head * N + n) * kD : p.scratch.k + ((head - Hk) * N + n) * kD;
    store_floats<kSize>(to + lane * kSize, values);
  }
  for (std::int64_t head = threadIdx.x; head < p.shape.value_heads; head += kTokenThreads) {
    p.scratch.gates[head * N + n] = log_decay(p.inputs, head, n);
    p.scratch.beta[head * N + n] = sigmoid(load(p.inputs.b[n] + head));
  }
}

/// Element (r, c) of a square, times factors(c), to another.
template <class T, class Factors>
__device__ __forceinline__ void scale_columns(const SharedMatrix<float, kChunk>& from, const Factors& factors,
                                              const SharedMatrix<T, kChunk>& to) {
  for (int i = static_cast<int>(threadIdx.x); i < kSquare; i += kChunkThreads) {
    const int r = i / kChunk, c = i % kChunk;
    store(to.address(r, c), from.at(r, c) * factors(c));
  }
}

/// A block per chunk and value head: G, U and W, and for the backward (I + A)^-1.
template <class T, int kD>
__global__ void __launch_bounds__(kChunkThreads, 3) prepare_kernel(Problem<T> p, bool is_backward) {
  LORA_TRAIN_SHARED(T, tile, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(float, square, kSquare);
  LORA_TRAIN_SHARED(T, factors, kSquare);
  LORA_TRAIN_SHARED(LogDecay<T>, gates, kChunk);
  LORA_TRAIN_SHARED(LogDecay<T>, log_decays, kChunk);
  LORA_TRAIN_SHARED(float, beta, kChunk);
  const Chunk chunk = chunk_of_block(p);
  if (chunk.rows == 0) return;
  const std::int64_t first = p.first_row(chunk);
  const int t = static_cast<int>(threadIdx.x);
  if (t < kChunk) {
    gates[t] = t < chunk.rows ? p.scratch.gates[first + t] : LogDecay<T>{0};
    beta[t] = t < chunk.rows ? p.scratch.beta[first + t] : 0.0F;
  }
  const auto k = stage<kChunk, kD>(p.template k<kD>(chunk), tile);
  __syncthreads();
  if (t < kChunk) {
    LogDecay<T> sum = 0;
    for (int i = 0; i <= t; ++i) sum += gates[i];
    log_decays[t] = sum;
    if (t < chunk.rows) p.scratch.gates[first + t] = sum;
  }
  __syncthreads();
  const SharedMatrix<float, kChunk> inverse{square};
  {
    Fragment<kChunk, kChunk> a;
    a.template add_product<false, true>(k, k, 0, kD);
    a.decay(log_decays, /*is_strict=*/true);
    a.scale_rows([&](int r) { return beta[r]; });
    a.write(inverse);
  }
  __syncthreads();
  invert(inverse);
  for (int i = t; is_backward && i < chunk.rows * kChunk; i += kChunkThreads) {
    store(p.scratch.inverse + first * kChunk + i, inverse.at(i / kChunk, i % kChunk));
  }
  const SharedMatrix<T, kChunk> scaled{factors};
  scale_columns(
      inverse, [&](int c) { return beta[c] * decay_of(log_decays[c]); }, scaled);
  __syncthreads();
  {
    Fragment<kChunk, kD> w;
    w.template add_product<false, false>(scaled, k, 0, w.row() + 16);
    w.write(p.scratch.w + first * kD, kD, chunk.rows);
  }
  __syncthreads();
  scale_columns(
      inverse, [&](int c) { return beta[c]; }, scaled);
  const auto v = stage<kChunk, kD>(p.v(chunk.head, chunk.begin, chunk.rows), tile);
  __syncthreads();
  {
    Fragment<kChunk, kD> u;
    u.template add_product<false, false>(scaled, v, 0, u.row() + 16);
    u.write(p.scratch.values + first * kD, kD, chunk.rows);
  }
}

/// State `m` times e^G Q of the sequence's first chunk, for output_kernel, which comes when the state is another one.
template <class T, int kD, class M>
__device__ __forceinline__ void write_from_state(const Problem<T>& p, const ScanPlace& place, M& m, T* tile,
                                                 const SharedMatrix<T, kSlice>& state) {
  const int rows = place.rows(place.begin);
  Staged<T, kChunk, kD, kScanThreads<kD>> staged;
  staged.load(p.template rows<kD>(p.scratch.q, p.key_head(place.head), place.begin, rows));
  const auto q = staged.place(tile);
  m.write(state);
  __syncthreads();
  Fragment<kChunk, kSlice, kScanWarps<kD>> out;
  out.template add_product<false, false>(q, state, 0, kD);
  const LogDecay<T>* const log_decays = p.gates(place.head, place.begin);
  out.scale_rows([&](int r) { return r < rows ? decay_of(log_decays[r]) : 0.0F; });
  T* const to = p.scratch.d_values + (place.head * p.sequences.num_tokens + place.begin) * kD + place.column;
  out.write(to, kD, rows);
  __syncthreads();
}

/// A block per sequence, value head and slice: N of each chunk, and M before it. state: null, or what to begin with and
/// to leave.
template <class T, int kD>
__global__ void __launch_bounds__(kScanThreads<kD>, 1) scan_kernel(Problem<T> p, float* state) {
  LORA_TRAIN_SHARED(T, w_memory, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, k_memory, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, state_memory, kD * kSlice);
  LORA_TRAIN_SHARED(T, value_memory, kChunk * kSlice);
  LORA_TRAIN_SHARED(float, decays, kDecays);
  const ScanPlace place(p, kSlices<kD>);
  if (place.begin == place.end) return;
  const SharedMatrix<T, kSlice> shared_state{state_memory}, shared_values{value_memory};
  const int dk = static_cast<int>(p.shape.key_size), dv = static_cast<int>(p.shape.value_size);
  Fragment<kD, kSlice, kScanWarps<kD>> m;
  if (state != nullptr) {
    state += (p.sequences.state_rows[place.sequence] * p.shape.value_heads + place.head) * dk * dv + place.column;
    m.each([&](int r, int c, float& x, float& y) {
      x = r < dk && place.column + c < dv ? state[r * dv + c] : 0.0F;
      y = r < dk && place.column + c + 1 < dv ? state[r * dv + c + 1] : 0.0F;
    });
    write_from_state<T, kD>(p, place, m, k_memory, shared_state);
  }
  ScanInputs<T, kD> next;
  const auto load = [&](std::int64_t begin) {
    next.load(p, place, begin, p.scratch.values);
    next.load_w(p, place, begin);
  };
  load(place.begin);
  for (std::int64_t begin = place.begin; begin < place.end; begin += kChunk) {
    const auto w = next.w.place(w_memory), k = next.k.place(k_memory);
    next.decays.place(decays);
    Fragment<kChunk, kSlice, kScanWarps<kD>> u = next.values, products;
    m.write(shared_state);
    if (begin != place.begin) m.write(p.template state<kD>(p.scratch.states, place.head, begin) + place.column, kD, kD);
    __syncthreads();
    if (begin + kChunk < place.end) load(begin + kChunk);
    products.template add_product<false, false>(w, shared_state, 0, kD);
    products.scale_rows([](int) { return -1.0F; });
    u.add(products);
    T* const to = p.scratch.values + (place.head * p.sequences.num_tokens + begin) * kD + place.column;
    u.write(to, kD, place.rows(begin));
    u.scale_rows([&](int r) { return decays[r]; });
    u.write(shared_values);
    m.scale_rows([&](int) { return decays[kChunk]; });
    __syncthreads();
    m.template add_product<true, false>(k, shared_values, 0, kChunk);
    __syncthreads();
  }
  if (state == nullptr) return;
  m.each([&](int r, int c, float x, float y) {
    if (r < dk && place.column + c < dv) state[r * dv + c] = x;
    if (r < dk && place.column + c + 1 < dv) state[r * dv + c + 1] = y;
  });
}

/// A block per chunk and value head: the output.
template <class T, int kD>
__global__ void __launch_bounds__(kChunkThreads, 3) output_kernel(Problem<T> p, Rows<T> out, bool has_packs) {
  LORA_TRAIN_SHARED(T, tile0, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, tile1, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, factors, kSquare);
  LORA_TRAIN_SHARED(LogDecay<T>, log_decays, kChunk);
  const Chunk chunk = chunk_of_block(p);
  if (chunk.rows == 0) return;
  const SharedMatrix<T, kChunk> decayed{factors};
  load_log_decays(p, chunk, log_decays);
  const auto q = stage<kChunk, kD>(p.template q<kD>(chunk), tile0);
  write_decayed_products<kD>(p, chunk, q, tile1, log_decays, decayed);
  Fragment<kChunk, kD> o;
  const GlobalMatrix<T> values = p.template rows<kD>(p.scratch.values, chunk.head, chunk.begin, chunk.rows);
  if (!chunk.is_first) {
    const GlobalMatrix<T> state{p.template state<kD>(p.scratch.states, chunk.head, chunk.begin), kD, kD, kD};
    for (int first = 0; first < kD; first += kStateSlab<kD>) {
      const auto slab = stage<kStateSlab<kD>, kD>(state.from_row(first), tile1);
      __syncthreads();
      o.template add_product<false, false>(q, slab, 0, kStateSlab<kD>, first);
      __syncthreads();
    }
    o.scale_rows([&](int r) { return decay_of(log_decays[r]); });
  } else if (p.sequences.state_rows != nullptr) {
    o.read(p.template rows<kD>(p.scratch.d_values, chunk.head, chunk.begin, chunk.rows));
  }
  const auto news = stage<kChunk, kD>(values, tile1);
  __syncthreads();
  o.template add_product<false, false>(decayed, news, 0, o.row() + 16);
  const int dv = static_cast<int>(p.shape.value_size);
  T* const to = out[chunk.begin] + chunk.head * dv;
  o.each([&](int r, int c, float x, float y) {
    if (r < chunk.rows) store_pair(to + r * out.stride, c, dv, has_packs, x, y);
  });
}

/// A block per sequence, value head and slice: token by token. A lane has a column of M, a warp every fourth row.
template <class T, int kD>
__global__ void __launch_bounds__(kTokenThreads) recurrent_kernel(Problem<T> p, float* state, Rows<T> out, int slices) {
  constexpr int kWarps = kTokenThreads / 32, kRows = kD / kWarps;
  LORA_TRAIN_SHARED(float, q, kD);
  LORA_TRAIN_SHARED(float, k, kD);
  LORA_TRAIN_SHARED(float, sums, 2 * kTokenThreads);
  LORA_TRAIN_SHARED(float, slots, 32);
  const ScanPlace place(p, slices);
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32, column = place.column + lane;
  const int dk = static_cast<int>(p.shape.key_size), dv = static_cast<int>(p.shape.value_size);
  const bool is_column = column < dv;
  const std::int64_t key_column = p.key_head(place.head) * dk, out_column = place.head * dv + column;
  for (std::int64_t n = p.sequences.cu[p.sequences.count] + place.sequence; n < p.sequences.num_tokens;
       n += p.sequences.count) {
    if (warp == 0 && is_column) store(out[n] + out_column, 0.0F);
  }
  if (place.begin == place.end) return;
  state += (p.sequences.state_rows[place.sequence] * p.shape.value_heads + place.head) * dk * dv + column;
  float m[kRows];
  LORA_TRAIN_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int r = i * kWarps + warp;
    m[i] = r < dk && is_column ? state[r * dv] : 0.0F;
  }
  for (std::int64_t n = place.begin; n < place.end; ++n) {
    const T* const row = p.inputs.qkv[n] + key_column + t;
    const float of_q = t < dk ? load(row) : 0.0F, of_k = t < dk ? load(row + p.shape.key_heads * dk) : 0.0F;
    const float q_scale = rsqrtf(block_sum(of_q * of_q, slots) + kEps) * rsqrtf(static_cast<float>(dk));
    const float k_scale = rsqrtf(block_sum(of_k * of_k, slots) + kEps);
    if (t < kD) {
      q[t] = of_q * q_scale;
      k[t] = of_k * k_scale;
    }
    const float q_k = block_sum(of_q * of_k, slots) * q_scale * k_scale;
    const float decay = expf(log_decay(p.inputs, place.head, n)), beta = sigmoid(load(p.inputs.b[n] + place.head));
    float of_state[2] = {};  // M^T k, M^T q
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      of_state[0] += m[i] * k[i * kWarps + warp];
      of_state[1] += m[i] * q[i * kWarps + warp];
    }
    for (int i = 0; i < 2; ++i) sums[i * kTokenThreads + t] = of_state[i];
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
      of_state[i] = 0;
      for (int other = 0; other < kWarps; ++other) of_state[i] += sums[i * kTokenThreads + other * 32 + lane];
    }
    const float v = is_column ? load(p.inputs.qkv[n] + 2 * p.shape.key_heads * dk + out_column) : 0.0F;
    const float u = beta * (v - decay * of_state[0]);
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kRows; ++i) m[i] = decay * m[i] + k[i * kWarps + warp] * u;
    if (warp == 0 && is_column) store(out[n] + out_column, decay * of_state[1] + u * q_k);
    __syncthreads();
  }
  LORA_TRAIN_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int r = i * kWarps + warp;
    if (r < dk && is_column) state[r * dv] = m[i];
  }
}

template <class T>
Scratch<T> scratch_of(const GatedDeltaSizes& shape, std::int64_t num_tokens, float* memory) {
  const std::int64_t D = gated_delta_padded_size(shape), keys = num_tokens * shape.key_heads * D;
  const std::int64_t values = num_tokens * shape.value_heads * D, states = values * D / kChunk;
  T* at = reinterpret_cast<T*>(memory);
  const auto take = [&](std::int64_t count) { return std::exchange(at, at + count); };
  Scratch<T> scratch;
  scratch.q = take(keys);
  scratch.k = take(keys);
  scratch.states = take(states);
  scratch.d_states = take(states);
  scratch.w = take(values);
  scratch.values = take(values);
  scratch.d_values = take(values);
  scratch.inverse = take(num_tokens * shape.value_heads * kChunk);
  scratch.gates = reinterpret_cast<LogDecay<T>*>(at);
  scratch.beta = reinterpret_cast<float*>(scratch.gates + num_tokens * shape.value_heads);
  return scratch;
}

/// As long as no more tokens than these come per sequence, and there are states, sequences go token by token.
constexpr std::int64_t kRecurrentTokens = 4;

}  // namespace

template <class T>
Problem<T> problem_of(const GatedDeltaSizes& shape, const GatedDeltaRows<T>& inputs, const DeviceSequences& sequences,
                      float* scratch) {
  if (shape.key_size > kGatedDeltaMostSize || shape.value_size > kGatedDeltaMostSize) {
    throw ShapeError("gated_delta", "head sizes {} and {}: our CUDA kernels take at most {}", shape.key_size,
                     shape.value_size, kGatedDeltaMostSize);
  }
  return {shape,
          inputs,
          sequences,
          scratch_of<T>(shape, sequences.num_tokens, scratch),
          fits_packs(inputs.qkv, shape.key_size),
          fits_packs(inputs.qkv, shape.value_size, 2 * shape.key_heads * shape.key_size)};
}

template <class T>
void launch_scan(const Problem<T>& p, float* state, Rows<T> out, bool is_backward, Stream stream) {
  const std::int64_t Hv = p.shape.value_heads;
  with_padded_size(p.shape, [&](auto size) {
    constexpr int kD = size;
    launch("gated_delta_normalize", normalize_kernel<T, kD>, {p.sequences.num_tokens}, kTokenThreads, stream, p, out);
    launch("gated_delta_prepare", prepare_kernel<T, kD>, {p.sequences.num_chunks * Hv}, kChunkThreads, stream, p,
           is_backward);
    launch("gated_delta_scan", scan_kernel<T, kD>, {p.sequences.count * Hv * kSlices<kD>}, kScanThreads<kD>, stream, p,
           state);
  });
}

template <class T>
void gated_delta_forward_cuda(GatedDeltaSizes shape, GatedDeltaRows<T> inputs, DeviceSequences sequences, float* state,
                              float* scratch, Rows<T> out, Stream stream) {
  const Problem<T> p = problem_of(shape, inputs, sequences, scratch);
  const std::int64_t Hv = shape.value_heads;
  with_padded_size(shape, [&](auto size) {
    constexpr int kD = size;
    if (sequences.state_rows != nullptr && sequences.num_tokens <= kRecurrentTokens * sequences.count) {
      const std::int64_t slices = blocks_for(shape.value_size, kSlice);
      launch("gated_delta_recurrent", recurrent_kernel<T, kD>, {sequences.count * Hv * slices}, kTokenThreads, stream,
             p, state, out, slices);
      return;
    }
    launch_scan(p, sequences.state_rows == nullptr ? nullptr : state, out, /*is_backward=*/false, stream);
    launch("gated_delta_output", output_kernel<T, kD>, {sequences.num_chunks * Hv}, kChunkThreads, stream, p, out,
           fits_packs(out, shape.value_size));
  });
}

LORA_TRAIN_INSTANTIATE(gated_delta_forward_cuda);
LORA_TRAIN_INSTANTIATE(problem_of);
LORA_TRAIN_INSTANTIATE(launch_scan);

}  // namespace lora_train::kernels
