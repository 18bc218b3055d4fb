// The gated delta rule of one chunk, in F: float, or double in a test. No torch.
//
// Of a value head, in a chunk of c tokens that begins with the state S [dk, dv]: rows Q, K (normed), V; G the running
// sum of g, Gam_ij = e^(G_i - G_j) for i >= j, else 0 (masked before exp: it overflows above the diagonal), "lower"
// with and "strict" without the diagonal. Sums over earlier tokens of the chunk become products:
//   A = strict(beta_i (k_i . k_j) Gam);  P = lower((q_i . k_j) Gam);  Z = e^G K S
//   N = (I + A)^-1 beta (V - Z);  O = e^G Q S + P N;  S' = e^(G_c) S + K^T (e^(G_c - G) N)
// Backward, given dO and D' = dS':
//   X = (I + A)^-T (P^T dO + e^(G_c - G) K D');  dP = lower(dO N^T) Gam;  dA = -strict(X N^T) Gam;  Y = -beta e^G X
//   dQ = e^G (dO S^T) + dP K;  dV = beta X;  L = e^(G_c - G) N D'^T;  M = beta dA
//   dK = L + dP^T Q + Y S^T + (M + M^T) K;  D = e^(G_c) D' + Q^T (e^G dO) + K^T Y
//   dbeta = rowsum(X (V - Z)) + rowsum(dA (k_i . k_j))
//   dG = rowsum(e^G (dO S^T) Q) - beta rowsum(X Z) + (rowsum - colsum)(dP (q_i . k_j) + M (k_i . k_j)) - rowsum(L K);
//   the last dG also gets sum(L K) + e^(G_c) <D', S>;  dg_i = sum of dG_j for j >= i
#pragma once

#include <cmath>
#include <utility>

#include "gated_delta_parts.h"
#include "small_products.h"

namespace lora_train::kernels::chunked {

using kernels::load;
using kernels::store;
LORA_TRAIN_INLINE double load(const double* p) { return *p; }
LORA_TRAIN_INLINE void store(double* p, double value) { *p = value; }
LORA_TRAIN_INLINE float exp_of(float x) { return fast_exp(x); }
LORA_TRAIN_INLINE double exp_of(double x) { return std::exp(x); }

template <class F>
LORA_TRAIN_INLINE F sigmoid_of(F x) {
  return 1 / (1 + exp_of(-x));
}

/// The gates of a value head.
template <class F>
struct Gates {
  F decay, dt_bias;  ///< g = -decay softplus(a + dt_bias), decay = exp(A_log)
  F g(F a) const {
    const F x = a + dt_bias;
    return -decay * (std::max(x, F{0}) + std::log1p(std::exp(-std::abs(x))));
  }
  F g_slope(F a) const { return -decay * sigmoid_of(a + dt_bias); }
};

/// The memory of a thread: a chunk of a key head, and of one value head at a time. Kept between calls.
template <class F>
struct ChunkWork {
  std::int64_t dk = 0, dv = 0, num_tokens = 0, num_rows = 0;  ///< num_rows: tokens of the chunk, padded

  // Of the key head. k_columns: K^T; qk and kk: products of tokens, lower triangles; scales: normed row / row.
  Matrix<F> q, k, k_columns, qk, kk, dq, dk_sum;
  F q_scale[kChunkTokens], k_scale[kChunkTokens];

  // Of the value head. o: O, or dO; e_rest: e^(G_c - G). G grows large, its differences do not: double.
  Matrix<F> v, z, n, o, gamma, p, minus_a;
  double G[kChunkTokens], dG[kChunkTokens];
  F a[kChunkTokens], g[kChunkTokens], beta[kChunkTokens], dbeta[kChunkTokens], e_G[kChunkTokens], e_rest[kChunkTokens];

  Matrix<F> x, dp, m, n_columns, wide, state_columns, start;  ///< wide: [tokens, dk]; start: S of a backward's chunk
  std::vector<Matrix<F>> states;                              ///< of each value head of the key head

