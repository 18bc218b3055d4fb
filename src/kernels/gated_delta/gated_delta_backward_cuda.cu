// The backward of the gated delta rule, in the notation of gated_delta_cuda.cu; P = Q K^T o Gam:
//   dN = P^T dO + (e^(G_C - G) K) dM', dM = e^(G_C) dM' + (e^G Q)^T dO - W^T dN
//   X = (I + A)^-T dN, Y = -X M^T, dA = -strictly lower part of X N^T, dP = lower part of dO N^T
//   dQ = e^G (dO M^T) + (dP o Gam) K, dV = beta X
//   dK = (dP o Gam)^T Q + e^(G_C - G) (N dM'^T) + beta e^G Y + B K + B^T K, B = beta (dA o Gam)
//   dbeta = rowsum(X o V) + e^G rowsum(Y o K) + rowsum(dA o K K^T o Gam)
//   dG = rowsum(e^G (dO M^T) o Q) + beta (dbeta - rowsum(X o V)) - colsum(dA o A) + (rowsum - colsum)(dP o P) - h,
//   h = rowsum(e^(G_C - G) (N dM'^T) o K), and for the last token also sum(h) + e^(G_C) <dM', M>
// dg is the running sum of dG from the last token.
#include "gated_delta_problem.h"

namespace lora_train::kernels {
namespace {

/// A block per chunk and value head: what dN has from the outputs of the same chunk, (Q K^T o Gam)^T dO.
template <class T, int kD>
__global__ void __launch_bounds__(kChunkThreads, 3) values_gradient_kernel(Problem<T> p, OutputGradient<T> d_out) {
  LORA_TRAIN_SHARED(T, tile0, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, tile1, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, factors, kSquare);
  LORA_TRAIN_SHARED(LogDecay<T>, log_decays, kChunk);
  const Chunk chunk = chunk_of_block(p);
  if (chunk.rows == 0) return;
  const SharedMatrix<T, kChunk> decayed{factors};
  load_log_decays(p, chunk, log_decays);
  write_decayed_products<kD>(p, chunk, stage<kChunk, kD>(p.template q<kD>(chunk), tile0), tile1, log_decays, decayed);
  const auto of_out = stage<kChunk, kD>(d_out.of(p.shape, chunk.head, chunk.begin, chunk.rows), tile0);
  __syncthreads();
  Fragment<kChunk, kD> d_values;
  d_values.template add_product<true, false>(decayed, of_out, d_values.row(), kChunk);
  d_values.write(p.scratch.d_values + p.first_row(chunk) * kD, kD, chunk.rows);
}

/// Some columns of the output's gradients of a chunk, on their way to shared memory.
template <class T, int kThreads>
struct SliceInputs {
  static constexpr int kSize = kFullPack<T>, kPacks = kChunk * kSlice / kSize / kThreads;
  Pack<T, kSize> packs[kPacks];
  LogDecay<T> log_decays[kPacks];

  __device__ static int row(int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / (kSlice / kSize); }
  __device__ static int column(int i) {
    return (i * kThreads + static_cast<int>(threadIdx.x)) % (kSlice / kSize) * kSize;
  }
  __device__ __forceinline__ void load(const GlobalMatrix<T>& from, const LogDecay<T>* of_rows) {
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      packs[i] = from.template pack<kSize>(row(i), column(i));
      log_decays[i] = row(i) < from.rows ? of_rows[row(i)] : LogDecay<T>{0};
    }
  }
  /// Times e^G.
  __device__ __forceinline__ void place(const SharedMatrix<T, kSlice>& to) const {
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      const float factor = decay_of(log_decays[i]);
      LORA_TRAIN_UNROLL
      for (int j = 0; j < kSize; ++j) store(to.address(row(i), column(i) + j), to_float(packs[i].values[j]) * factor);
    }
  }
};

template <class T, int kD>
struct ScanBackwardInputs : ScanInputs<T, kD> {
  Staged<T, kChunk, kD, kScanThreads<kD>> q;
  SliceInputs<T, kScanThreads<kD>> d_out;

