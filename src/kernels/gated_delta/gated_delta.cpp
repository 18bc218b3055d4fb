#include "lora_train/kernels/gated_delta/gated_delta.h"

#include <algorithm>
#include <cmath>

#include "dispatch/arguments.h"
#include "gated_delta_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {
namespace {

void check_gated_delta(const char* kernel, const GatedDeltaSizes& sizes, const GatedDeltaInputs& inputs,
                       const Sequences& sequences) {
  if (sizes.key_heads < 1 || sizes.value_heads < 1 || sizes.value_heads % sizes.key_heads != 0 || sizes.key_size < 1 ||
      sizes.value_size < 1) {
    throw ShapeError(kernel, "{} value heads of {} cannot share {} key heads of {}", sizes.value_heads,
                     sizes.value_size, sizes.key_heads, sizes.key_size);
  }
  check_floating(kernel, "qkv", inputs.qkv, {-1, sizes.qkv_width()});
  const std::int64_t N = inputs.qkv.size(0), heads = sizes.value_heads;
  check_rows(kernel, "a", inputs.a, {N, heads}, inputs.qkv.scalar_type());
  check_rows(kernel, "b", inputs.b, {N, heads}, inputs.qkv.scalar_type());
  check_vector(kernel, "a_log", inputs.a_log, heads, math_dtype(inputs.qkv));
  check_vector(kernel, "dt_bias", inputs.dt_bias, heads, math_dtype(inputs.qkv));
  check_sequences(kernel, sequences, N);
}

void check_delta_scratch(const char* kernel, const GatedDeltaSizes& sizes, const at::Tensor& qkv,
                         const at::Tensor& scratch) {
  check_rows(kernel, "scratch", scratch, {qkv.size(0), gated_delta_scratch_width(sizes)}, qkv.scalar_type());
  check_contiguous(kernel, "scratch", scratch);
}

/// Tokens of chunks, and pairs of tokens (i >= j) of one chunk.
struct ChunkCounts {
  std::int64_t tokens = 0, pairs = 0, kept_states = 0;
};
ChunkCounts count_chunks(const Sequences& sequences) {
  ChunkCounts counts;
  const auto pairs_of = [](std::int64_t tokens) { return tokens * (tokens + 1) / 2; };
  for (std::int64_t s = 0; s < sequences.size(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    const std::int64_t n = sequences.cu_seqlens[i + 1] - sequences.cu_seqlens[i], chunks = n / kChunkTokens;
    counts.tokens += n;
    counts.pairs += chunks * pairs_of(kChunkTokens) + pairs_of(n % kChunkTokens);
    counts.kept_states += n == 0 ? 0 : (n - 1) / kChunkTokens;
  }
  return counts;
}

template <class T>
GatedDeltaRows<T> delta_rows(const GatedDeltaInputs& inputs) {
  return {read_rows<T>(inputs.qkv), read_rows<T>(inputs.a), read_rows<T>(inputs.b), read<float>(inputs.a_log),
          read<float>(inputs.dt_bias)};
}

/// Scratch memory as floats: rows of a buffer are aligned and contiguous.
float* delta_scratch(at::Tensor& scratch) { return static_cast<float*>(scratch.mutable_data_ptr()); }

DeviceSequences device_sequences(const char* kernel, const Sequences& sequences, std::int64_t num_tokens) {
  check_vector(kernel, "cu_chunks", sequences.cu_chunks, sequences.size() + 1, at::kInt);
  check_rows(kernel, "chunk_sequence", sequences.chunk_sequence, {-1}, at::kInt);
  return {device_ranges(kernel, sequences, num_tokens), read<std::int32_t>(sequences.cu_chunks),
          read<std::int32_t>(sequences.chunk_sequence), sequences.chunk_sequence.size(0)};
}

// The reference.

/// Everything per token and value head, in the dtype of the math.
struct RecurrentInputs {
  at::Tensor raw_q, raw_k;  ///< [N, Hk, dk]
  at::Tensor q, k, v;       ///< [N, Hv, dk] normed, [N, Hv, dv]
  at::Tensor g, beta;       ///< [N, Hv]
};

at::Tensor norm_factor(const at::Tensor& x) { return x.square().sum(-1, /*keepdim=*/true).add(1e-6).rsqrt(); }

at::Tensor softplus(const at::Tensor& x) { return x.clamp_min(0) + x.abs().neg().exp().log1p(); }

RecurrentInputs recurrent_inputs(const GatedDeltaSizes& sizes, const GatedDeltaInputs& inputs) {
  const std::int64_t keys = sizes.key_width(), shared = sizes.value_heads / sizes.key_heads;
  const at::Tensor qkv = to_math(inputs.qkv);
  const auto heads = [&](std::int64_t begin, std::int64_t count, std::int64_t size) {
    return qkv.narrow(1, begin, count * size).unflatten(1, {count, size});
  };
  RecurrentInputs r;
  r.raw_q = heads(0, sizes.key_heads, sizes.key_size);
  r.raw_k = heads(keys, sizes.key_heads, sizes.key_size);
  r.v = heads(2 * keys, sizes.value_heads, sizes.value_size);
  const double scale = 1 / std::sqrt(static_cast<double>(sizes.key_size));
  r.q = (r.raw_q * norm_factor(r.raw_q) * scale).repeat_interleave(shared, 1);
  r.k = (r.raw_k * norm_factor(r.raw_k)).repeat_interleave(shared, 1);
  r.g = -inputs.a_log.exp() * softplus(to_math(inputs.a) + inputs.dt_bias);
  r.beta = at::sigmoid(to_math(inputs.b));
  return r;
}

/// One token of all heads: decays M, and adds k u^T.
struct RecurrentStep {
  at::Tensor decayed, u;  ///< P [Hv, dk, dv], u [Hv, dv]
  RecurrentStep(const RecurrentInputs& in, std::int64_t t, at::Tensor& state) {
    decayed = in.g[t].exp().unsqueeze(-1).unsqueeze(-1) * state;
    u = in.beta[t].unsqueeze(-1) * error(in, t);
    state = decayed + in.k[t].unsqueeze(-1) * u.unsqueeze(1);
  }
  /// v - P^T k
  at::Tensor error(const RecurrentInputs& in, std::int64_t t) const {
    return in.v[t] - (decayed * in.k[t].unsqueeze(-1)).sum(1);
  }
};

at::Tensor zero_state(const GatedDeltaSizes& sizes, const at::Tensor& v) {
  return at::zeros({sizes.value_heads, sizes.key_size, sizes.value_size}, v.options());
}

/// From the gradient of scale x / |x| to that of x [N, Hk, dk], summed over the value heads that share a key head.
at::Tensor norm_backward(const at::Tensor& d, const at::Tensor& x, double scale) {
  const at::Tensor r = norm_factor(x), sum = d.unflatten(1, {x.size(1), d.size(1) / x.size(1)}).sum(2);
  return scale * r * (sum - x * r.square() * (x * sum).sum(-1, true));
}

}  // namespace

void gated_delta_forward(const GatedDeltaSizes& sizes, const GatedDeltaInputs& inputs, const Sequences& sequences,
                         at::Tensor& state, at::Tensor& scratch, at::Tensor& out) {
  constexpr auto kName = "gated_delta_forward";
  check_gated_delta(kName, sizes, inputs, sequences);
  const std::int64_t N = inputs.qkv.size(0);
  check_rows(kName, "out", out, {N, sizes.value_width()}, inputs.qkv.scalar_type());
  if (sequences.state_rows.defined()) {
    check_rows(kName, "state", state, {-1, sizes.value_heads, sizes.key_size, sizes.value_size},
               math_dtype(inputs.qkv));
    check_contiguous(kName, "state", state);
  }
  const WorkScope recorded(kName, WorkClass::kGatedDelta, [&](Work& work) {
    const auto [tokens, pairs, kept_states] = count_chunks(sequences);
    const std::int64_t states = sizes.key_size * sizes.value_size;
    work.reads("qkv", inputs.qkv).reads("a", inputs.a).reads("b", inputs.b).writes("out", out);
    work.reads("a_log", inputs.a_log).reads("dt_bias", inputs.dt_bias);
    if (sequences.state_rows.defined()) {
      const std::int64_t bytes = sequences.size() * sizes.value_heads * states * state.element_size();
      work.moves_bytes("state", bytes, bytes);
    }
    work.multiplies(2 * sizes.value_heads * (2 * pairs * (sizes.key_size + sizes.value_size) + 3 * tokens * states));
  });
  const auto reference = [&] { gated_delta_forward_reference(sizes, inputs, sequences, state, scratch, out); };
  run_kernel(KernelName::kGatedDelta, inputs.qkv, reference, [&]<class T>(ElementType<T>, Implementation how) {
    check_delta_scratch(kName, sizes, inputs.qkv, scratch);
    if (how == Implementation::kCuda) {
      return native_kernels_of<T>().gated_delta_forward(sizes, delta_rows<T>(inputs),
                                                        device_sequences(kName, sequences, N), write<float>(state),
                                                        delta_scratch(scratch), write_rows<T>(out), native_stream());
    }
    gated_delta_forward_cpu<T>(sizes, delta_rows<T>(inputs), host_ranges(sequences, N), write<float>(state),
                               write_rows<T>(out));
  });
}

void gated_delta_backward(const GatedDeltaSizes& sizes, const GatedDeltaInputs& inputs, const Sequences& sequences,
                          const at::Tensor& d_out, at::Tensor& scratch, GatedDeltaGradients& gradients) {
  constexpr auto kName = "gated_delta_backward";
  check_gated_delta(kName, sizes, inputs, sequences);
  if (sequences.state_rows.defined()) throw ShapeError(kName, "sequences with states have no backward");
  const std::int64_t N = inputs.qkv.size(0);
  check_rows(kName, "d_out", d_out, {N, sizes.value_width()}, inputs.qkv.scalar_type());
  check_like(kName, inputs.qkv, {{"gradient of qkv", gradients.qkv}});
  check_like(kName, inputs.a, {{"gradient of a", gradients.a}, {"gradient of b", gradients.b}});
  for (const at::Tensor* gradient : {&gradients.a_log, &gradients.dt_bias}) {
    if (gradient->defined()) {
      check_vector(kName, "gradient of a_log or dt_bias", *gradient, sizes.value_heads, math_dtype(inputs.qkv));
    }
  }
  const WorkScope recorded(kName, WorkClass::kGatedDelta, [&](Work& work) {
    const auto [tokens, pairs, kept_states] = count_chunks(sequences);
    const std::int64_t states = sizes.key_size * sizes.value_size;
    work.reads("qkv", inputs.qkv, 2).reads("a", inputs.a, 2).reads("b", inputs.b, 2).reads("d_out", d_out);
    work.reads("a_log", inputs.a_log).reads("dt_bias", inputs.dt_bias);
    work.writes("d_qkv", gradients.qkv).writes("d_a", gradients.a).writes("d_b", gradients.b);
    work.updates("d_a_log", gradients.a_log).updates("d_dt_bias", gradients.dt_bias);
    work.passes_through("states", kept_states * sizes.value_heads * states * std::int64_t{sizeof(float)});
    work.multiplies(2 * sizes.value_heads *
                    (pairs * (7 * sizes.key_size + 6 * sizes.value_size) + 9 * tokens * states));
  });
  const auto reference = [&] { gated_delta_backward_reference(sizes, inputs, sequences, d_out, scratch, gradients); };
  run_kernel(KernelName::kGatedDelta, inputs.qkv, reference, [&]<class T>(ElementType<T>, Implementation how) {
    check_delta_scratch(kName, sizes, inputs.qkv, scratch);
    const GatedDeltaGradientRows<T> to = {write_rows<T>(gradients.qkv), write_rows<T>(gradients.a),
                                          write_rows<T>(gradients.b), write<float>(gradients.a_log),
                                          write<float>(gradients.dt_bias)};
    if (how == Implementation::kCuda) {
      return native_kernels_of<T>().gated_delta_backward(sizes, delta_rows<T>(inputs),
                                                         device_sequences(kName, sequences, N), read_rows<T>(d_out),
                                                         delta_scratch(scratch), to, native_stream());
    }
    gated_delta_backward_cpu<T>(sizes, delta_rows<T>(inputs), host_ranges(sequences, N), read_rows<T>(d_out),
                                delta_scratch(scratch), to);
  });
}

void gated_delta_forward_reference(const GatedDeltaSizes& sizes, const GatedDeltaInputs& inputs,
                                   const Sequences& sequences, at::Tensor& state, at::Tensor& /*scratch*/,
                                   at::Tensor& out) {
  const RecurrentInputs in = recurrent_inputs(sizes, inputs);
  const at::Tensor rows = sequences.state_rows.defined() ? sequences.state_rows.cpu() : at::Tensor();
  at::Tensor y = at::zeros_like(in.v);
  for (std::int64_t s = 0; s < sequences.size(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    at::Tensor kept = rows.defined() ? state[rows[s].item<std::int64_t>()] : at::Tensor();
    at::Tensor M = kept.defined() ? kept : zero_state(sizes, in.v);
    for (std::int64_t t = sequences.cu_seqlens[i]; t < sequences.cu_seqlens[i + 1]; ++t) {
      const RecurrentStep step(in, t, M);
      y[t].copy_((M * in.q[t].unsqueeze(-1)).sum(1));
    }
    if (kept.defined()) kept.copy_(M);
  }
  out.copy_(y.flatten(1));
}

void gated_delta_backward_reference(const GatedDeltaSizes& sizes, const GatedDeltaInputs& inputs,
                                    const Sequences& sequences, const at::Tensor& d_out, at::Tensor& /*scratch*/,
                                    GatedDeltaGradients& gradients) {
  const RecurrentInputs in = recurrent_inputs(sizes, inputs);
  const at::Tensor d_y = to_math(d_out).unflatten(1, {sizes.value_heads, sizes.value_size});
  at::Tensor dq = at::zeros_like(in.q), dk = at::zeros_like(in.k), dv = at::zeros_like(in.v);
  at::Tensor dg = at::zeros_like(in.g), d_beta = at::zeros_like(in.beta);
  for (std::int64_t s = 0; s < sequences.size(); ++s) {
    const auto i = static_cast<std::size_t>(s);
    const std::int64_t first = sequences.cu_seqlens[i], last = sequences.cu_seqlens[i + 1];
    std::vector<RecurrentStep> steps;
    std::vector<at::Tensor> states;
    at::Tensor M = zero_state(sizes, in.v), D = at::zeros_like(M);
    for (std::int64_t t = first; t < last; ++t) {
      steps.emplace_back(in, t, M);
      states.push_back(M);
    }
    for (std::int64_t t = last - 1; t >= first; --t) {
      const RecurrentStep& step = steps[static_cast<std::size_t>(t - first)];
      const at::Tensor q = in.q[t].unsqueeze(-1), k = in.k[t].unsqueeze(-1), beta = in.beta[t].unsqueeze(-1);
      D = D + q * d_y[t].unsqueeze(1);
      dq[t].copy_((states[static_cast<std::size_t>(t - first)] * d_y[t].unsqueeze(1)).sum(2));
      const at::Tensor du = (D * k).sum(1), w = beta * du;
      d_beta[t].copy_((du * step.error(in, t)).sum(1));
      dv[t].copy_(w);
      dk[t].copy_((D * step.u.unsqueeze(1) - step.decayed * w.unsqueeze(1)).sum(2));
      D = D - k * w.unsqueeze(1);
      dg[t].copy_((D * step.decayed).sum({1, 2}));
      D = D * in.g[t].exp().unsqueeze(-1).unsqueeze(-1);
    }
  }
  const double scale = 1 / std::sqrt(static_cast<double>(sizes.key_size));
  gradients.qkv.copy_(at::cat(
      {norm_backward(dq, in.raw_q, scale).flatten(1), norm_backward(dk, in.raw_k, 1).flatten(1), dv.flatten(1)}, 1));
  const at::Tensor da = -dg * inputs.a_log.exp() * at::sigmoid(to_math(inputs.a) + inputs.dt_bias);
  gradients.a.copy_(da);
  gradients.b.copy_(d_beta * in.beta * (1 - in.beta));
  if (gradients.a_log.defined()) gradients.a_log.add_((dg * in.g).sum(0));
  if (gradients.dt_bias.defined()) gradients.dt_bias.add_(da.sum(0));
}

}  // namespace lora_train::kernels