  void resize(std::int64_t key_size, std::int64_t value_size, std::int64_t num_values) {
    if (dk == key_size && dv == value_size && std::ssize(states) == num_values) return;
    dk = key_size;
    dv = value_size;
    for (Matrix<F>* matrix : {&q, &k, &dq, &dk_sum, &wide}) matrix->resize(kChunkTokens, dk);
    for (Matrix<F>* matrix : {&v, &z, &n, &o, &x}) matrix->resize(kChunkTokens, dv);
    for (Matrix<F>* matrix : {&qk, &kk, &gamma, &p, &minus_a, &dp, &m}) matrix->resize(kChunkTokens, kChunkTokens);
    k_columns.resize(dk, kChunkTokens);
    n_columns.resize(dv, kChunkTokens);
    state_columns.resize(dv, dk);
    start.resize(dk, dv);
    states.resize(static_cast<std::size_t>(num_values));
    for (Matrix<F>& state : states) state.resize(dk, dv);
  }

  Matrix<F>& state(std::int64_t r) { return states[static_cast<std::size_t>(r)]; }

  void start_chunk(std::int64_t tokens) {
    num_tokens = tokens;
    num_rows = padded(tokens);
  }
};

template <class F>
LORA_TRAIN_INLINE F dot(const F* a, const F* b, std::int64_t size) {
  F sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

/// to += factor * from
template <class F>
LORA_TRAIN_INLINE void add_row(F factor, const F* from, std::int64_t size, F* to) {
#pragma omp simd
  for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

template <class F>
LORA_TRAIN_INLINE void scale_rows(Matrix<F>& m, std::int64_t rows, std::int64_t columns, const F* factors) {
  for (std::int64_t i = 0; i < rows; ++i) {
    F* const row = m[i];
    const F factor = factors[i];
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) row[j] *= factor;
  }
}

/// Rows of T as F, with zeros where the matrix is padded.
template <class F, class T>
LORA_TRAIN_INLINE void load_rows(Rows<const T> from, std::int64_t rows, std::int64_t columns, Matrix<F>& to) {
  for (std::int64_t i = 0; i < padded(rows); ++i) {
    F* const row = to[i];
    const std::int64_t width = i < rows ? columns : 0;
    if (width != 0) {
      const T* const values = from[i];
#pragma omp simd
      for (std::int64_t j = 0; j < width; ++j) row[j] = load(values + j);
    }
    std::fill(row + width, row + padded(columns), F{0});
  }
}

template <class F, class T>
LORA_TRAIN_INLINE void store_rows(Matrix<F>& from, std::int64_t rows, std::int64_t columns, Rows<T> to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const F* const row = from[i];
    T* const values = to[i];
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) store(values + j, row[j]);
  }
}

/// Rows become scale * x / sqrt(sum of squares + 1e-6).
template <class F>
LORA_TRAIN_INLINE void norm_rows(Matrix<F>& x, std::int64_t rows, std::int64_t columns, F scale, F* scales) {
  for (std::int64_t i = 0; i < rows; ++i) scales[i] = scale / std::sqrt(dot(x[i], x[i], columns) + F(1e-6));
  scale_rows(x, rows, columns, scales);
}

/// From the gradient of the normed rows x to that of the rows.
template <class F>
LORA_TRAIN_INLINE void norm_rows_backward(Matrix<F>& x, std::int64_t rows, std::int64_t columns, F scale,
                                          const F* scales, Matrix<F>& dx) {
  for (std::int64_t i = 0; i < rows; ++i) {
    add_row(-dot(x[i], dx[i], columns) / (scale * scale), x[i], columns, dx[i]);
  }
  scale_rows(dx, rows, columns, scales);
}