  __device__ __forceinline__ void load(const Problem<T>& p, const OutputGradient<T>& gradient, const ScanPlace& place,
                                       std::int64_t begin) {
    const int rows = place.rows(begin);
    ScanInputs<T, kD>::load(p, place, begin, p.scratch.d_values);
    q.load(p.template rows<kD>(p.scratch.q, p.key_head(place.head), begin, rows));
    d_out.load(gradient.of(p.shape, place.head, begin, rows).from_column(place.column), p.gates(place.head, begin));
  }
};

/// A block per sequence, value head and slice: dN of each chunk from the last, and the gradient of M after it.
template <class T, int kD>
__global__ void __launch_bounds__(kScanThreads<kD>, 1) scan_backward_kernel(Problem<T> p, OutputGradient<T> d_out) {
  LORA_TRAIN_SHARED(T, memory0, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, memory1, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, state_memory, kD * kSlice);
  LORA_TRAIN_SHARED(T, value_memory, kChunk * kSlice);
  LORA_TRAIN_SHARED(float, decays, kDecays);
  const ScanPlace place(p, kSlices<kD>);
  if (place.begin == place.end) return;
  const SharedMatrix<T, kSlice> shared_state{state_memory}, shared_values{value_memory};
  Fragment<kD, kSlice, kScanWarps<kD>> dm;
  ScanBackwardInputs<T, kD> next;
  const std::int64_t last = place.begin + (place.end - place.begin - 1) / kChunk * kChunk;
  next.load(p, d_out, place, last);
  next.load_w(p, place, last);
  for (std::int64_t begin = last; begin >= place.begin; begin -= kChunk) {
    const auto k = next.k.place(memory0), q = next.q.place(memory1);
    next.d_out.place(shared_values);
    next.decays.place(decays);
    Fragment<kChunk, kSlice, kScanWarps<kD>> d_values = next.values, products;
    dm.write(shared_state);
    if (begin != last) {
      dm.write(p.template state<kD>(p.scratch.d_states, place.head, begin + kChunk) + place.column, kD, kD);
    }
    __syncthreads();
    if (begin != place.begin) next.load(p, d_out, place, begin - kChunk);
    products.template add_product<false, false>(k, shared_state, 0, kD);
    products.scale_rows([&](int r) { return decays[r]; });
    d_values.add(products);
    T* const to = p.scratch.d_values + (place.head * p.sequences.num_tokens + begin) * kD + place.column;
    d_values.write(to, kD, place.rows(begin));
    dm.scale_rows([&](int) { return decays[kChunk]; });
    dm.template add_product<true, false>(q, shared_values, 0, kChunk);
    __syncthreads();
    const auto w = next.w.place(memory0);
    d_values.scale_rows([](int) { return -1.0F; });
    d_values.write(shared_values);
    __syncthreads();
    if (begin != place.begin) next.load_w(p, place, begin - kChunk);
    dm.template add_product<true, false>(w, shared_values, 0, kChunk);
    __syncthreads();
  }
}

constexpr int kGradientSums = 5 * 2 + 4;

/// The gradients of one chunk and value head.
template <class T, int kD>
struct ChunkGradient {
  const Problem<T>& p;
  const Chunk chunk;
  T *tile0, *tile1, *square;  ///< shared memory
  /// Of tokens, in shared memory. Sums over columns are in two parts, those over tokens in four.
  const LogDecay<T>* log_decays;
  const float* beta;
  LogDecay<T>*of_g, *of_values, *of_keys, *of_products, *of_decays, *columns;

  using Square = Fragment<kChunk, kChunk>;
  using Tile = Fragment<kChunk, kD>;

