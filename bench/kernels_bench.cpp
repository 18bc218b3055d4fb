// Bytes per second of every CPU kernel beside those of a plain copy, and the LoRA products beside at::mm.
// Built with -DLORA_TRAIN_BENCH=ON; run: build/<folder>/bin/kernels_bench [--benchmark_filter=...]
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "lora_train/kernels/dropout/dropout.h"
#include "lora_train/kernels/embedding/embedding.h"
#include "lora_train/kernels/gated_activation/gated_activation.h"
#include "lora_train/kernels/gated_delta/gated_delta.h"
#include "lora_train/kernels/lora/lora.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"
#include "lora_train/kernels/rope/rope.h"
#include "lora_train/optim/adamw.h"

namespace lora_train::kernels {
namespace {

using benchmark::State;

// N tokens, D hidden, F ffn, H heads, K kv heads, E head size, V vocabulary, R rank: near Qwen2.5-1.5B.
constexpr int64_t N = 2048, D = 1536, F = 8960, H = 12, K = 2, E = 128, V = 151936, R = 16;

at::ScalarType dtype_of(const State& state) { return state.range(0) == 0 ? at::kFloat : at::kBFloat16; }

at::Tensor random(const State& state, at::IntArrayRef sizes) { return at::randn(sizes).to(dtype_of(state)); }

/// Runs body and counts the bytes that must move once.
template <class Body>
void measure(State& state, double bytes_moved, const Body& body) {
  for (auto _ : state) {
    body();
  }
  state.SetBytesProcessed(static_cast<int64_t>(bytes_moved * static_cast<double>(state.iterations())));
  state.SetLabel(c10::toString(dtype_of(state)));
}

double bytes(std::initializer_list<at::Tensor> tensors) {
  double sum = 0;
  for (const auto& t : tensors) sum += static_cast<double>(t.nbytes());
  return sum;
}

void copy(State& state) {
  const auto x = random(state, {N, F});
  auto y = at::empty_like(x);
  measure(state, bytes({x, y}), [&] { y.copy_(x); });
}

void rms_norm_forward(State& state) {
  const auto x = random(state, {N, D}), w = random(state, {D});
  auto y = at::empty_like(x), rstd = at::empty({N});
  measure(state, bytes({x, y}), [&] { kernels::rms_norm_forward(x, w, 1e-6, y, rstd); });
}

void rms_norm_backward(State& state) {
  const auto x = random(state, {N, D}), w = random(state, {D}), dy = random(state, {N, D});
  auto dx = at::zeros_like(x), rstd = at::ones({N});
  measure(state, bytes({x, dy, dx, dx}), [&] { kernels::rms_norm_backward(dy, x, w, rstd, dx, true, nullptr); });
}

void rope(State& state) {
  auto x = random(state, {N, H, E});
  const auto table = make_rope_table(at::rand({E / 2}), N, 1.0);
  const auto positions = at::arange(N, at::kInt);
  measure(state, bytes({x, x}), [&] { rope_in_place(x, positions, table, false); });
}

void gated_activation_forward(State& state) {
  const auto parts = random(state, {N, 2 * F}).chunk(2, 1);
  auto y = at::empty({N, F}, parts[0].options());
  measure(state, bytes({parts[0], parts[1], y}), [&] { kernels::gated_activation_forward(parts[0], parts[1], y); });
}

void gated_activation_backward(State& state) {
  const auto parts = random(state, {N, 2 * F}).chunk(2, 1);
  const auto dy = random(state, {N, F});
  auto to = at::empty({N, 2 * F}, dy.options()).chunk(2, 1);
  measure(state, bytes({parts[0], parts[1], dy, to[0], to[1]}),
          [&] { kernels::gated_activation_backward(dy, parts[0], parts[1], to[0], to[1]); });
}

void cross_entropy(State& state) {
  const auto start = random(state, {128, V});
  auto logits = start.clone();
  const auto targets = at::arange(128, at::kInt);
  CrossEntropyOutput output{at::empty({128}), at::empty({128}, at::kBool), at::empty({128})};
  const at::Tensor num_tokens = at::scalar_tensor(1000, at::kDouble);
  measure(state, bytes({logits, logits}), [&] { cross_entropy_in_place(logits, targets, {}, num_tokens, output); });
}

void dropout(State& state) {
  const auto x = random(state, {N, D});
  auto y = at::empty_like(x);
  const auto rows = at::arange(N, at::kInt), documents = at::zeros({N}, at::kInt), key = at::tensor({1, 2}, at::kInt);
  measure(state, bytes({x, y}), [&] { dropout_forward(x, documents, rows, key, 0.05, y); });
}

void embedding(State& state) {
  const auto weight = random(state, {V / 4, D});
  const auto ids = at::randint(V / 4, {N}, at::kInt);
  auto out = at::empty({N, D}, weight.options());
  measure(state, bytes({out, out}), [&] { embedding_forward(ids, weight, {}, out); });
}

void dequantize(State& state, WeightCode code) {
  auto weight = make_quantized_weight(code, F, D, at::kCPU);
  quantize_rows(at::randn({F, D}), 0, weight);
  auto out = random(state, {F, D});
  measure(state, static_cast<double>(bytes_of(weight)) + bytes({out}), [&] { kernels::dequantize(weight, out); });
}

void quantize(State& state, WeightCode code) {
  auto weight = make_quantized_weight(code, F, D, at::kCPU);
  const auto w = random(state, {F, D});
  measure(state, static_cast<double>(bytes_of(weight)) + bytes({w}), [&] { quantize_rows(w, 0, weight); });
}

void lora_grad_b(State& state) {
  const auto dy = random(state, {N, F}), s = random(state, {N, R});
  auto grad = at::zeros({F, R});
  measure(state, bytes({dy}), [&] { kernels::lora_grad_b(dy, s, {{0, R, 0, F, 2.0, grad}}); });
}

void lora_grad_b_mm(State& state) {
  const auto dy = random(state, {N, F}), s = random(state, {N, R});
  measure(state, bytes({dy}), [&] { benchmark::DoNotOptimize(at::mm(dy.t(), s)); });
}

void lora_grad_a(State& state) {
  const auto x = random(state, {N, F}), ds = random(state, {N, R});
  auto grad = at::zeros({R, F});
  measure(state, bytes({x}), [&] { kernels::lora_grad_a(ds, x, {{0, R, 0, 0, 1.0, grad}}); });
}

void lora_grad_a_mm(State& state) {
  const auto x = random(state, {N, F}), ds = random(state, {N, R});
  measure(state, bytes({x}), [&] { benchmark::DoNotOptimize(at::mm(ds.t(), x)); });
}

// Bytes are of no interest here: the label is what is computed, the time what it costs.
void attention(State& state, bool is_backward, int64_t window) {
  const auto q = random(state, {N, H, E}), k = random(state, {N, K, E}), v = random(state, {N, K, E});
  const AttentionLayout layout{{0, N / 2, N}, {0, N / 2, N}, window, 0.088};
  auto out = at::empty_like(q), lse = at::empty({N, H});
  AttentionGradients gradients{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  attention_forward(q, k, v, layout, out, lse);
  measure(state, 0, [&] {
    if (is_backward) {
      attention_backward(q, q, k, v, out, lse, layout, gradients);
    } else {
      attention_forward(q, k, v, layout, out, lse);
    }
  });
}

/// Qwen3.5-0.8B's heads, a document of N tokens. Counts FLOPs: a chunk of 64 takes 2080 pairs of tokens.
void gated_delta(State& state, bool is_backward) {
  const GatedDeltaSizes sizes{16, 16, 128, 128};
  const int64_t heads = sizes.value_heads;
  const GatedDeltaInputs inputs = {random(state, {N, sizes.qkv_width()}), random(state, {N, heads}),
                                   random(state, {N, heads}), at::zeros({heads}), at::zeros({heads})};
  const auto d_out = random(state, {N, sizes.value_width()});
  Sequences sequences;
  sequences.cu_seqlens = {0, N};
  at::Tensor no_state, out = at::empty_like(d_out), scratch = at::empty({N, gated_delta_scratch_width(sizes)});
  GatedDeltaGradients gradients{at::empty_like(inputs.qkv), at::empty_like(inputs.a), at::empty_like(inputs.b),
                                at::zeros({heads}), at::zeros({heads})};
  measure(state, 0, [&] {
    if (is_backward) {
      gated_delta_backward(sizes, inputs, sequences, d_out, scratch, gradients);
    } else {
      gated_delta_forward(sizes, inputs, sequences, no_state, scratch, out);
    }
  });
  const double pairs = N / 64 * 2080, tokens = N, square = 128 * 128;
  const double flops = 2.0 * static_cast<double>(heads) *
                       (is_backward ? 13 * 128 * pairs + 9 * square * tokens : 4 * 128 * pairs + 3 * square * tokens);
  state.counters["FLOPS"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

/// A token of each of 16 sequences.
void gated_delta_decode(State& state) {
  const GatedDeltaSizes sizes{16, 16, 128, 128};
  const int64_t count = 16, heads = sizes.value_heads;
  const GatedDeltaInputs inputs = {random(state, {count, sizes.qkv_width()}), random(state, {count, heads}),
                                   random(state, {count, heads}), at::zeros({heads}), at::zeros({heads})};
  Sequences sequences;
  for (int64_t s = 0; s <= count; ++s) sequences.cu_seqlens.push_back(s);
  sequences.state_rows = at::arange(count, at::kLong);
  at::Tensor states = at::zeros({count, heads, 128, 128}), out = random(state, {count, sizes.value_width()});
  at::Tensor scratch = at::empty({count, gated_delta_scratch_width(sizes)});
  measure(state, bytes({states, states}), [&] { gated_delta_forward(sizes, inputs, sequences, states, scratch, out); });
}

void adamw(State& state) {
  auto p = at::randn({1 << 23}), m = at::zeros_like(p), v = at::zeros_like(p);
  const auto g = at::randn({1 << 23});
  auto scalars = at::zeros({optim::kNumStepScalars}, at::kDouble);
  const auto first = optim::first_scalars(1, 1, 1e-4, {});
  std::copy(first.begin(), first.end(), scalars.mutable_data_ptr<double>());
  scalars[optim::kClipFactor] = 0.5;
  const std::vector<kernels::ParameterBlock> blocks = {{0, p.numel()}};
  measure(state, bytes({p, p, m, m, v, v, g}), [&] { optim::adamw_step(p, g, m, v, {}, blocks, scalars); });
}

#define LORA_TRAIN_BOTH(f) BENCHMARK(f)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)
LORA_TRAIN_BOTH(copy);
LORA_TRAIN_BOTH(rms_norm_forward);
LORA_TRAIN_BOTH(rms_norm_backward);
LORA_TRAIN_BOTH(rope);
LORA_TRAIN_BOTH(gated_activation_forward);
LORA_TRAIN_BOTH(gated_activation_backward);
LORA_TRAIN_BOTH(cross_entropy);
LORA_TRAIN_BOTH(dropout);
LORA_TRAIN_BOTH(embedding);
#define LORA_TRAIN_QUANTIZED(f, code) \
  BENCHMARK_CAPTURE(f, code, WeightCode::code)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)
LORA_TRAIN_QUANTIZED(dequantize, k4Bit);
LORA_TRAIN_QUANTIZED(dequantize, kInt8);
LORA_TRAIN_QUANTIZED(dequantize, kFp8);
LORA_TRAIN_QUANTIZED(quantize, k4Bit);
LORA_TRAIN_QUANTIZED(quantize, kInt8);
LORA_TRAIN_QUANTIZED(quantize, kFp8);
LORA_TRAIN_BOTH(lora_grad_b);
LORA_TRAIN_BOTH(lora_grad_b_mm);
LORA_TRAIN_BOTH(lora_grad_a);
LORA_TRAIN_BOTH(lora_grad_a_mm);
#define LORA_TRAIN_ATTENTION(name, ...) \
  BENCHMARK_CAPTURE(attention, name, __VA_ARGS__)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)
LORA_TRAIN_ATTENTION(forward, false, 0);
LORA_TRAIN_ATTENTION(backward, true, 0);
LORA_TRAIN_ATTENTION(forward_window_256, false, 256);
LORA_TRAIN_ATTENTION(backward_window_256, true, 256);
BENCHMARK_CAPTURE(gated_delta, forward, false)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(gated_delta, backward, true)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
LORA_TRAIN_BOTH(gated_delta_decode);
BENCHMARK(adamw)->Arg(0)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lora_train::kernels

BENCHMARK_MAIN();