/// After q and k of the chunk are loaded.
template <class F>
LORA_TRAIN_INLINE void norm_keys(ChunkWork<F>& w) {
  norm_rows(w.q, w.num_tokens, w.dk, 1 / std::sqrt(F(w.dk)), w.q_scale);
  norm_rows(w.k, w.num_tokens, w.dk, F{1}, w.k_scale);
}

/// From w.dq and w.dk_sum.
template <class F>
LORA_TRAIN_INLINE void norm_keys_backward(ChunkWork<F>& w) {
  norm_rows_backward(w.q, w.num_tokens, w.dk, 1 / std::sqrt(F(w.dk)), w.q_scale, w.dq);
  norm_rows_backward(w.k, w.num_tokens, w.dk, F{1}, w.k_scale, w.dk_sum);
}

template <class Machine, class F>
LORA_TRAIN_INLINE void multiply_keys(ChunkWork<F>& w) {
  const std::int64_t rows = w.num_rows;
  Machine::template call<transpose<F>>(w.k, rows, padded(w.dk), w.k_columns);
  for (const auto& [left, result] : {std::pair{&w.q, &w.qk}, std::pair{&w.k, &w.kk}}) {
    multiply<Machine, F>(rows, rows, w.dk, plain(*left), w.k_columns, F{0}, *result, Triangle::kLowerResult);
  }
}

/// From a and beta of the tokens.
template <class F>
LORA_TRAIN_INLINE void decay_chunk(ChunkWork<F>& w, const Gates<F>& gates) {
  const std::int64_t c = w.num_tokens, rows = w.num_rows;
  double sum = 0;
  for (std::int64_t i = 0; i < c; ++i) {
    w.g[i] = gates.g(w.a[i]);
    sum += static_cast<double>(w.g[i]);
    w.G[i] = sum;
  }
  for (std::int64_t i = 0; i < c; ++i) {
    w.e_G[i] = exp_of(static_cast<F>(w.G[i]));
    w.e_rest[i] = exp_of(static_cast<F>(w.G[c - 1] - w.G[i]));
  }
  for (F* values : {w.beta, w.e_G, w.e_rest}) std::fill(values + c, values + rows, F{0});
  for (std::int64_t i = 0; i < rows; ++i) {
    F *const gamma = w.gamma[i], *const p = w.p[i], *const minus_a = w.minus_a[i];
    const F *const qk = w.qk[i], *const kk = w.kk[i];
    const std::int64_t end = i < c ? i + 1 : 0;
    const F minus_beta = -w.beta[i];
#pragma omp simd
    for (std::int64_t j = 0; j < end; ++j) {
      gamma[j] = exp_of(static_cast<F>(w.G[i] - w.G[j]));
      p[j] = qk[j] * gamma[j];
      minus_a[j] = minus_beta * kk[j] * gamma[j];
    }
    std::fill(p + end, p + rows, F{0});
    std::fill(minus_a + std::max<std::int64_t>(end - 1, 0), minus_a + rows, F{0});
  }
}

constexpr std::int64_t kSolveRows = 8;

/// rows = (I + A)^-1 rows
template <class Machine, class F>
LORA_TRAIN_INLINE void solve_lower(Matrix<F>& minus_a, std::int64_t num_rows, std::int64_t columns, Matrix<F>& rows) {
  for (std::int64_t i = 0; i < num_rows; i += kSolveRows) {
    multiply<Machine, F>(kSolveRows, columns, i, {minus_a[i], minus_a.stride(), 1}, rows, F{1},
                         {rows[i], rows.stride()});
    for (std::int64_t r = i + 1; r < i + kSolveRows; ++r) {
      for (std::int64_t s = i; s < r; ++s) add_row(minus_a[r][s], rows[s], columns, rows[r]);
    }
  }
}