  __device__ ChunkGradient(const Problem<T>& problem, const Chunk& of, T* memory0, T* memory1, T* memory2,
                           LogDecay<T>* decays, float* betas, LogDecay<T>* sums)
      : p(problem), chunk(of), tile0(memory0), tile1(memory1), square(memory2), log_decays(decays), beta(betas) {
    of_g = sums;
    of_values = of_g + 2 * kChunk;
    of_keys = of_values + 2 * kChunk;
    of_products = of_keys + 2 * kChunk;
    of_decays = of_products + 2 * kChunk;
    columns = of_decays + 2 * kChunk;
    load_log_decays(p, chunk, decays);
    const int t = static_cast<int>(threadIdx.x);
    if (t < kChunk) betas[t] = t < chunk.rows ? p.scratch.beta[first() + t] : 0.0F;
    for (int i = t; i < kGradientSums * kChunk; i += kChunkThreads) of_g[i] = 0;
  }
  __device__ std::int64_t first() const { return p.first_row(chunk); }
  __device__ __forceinline__ GlobalMatrix<T> q() const { return p.template q<kD>(chunk); }
  __device__ __forceinline__ GlobalMatrix<T> k() const { return p.template k<kD>(chunk); }
  __device__ __forceinline__ GlobalMatrix<T> of_head(const T* rows) const {
    return p.template rows<kD>(rows, chunk.head, chunk.begin, chunk.rows);
  }
  /// to += a state^T, whose columns come slab by slab. Begins with the slab's memory free, and leaves it so.
  template <class A>
  __device__ __forceinline__ void add_state_product(Tile& to, const A& a, T* states, std::int64_t begin, T* memory) {
    const GlobalMatrix<T> state{p.template state<kD>(states, chunk.head, begin), kD, kD, kD};
    for (int c = 0; c < kD; c += kStateSlab<kD>) {
      const auto slab = stage<kD, kStateSlab<kD>>(state.from_column(c), memory);
      __syncthreads();
      to.template add_product<false, true>(a, slab, 0, kStateSlab<kD>, c);
      __syncthreads();
    }
  }

  /// Writes dq to the place of W, and leaves dP o Gam in `square`.
  __device__ __forceinline__ void queries(const OutputGradient<T>& d_out) {
    Square products, d_products;
    {
      const auto queries = stage<kChunk, kD>(q(), tile0), keys = stage<kChunk, kD>(k(), tile1);
      __syncthreads();
      products.template add_product<false, true>(queries, keys, 0, kD);
    }
    __syncthreads();
    const auto of_out = stage<kChunk, kD>(d_out.of(p.shape, chunk.head, chunk.begin, chunk.rows), tile0);
    const auto values = stage<kChunk, kD>(of_head(p.scratch.values), tile1);
    __syncthreads();
    d_products.template add_product<false, true>(of_out, values, 0, kD);
    d_products.decay(log_decays, /*is_strict=*/false);
    products.times(d_products);
    products.add_row_sums(of_g, [](int, int, float x, float y) { return LogDecay<T>{x} + y; });
    products.subtract_column_sums(columns, [](int) { return 1.0F; });
    const SharedMatrix<T, kChunk> shared{square};
    d_products.write(shared);
    __syncthreads();
    Tile dq;
    if (!chunk.is_first) {
      add_state_product(dq, of_out, p.scratch.states, chunk.begin, tile1);
      dq.scale_rows([&](int r) { return decay_of(log_decays[r]); });
      dq.add_row_sums(of_g, [&](int r, int c, float x, float y) { return pair_product(q(), r, c, x, y); });
    }
    const auto keys = stage<kChunk, kD>(k(), tile1);
    __syncthreads();
    dq.template add_product<false, false>(shared, keys, 0, dq.row() + 16);
    dq.write(p.scratch.w + first() * kD, kD, chunk.rows);
    __syncthreads();
  }

  /// What dk has from the state after the chunk and from dP o Gam in `square`.
  __device__ __forceinline__ void keys_from_outputs(Tile& dk) {
    if (!chunk.is_last) {
      const auto values = stage<kChunk, kD>(of_head(p.scratch.values), tile0);
      add_state_product(dk, values, p.scratch.d_states, chunk.begin + kChunk, tile1);
      dk.scale_rows([&](int r) { return decay_of(log_decays[kChunk - 1] - log_decays[r]); });
      dk.add_row_sums(of_decays, [&](int r, int c, float x, float y) { return pair_product(k(), r, c, x, y); });
    }
    const auto queries = stage<kChunk, kD>(q(), tile1);
    __syncthreads();
    dk.template add_product<true, false>(SharedMatrix<T, kChunk>{square}, queries, dk.row(), kChunk);
    __syncthreads();
  }

  /// X = (I + A)^-T dN, in tile1 or in place of dN; writes dv = beta X.
  __device__ __forceinline__ auto values(const Rows<T>& d_qkv, bool has_packs) {
    Tile x;
    {
      const GlobalMatrix<T> inverse{p.scratch.inverse + first() * kChunk, kChunk, chunk.rows, kChunk};
      const auto shared = stage<kChunk, kChunk>(inverse, square);
      const auto d_values = stage<kChunk, kD>(of_head(p.scratch.d_values), tile0);
      __syncthreads();
      x.template add_product<true, false>(shared, d_values, x.row(), kChunk);
    }
    __syncthreads();
    const int dv = static_cast<int>(p.shape.value_size);
    const std::int64_t column = 2 * p.shape.key_heads * p.shape.key_size + chunk.head * dv;
    T* const to = d_qkv[chunk.begin] + column;
    const GlobalMatrix<T> v = p.v(chunk.head, chunk.begin, chunk.rows);
    x.add_row_sums(of_values, [&](int r, int c, float a, float b) {
      const float product = pair_product(v, r, c, a, b);
      if (r < chunk.rows) store_pair(to + r * d_qkv.stride, c, dv, has_packs, a * beta[r], b * beta[r]);
      return product;
    });
    if constexpr (kOnTensorCores<T>) {
      const SharedMatrix<T, kD> shared{tile1};
      x.write(shared);
      return shared;
    } else {
      x.write(p.scratch.d_values + first() * kD, kD, chunk.rows);
      return of_head(p.scratch.d_values);
    }
  }

  /// What dk has from W and A. Writes dk to the place of N. X as values() returns it, before a barrier.
  template <class X>
  __device__ __forceinline__ void keys_from_inverse(Tile& dk, const X& x) {
    const SharedMatrix<T, kChunk> shared{square};
    {
      Square da;
      const auto values = stage<kChunk, kD>(of_head(p.scratch.values), tile0);
      __syncthreads();
      da.template add_product<false, true>(x, values, 0, kD);
      da.scale_rows([](int) { return -1.0F; });
      da.decay(log_decays, /*is_strict=*/true);
      da.write(shared);
    }
    __syncthreads();
    if (!chunk.is_first) {
      Tile y;  // the gradient of beta e^G K, negated
      add_state_product(y, x, p.scratch.states, chunk.begin, tile0);
      y.scale_rows([&](int r) { return -decay_of(log_decays[r]); });
      y.add_row_sums(of_keys, [&](int r, int c, float a, float b) { return pair_product(k(), r, c, a, b); });
      y.scale_rows([&](int r) { return beta[r]; });
      dk.add(y);
    }
    const auto keys = stage<kChunk, kD>(k(), tile0);
    __syncthreads();
    {
      Square products, da;
      products.template add_product<false, true>(keys, keys, 0, kD);
      da.read(shared);
      products.times(da);
      products.add_row_sums(of_products, [](int, int, float a, float b) { return LogDecay<T>{a} + b; });
      products.subtract_column_sums(columns, [&](int r) { return beta[r]; });
      da.scale_rows([&](int r) { return beta[r]; });
      da.write(shared);
    }
    __syncthreads();
    dk.template add_product<false, false>(shared, keys, 0, dk.row() + 16);
    dk.template add_product<true, false>(shared, keys, dk.row(), kChunk);
    dk.write(p.scratch.values + first() * kD, kD, chunk.rows);
  }