/// rows = (I + A)^-T rows
template <class Machine, class F>
LORA_TRAIN_INLINE void solve_upper(Matrix<F>& minus_a, std::int64_t num_rows, std::int64_t columns, Matrix<F>& rows) {
  for (std::int64_t i = num_rows - kSolveRows; i >= 0; i -= kSolveRows) {
    const std::int64_t end = i + kSolveRows;
    if (end < num_rows) {
      multiply<Machine, F>(kSolveRows, columns, num_rows - end, {minus_a[end] + i, 1, minus_a.stride()},
                           {rows[end], rows.stride()}, F{1}, {rows[i], rows.stride()});
    }
    for (std::int64_t r = end - 2; r >= i; --r) {
      for (std::int64_t s = r + 1; s < end; ++s) add_row(minus_a[s][r], rows[s], columns, rows[r]);
    }
  }
}

/// Z and N of the chunk that begins with `state`.
template <class Machine, class F>
LORA_TRAIN_INLINE void new_values(ChunkWork<F>& w, Matrix<F>& state) {
  const std::int64_t rows = w.num_rows, width = padded(w.dv);
  multiply<Machine, F>(rows, width, w.dk, plain(w.k), state, F{0}, w.z);
  for (std::int64_t i = 0; i < rows; ++i) {
    F *const z = w.z[i], *const n = w.n[i];
    const F* const v = w.v[i];
    const F e_G = w.e_G[i], beta = w.beta[i];
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) {
      z[j] *= e_G;
      n[j] = beta * (v[j] - z[j]);
    }
  }
  Machine::template call<solve_lower<Machine, F>>(w.minus_a, rows, width, w.n);
}

/// O from the state at the start.
template <class Machine, class F>
LORA_TRAIN_INLINE void outputs(ChunkWork<F>& w, Matrix<F>& state) {
  const std::int64_t rows = w.num_rows, width = padded(w.dv);
  multiply<Machine, F>(rows, width, w.dk, plain(w.q), state, F{0}, w.o);
  scale_rows(w.o, rows, width, w.e_G);
  multiply<Machine, F>(rows, width, w.num_tokens, plain(w.p), w.n, F{1}, w.o, Triangle::kLowerLeft);
}

/// The state at the end. Scales N.
template <class Machine, class F>
LORA_TRAIN_INLINE void advance(ChunkWork<F>& w, Matrix<F>& state) {
  const std::int64_t c = w.num_tokens, width = padded(w.dv);
  scale_rows(w.n, c, width, w.e_rest);
  multiply<Machine, F>(padded(w.dk), width, c, transposed(w.k), w.n, w.e_G[c - 1], state);
}

/// dP and M from dO N^T and X N^T; what they give to dbeta and dG. Rows and columns are summed in double: what both
/// hold must cancel, or tokens behind a strong decay get its rounding as a gradient.
template <class F>
LORA_TRAIN_INLINE void pair_gradients(ChunkWork<F>& w) {
  const std::int64_t c = w.num_tokens, rows = w.num_rows;
  double column_sums[kChunkTokens] = {};
  for (std::int64_t i = 0; i < c; ++i) {
    F *const dp = w.dp[i], *const m = w.m[i];
    const F *const gamma = w.gamma[i], *const qk = w.qk[i], *const kk = w.kk[i];
    const F beta = w.beta[i];
    double of_row = 0;
    F of_beta = 0;
#pragma omp simd reduction(+ : of_row, of_beta)
    for (std::int64_t j = 0; j < i; ++j) {
      dp[j] *= gamma[j];
      const F da = -m[j] * gamma[j];
      m[j] = beta * da;
      const auto both = static_cast<double>(dp[j] * qk[j] + m[j] * kk[j]);
      of_beta += da * kk[j];
      of_row += both;
      column_sums[j] += both;
    }
    w.dbeta[i] = of_beta;
    w.dG[i] = of_row;
    std::fill(dp + i + 1, dp + rows, F{0});
    std::fill(m + i, m + rows, F{0});
  }
  for (std::int64_t i = 0; i < c; ++i) w.dG[i] -= column_sums[i];
  for (std::int64_t i = c; i < rows; ++i) {
    std::fill(w.dp[i], w.dp[i] + rows, F{0});
    std::fill(w.m[i], w.m[i] + rows, F{0});
  }
}