  /// The sum over M o dM', times e^(G_C).
  __device__ __forceinline__ float state_product(float* slots) const {
    if (chunk.is_first || chunk.is_last) return 0;
    constexpr int kSize = kFullPack<T>;
    const T* const m = p.template state<kD>(p.scratch.states, chunk.head, chunk.begin);
    const T* const dm = p.template state<kD>(p.scratch.d_states, chunk.head, chunk.begin + kChunk);
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x) * kSize; i < kD * kD; i += kChunkThreads * kSize) {
      const Pack<T, kSize> a = load_pack<kSize>(m + i), b = load_pack<kSize>(dm + i);
      LORA_TRAIN_UNROLL
      for (int j = 0; j < kSize; ++j) sum += to_float(a.values[j]) * to_float(b.values[j]);
    }
    return block_sum(sum, slots) * decay_of(log_decays[kChunk - 1]);
  }

  /// da and db from the sums; leaves dg.
  __device__ __forceinline__ void gates(const GatedDeltaGradientRows<T>& to, float state_product) {
    __syncthreads();
    const int t = static_cast<int>(threadIdx.x);
    float d_beta = 0;
    if (t < kChunk) {
      const LogDecay<T> of_inverse = of_products[t] + of_products[kChunk + t] + of_keys[t] + of_keys[kChunk + t];
      d_beta = static_cast<float>(of_values[t] + of_values[kChunk + t] + of_inverse);
      of_g[t] += of_g[kChunk + t] + beta[t] * of_inverse;
      for (int group = 0; group < 4; ++group) of_g[t] += columns[group * kChunk + t];
      of_decays[t] += of_decays[kChunk + t];
    }
    __syncthreads();
    if (t >= chunk.rows) return;
    LogDecay<T> dg = state_product;
    for (int i = 0; i < kChunk; ++i) dg += i < t ? of_decays[i] : of_g[i];
    const int n = chunk.begin + t, head = chunk.head;
    const float x = load(p.inputs.a[n] + head) + p.inputs.dt_bias[head];
    p.scratch.gates[first() + t] = dg;
    store(to.a[n] + head, -static_cast<float>(dg) * expf(p.inputs.a_log[head]) * sigmoid(x));
    store(to.b[n] + head, d_beta * beta[t] * (1 - beta[t]));
  }
};

/// A block per chunk and value head: dv, da and db, and dq and dk of the value head.
template <class T, int kD>
__global__ void __launch_bounds__(kChunkThreads, kOnTensorCores<T> ? 2 : 1)
    gradient_kernel(Problem<T> p, OutputGradient<T> d_out, GatedDeltaGradientRows<T> to, bool has_packs) {
  LORA_TRAIN_SHARED(T, tile0, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, tile1, copy_elements<T>(kChunk * kD));
  LORA_TRAIN_SHARED(T, square, kSquare);
  LORA_TRAIN_SHARED(LogDecay<T>, log_decays, kChunk);
  LORA_TRAIN_SHARED(LogDecay<T>, sums, kGradientSums * kChunk);
  LORA_TRAIN_SHARED(float, beta, kChunk);
  LORA_TRAIN_SHARED(float, slots, 32);
  const Chunk chunk = chunk_of_block(p);
  if (chunk.rows == 0) return;
  ChunkGradient<T, kD> gradient(p, chunk, tile0, tile1, square, log_decays, beta, sums);
  gradient.queries(d_out);
  Fragment<kChunk, kD> dk;
  gradient.keys_from_outputs(dk);
  gradient.keys_from_inverse(dk, gradient.values(to.qkv, has_packs));
  gradient.gates(to, gradient.state_product(slots));
}

/// A block per token: dq and dk of all value heads of a key head, through the norm. Zeros for a token of no sequence.
template <class T, int kD>
__global__ void __launch_bounds__(kTokenThreads) finish_kernel(Problem<T> p, GatedDeltaGradientRows<T> to) {
  constexpr int kSize = kD / 32;
  const std::int64_t n = blockIdx.x, N = p.sequences.num_tokens, Hk = p.shape.key_heads, Hv = p.shape.value_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int dk = static_cast<int>(p.shape.key_size);
  if (n >= p.sequences.cu[p.sequences.count]) {
    const std::int64_t width = 2 * Hk * dk + Hv * p.shape.value_size;
    for (std::int64_t c = threadIdx.x; c < width; c += kTokenThreads) store(to.qkv[n] + c, 0.0F);
    for (std::int64_t c = threadIdx.x; c < Hv; c += kTokenThreads) {
      store(to.a[n] + c, 0.0F);
      store(to.b[n] + c, 0.0F);
    }
    return;
  }
  for (std::int64_t row = warp; row < 2 * Hk; row += kTokenThreads / 32) {
    const bool is_q = row < Hk;
    const std::int64_t key_head = is_q ? row : row - Hk, R = Hv / Hk;
    const GlobalMatrix<T> of_row{p.inputs.qkv[n] + row * dk, 0, 1, dk, p.qk_has_packs};
    const Pack<T, kSize> pack = of_row.template pack<kSize>(0, lane * kSize);
    float d[kSize] = {}, norm = 0, product = 0;
    for (std::int64_t head = key_head * R; head < (key_head + 1) * R; ++head) {
      float of_head[kSize];
      load_floats<kSize>((is_q ? p.scratch.w : p.scratch.values) + (head * N + n) * kD + lane * kSize, of_head);
      LORA_TRAIN_UNROLL
      for (int i = 0; i < kSize; ++i) d[i] += of_head[i];
    }
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kSize; ++i) {
      const float x = to_float(pack.values[i]);
      norm += x * x;
      product += x * d[i];
    }
    const float r = rsqrtf(warp_sum(norm) + kEps), scale = is_q ? rsqrtf(static_cast<float>(dk)) : 1.0F;
    const float along = r * r * warp_sum(product);
    T* const target = to.qkv[n] + row * dk;
    LORA_TRAIN_UNROLL
    for (int i = 0; i < kSize; ++i) {
      const int c = lane * kSize + i;
      if (c < dk) store(target + c, scale * r * (d[i] - to_float(pack.values[i]) * along));
    }
  }
}

/// A block per value head: a_log and dt_bias += their gradients.
template <class T>
__global__ void __launch_bounds__(kChunkThreads) gate_parameters_kernel(Problem<T> p, float* a_log, float* dt_bias) {
  LORA_TRAIN_SHARED(float, slots, 32);
  const std::int64_t head = blockIdx.x, end = p.sequences.cu[p.sequences.count];
  float of_a = 0, of_bias = 0;
  for (std::int64_t n = threadIdx.x; n < end; n += kChunkThreads) {
    const auto dg = static_cast<float>(*p.gates(head, n));
    const float x = load(p.inputs.a[n] + head) + p.inputs.dt_bias[head];
    of_a += dg * softplus(x);
    of_bias += dg * sigmoid(x);
  }
  of_a = block_sum(of_a, slots);
  of_bias = block_sum(of_bias, slots);
  const float rate = -expf(p.inputs.a_log[head]);
  if (threadIdx.x != 0) return;
  if (a_log != nullptr) a_log[head] += rate * of_a;
  if (dt_bias != nullptr) dt_bias[head] += rate * of_bias;
}

}  // namespace

template <class T>
void gated_delta_backward_cuda(GatedDeltaSizes shape, GatedDeltaRows<T> inputs, DeviceSequences sequences,
                               Rows<const T> d_out, float* scratch, GatedDeltaGradientRows<T> gradients,
                               Stream stream) {
  sequences.state_rows = nullptr;
  const Problem<T> p = problem_of(shape, inputs, sequences, scratch);
  const std::int64_t Hv = shape.value_heads;
  const OutputGradient<T> of_out{d_out, fits_packs(d_out, shape.value_size)};
  launch_scan<T>(p, nullptr, {}, /*is_backward=*/true, stream);
  with_padded_size(shape, [&](auto size) {
    constexpr int kD = size;
    launch("gated_delta_values_gradient", values_gradient_kernel<T, kD>, {sequences.num_chunks * Hv}, kChunkThreads,
           stream, p, of_out);
    launch("gated_delta_scan_backward", scan_backward_kernel<T, kD>, {sequences.count * Hv * kSlices<kD>},
           kScanThreads<kD>, stream, p, of_out);
    launch("gated_delta_gradient", gradient_kernel<T, kD>, {sequences.num_chunks * Hv}, kChunkThreads, stream, p,
           of_out, gradients, fits_packs(gradients.qkv, shape.value_size, 2 * shape.key_heads * shape.key_size));
    launch("gated_delta_finish", finish_kernel<T, kD>, {sequences.num_tokens}, kTokenThreads, stream, p, gradients);
  });
  if (gradients.a_log == nullptr && gradients.dt_bias == nullptr) return;
  launch("gated_delta_gate_parameters", gate_parameters_kernel<T>, {Hv}, kChunkThreads, stream, p, gradients.a_log,
         gradients.dt_bias);
}

LORA_TRAIN_INSTANTIATE(gated_delta_backward_cuda);

}  // namespace lora_train::kernels