/// X to Y (in z) and dV (in v), with what they give to dbeta and dG.
template <class F>
LORA_TRAIN_INLINE void value_gradients(ChunkWork<F>& w) {
  const std::int64_t width = padded(w.dv);
  for (std::int64_t i = 0; i < w.num_rows; ++i) {
    F *const v = w.v[i], *const z = w.z[i];
    const F* const x = w.x[i];
    const F beta = w.beta[i], e_G = w.e_G[i];
    F xv = 0, xz = 0;
#pragma omp simd reduction(+ : xv, xz)
    for (std::int64_t j = 0; j < width; ++j) {
      xv += x[j] * (v[j] - z[j]);
      xz += x[j] * z[j];
      v[j] = beta * x[j];
      z[j] = -e_G * v[j];
    }
    if (i >= w.num_tokens) continue;
    w.dbeta[i] += xv;
    w.dG[i] -= static_cast<double>(beta * xz);
  }
}

/// to += factor * w.wide, row by row, and the product of each row added with that of `beside`.
template <class F>
LORA_TRAIN_INLINE void add_wide(ChunkWork<F>& w, const F* factors, Matrix<F>& beside, Matrix<F>& to, double* products) {
  for (std::int64_t i = 0; i < w.num_tokens; ++i) {
    add_row(factors[i], w.wide[i], padded(w.dk), to[i]);
    products[i] = static_cast<double>(factors[i] * dot(w.wide[i], beside[i], w.dk));
  }
}

/// The gradients of a value head: dq and dk are added to w.dq and w.dk_sum, dv is left in w.v, dbeta and dG in theirs.
/// w.o holds dO, `end` D', which becomes D; `state` is S.
template <class Machine, class F>
LORA_TRAIN_INLINE void backward_of_values(ChunkWork<F>& w, Matrix<F>& state, Matrix<F>& end) {
  const std::int64_t c = w.num_tokens, rows = w.num_rows, keys = padded(w.dk), values = padded(w.dv);
  const F decay = w.e_G[c - 1];
  Machine::template call<new_values<Machine, F>>(w, state);
  multiply<Machine, F>(rows, values, w.dk, plain(w.k), end, F{0}, w.x);
  scale_rows(w.x, rows, values, w.e_rest);
  multiply<Machine, F>(rows, values, c, transposed(w.p), w.o, F{1}, w.x, Triangle::kUpperLeft);
  Machine::template call<solve_upper<Machine, F>>(w.minus_a, rows, values, w.x);

  Machine::template call<transpose<F>>(w.n, rows, values, w.n_columns);
  for (const auto& [left, result] : {std::pair{&w.o, &w.dp}, std::pair{&w.x, &w.m}}) {
    multiply<Machine, F>(rows, rows, w.dv, plain(*left), w.n_columns, F{0}, *result, Triangle::kLowerResult);
  }
  pair_gradients(w);
  value_gradients(w);

  Machine::template call<transpose<F>>(state, keys, values, w.state_columns);
  multiply<Machine, F>(rows, keys, w.dv, plain(w.o), w.state_columns, F{0}, w.wide);
  double products[kChunkTokens];
  add_wide(w, w.e_G, w.q, w.dq, products);
  for (std::int64_t i = 0; i < c; ++i) w.dG[i] += products[i];
  multiply<Machine, F>(rows, keys, w.dv, plain(w.z), w.state_columns, F{1}, w.dk_sum);
  multiply<Machine, F>(rows, keys, c, plain(w.dp), w.k, F{1}, w.dq, Triangle::kLowerLeft);
  multiply<Machine, F>(rows, keys, c, transposed(w.dp), w.q, F{1}, w.dk_sum, Triangle::kUpperLeft);
  multiply<Machine, F>(rows, keys, c, plain(w.m), w.k, F{1}, w.dk_sum, Triangle::kLowerLeft);
  multiply<Machine, F>(rows, keys, c, transposed(w.m), w.k, F{1}, w.dk_sum, Triangle::kUpperLeft);

  Machine::template call<transpose<F>>(end, keys, values, w.state_columns);
  multiply<Machine, F>(rows, keys, w.dv, plain(w.n), w.state_columns, F{0}, w.wide);
  add_wide(w, w.e_rest, w.k, w.dk_sum, products);
  double of_last = 0;
  for (std::int64_t i = 0; i < c; ++i) {
    w.dG[i] -= products[i];
    of_last += products[i];
  }
  for (std::int64_t i = 0; i < w.dk; ++i) of_last += static_cast<double>(decay * dot(end[i], state[i], w.dv));
  w.dG[c - 1] += of_last;

  scale_rows(w.o, rows, values, w.e_G);
  multiply<Machine, F>(keys, values, c, transposed(w.q), w.o, decay, end);
  multiply<Machine, F>(keys, values, c, transposed(w.k), w.z, F{1}, end);
}

/// One token: columns [0, kVectors vectors) of the state of a value head, whose rows lie dv apart. They stay in a near
/// cache between the two passes.
template <class Vector, int kVectors, class F>
LORA_TRAIN_INLINE void step_columns(ChunkWork<F>& w, F e_g, F qk, std::int64_t j, F* state, std::int64_t stride) {
  constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(F);
  const F *const q = w.q[0], *const k = w.k[0];
  Vector sums_q[kVectors] = {}, u[kVectors] = {};
  for (std::int64_t i = 0; i < w.dk; ++i) {
#pragma GCC unroll 4
    for (int x = 0; x < kVectors; ++x) {
      Vector old;
      std::memcpy(&old, state + i * stride + j + x * kLanes, sizeof old);
      sums_q[x] += q[i] * old;
      u[x] += k[i] * old;
    }
  }
#pragma GCC unroll 4
  for (int x = 0; x < kVectors; ++x) {
    Vector v;
    std::memcpy(&v, w.v[0] + j + x * kLanes, sizeof v);
    u[x] = w.beta[0] * (v - e_g * u[x]);
    const Vector o = e_g * sums_q[x] + qk * u[x];
    std::memcpy(w.o[0] + j + x * kLanes, &o, sizeof o);
  }
  for (std::int64_t i = 0; i < w.dk; ++i) {
#pragma GCC unroll 4
    for (int x = 0; x < kVectors; ++x) {
      F* const to = state + i * stride + j + x * kLanes;
      Vector old;
      std::memcpy(&old, to, sizeof old);
      old = e_g * old + k[i] * u[x];
      std::memcpy(to, &old, sizeof old);
    }
  }
}

/// One token of a value head, in the recurrent form: w.o and state [dk, dv], contiguous, from q, k, v and beta.
template <class Machine, class F>
LORA_TRAIN_INLINE void step(ChunkWork<F>& w, F e_g, F* state) {
  using Vector = typename Machine::Vector;
  typedef F One __attribute__((vector_size(sizeof(F))));
  constexpr std::int64_t kLanes = sizeof(Vector) / sizeof(F);
  const F qk = dot(w.q[0], w.k[0], w.dk);
  std::int64_t j = 0;
  for (; j + 4 * kLanes <= w.dv; j += 4 * kLanes) step_columns<Vector, 4>(w, e_g, qk, j, state, w.dv);
  for (; j + kLanes <= w.dv; j += kLanes) step_columns<Vector, 1>(w, e_g, qk, j, state, w.dv);
  for (; j < w.dv; ++j) step_columns<One, 1>(w, e_g, qk, j, state, w.dv);
}

}  // namespace lora_train::kernels::chunked
