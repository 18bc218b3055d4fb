#include "lora_train/kernels/accounting/work_record.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/dispatch/native_kernels.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/cast/cast.h"
#include "lora_train/kernels/causal_conv/causal_conv.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/embedding/embedding.h"
#include "lora_train/kernels/gated_activation/gated_activation.h"
#include "lora_train/kernels/gated_delta/gated_delta.h"
#include "lora_train/kernels/gated_norm/gated_norm.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/kernels/lora/lora.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"
#include "lora_train/kernels/rope/rope.h"
#include "support/on_cpu.h"

namespace lora_train::kernels {
namespace {

struct Call {
  WorkClass work_class;
  std::int64_t read, written, flops = 0, launches = 1;
};

/// Keeps all calls.
struct Kept : WorkRecorder {
  Kept() { set_work_recorder(this); }
  ~Kept() override { set_work_recorder(nullptr); }
  void begin(const Work&) override { ++num_begun; }
  void end(const Work& work) override { calls.push_back(work); }
  const Work& only() const {
    EXPECT_EQ(calls.size(), 1U);
    return calls.at(0);
  }
  /// These calls since the last time, and no others.
  void expect(const std::vector<Call>& want) {
    ASSERT_EQ(calls.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(calls[i].name);
      EXPECT_EQ(calls[i].work_class, want[i].work_class);
      EXPECT_EQ(calls[i].bytes_read(), want[i].read);
      EXPECT_EQ(calls[i].bytes_written(), want[i].written);
      EXPECT_EQ(calls[i].flops, want[i].flops);
      EXPECT_EQ(calls[i].num_launches, want[i].launches);
    }
    calls.clear();
  }
  int num_begun = 0;
  std::vector<Work> calls;
};

at::Tensor meta(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) {
  return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
}

// 100 tokens, 64 features, heads of 16, bf16: 2 bytes.
constexpr std::int64_t N = 100, D = 64, H = 4, K = 2, E = 16, kMatrix = N * D * 2;

TEST(WorkRecord, NormReadsEachRowOnceAndMoreForTheGradientOfItsWeight) {
  const at::Tensor x = meta({N, D}), weight = meta({D}), residual = meta({N, D});
  at::Tensor y = meta({N, D}), rstd = meta({N}, at::kFloat), dx = meta({N, D}), dweight = meta({D}, at::kFloat);
  Kept kept;
  rms_norm_forward(x, weight, 1e-6, y, rstd);
  rms_norm_forward(x, weight, 1e-6, y, rstd, 1, residual);
  rms_norm_backward(y, x, weight, rstd, dx, true, nullptr);
  rms_norm_backward(y, x, weight, rstd, dx, false, &dweight);
  kept.expect({{WorkClass::kNorm, kMatrix + 2 * D, kMatrix + 4 * N},
               {WorkClass::kNorm, 2 * kMatrix + 2 * D, kMatrix + 4 * N},
               {WorkClass::kNorm, 3 * kMatrix + 2 * D + 4 * N, kMatrix},
               {WorkClass::kNorm, 4 * kMatrix + 2 * D + 8 * N + 4 * D, kMatrix + 4 * D, 0, 2}});
}

TEST(WorkRecord, SwigluMovesThreeAndFivePartsAFeature) {
  const at::Tensor x = meta({N, D});
  at::Tensor y = meta({N, D}), d = meta({N, D});
  Kept kept;
  gated_activation_forward(x, x, y);
  gated_activation_backward(x, x, x, y, d);
  kept.expect(
      {{WorkClass::kGatedActivation, 2 * kMatrix, kMatrix}, {WorkClass::kGatedActivation, 3 * kMatrix, 2 * kMatrix}});
}

TEST(WorkRecord, TheGatedDeltaRuleCountsPairsInChunksOf64) {
  const GatedDeltaSizes sizes{2, 4, 16, 24};
  constexpr std::int64_t kQkv = N * (2 * 2 * 16 + 4 * 24) * 2, kOut = N * 4 * 24 * 2, kGates = 2 * N * 4 * 2;
  constexpr std::int64_t kOfHeads = 2 * 4 * 4, kState = 4 * 16 * 24 * 4;
  const GatedDeltaInputs inputs{meta({N, kQkv / N / 2}), meta({N, 4}), meta({N, 4}), meta({4}, at::kFloat),
                                meta({4}, at::kFloat)};
  at::Tensor state = meta({3, 4, 16, 24}, at::kFloat), scratch, out = meta({N, 4 * 24});
  GatedDeltaGradients gradients{meta({N, kQkv / N / 2}), meta({N, 4}), meta({N, 4}), {}, {}};
  Sequences sequences;
  sequences.cu_seqlens = {0, 90, 95};
  constexpr std::int64_t kPairs = 64 * 65 / 2 + 26 * 27 / 2 + 5 * 6 / 2;
  Kept kept;
  gated_delta_forward(sizes, inputs, sequences, state, scratch, out);
  gated_delta_backward(sizes, inputs, sequences, out, scratch, gradients);
  sequences.state_rows = meta({2}, at::kLong);
  gated_delta_forward(sizes, inputs, sequences, state, scratch, out);
  constexpr std::int64_t kForward = 2 * 4 * (2 * kPairs * (16 + 24) + 3 * 95 * 16 * 24);
  kept.expect({{WorkClass::kGatedDelta, kQkv + kGates + kOfHeads, kOut, kForward},
               {WorkClass::kGatedDelta, 2 * (kQkv + kGates) + kOut + kOfHeads + kState, kQkv + kGates + kState,
                2 * 4 * (kPairs * (7 * 16 + 6 * 24) + 9 * 95 * 16 * 24)},
               {WorkClass::kGatedDelta, kQkv + kGates + kOfHeads + 2 * kState, kOut + 2 * kState, kForward}});
}

TEST(WorkRecord, ConvolutionAndGatedNormReadTheirInputsAgainForTheGradientsOfWeights) {
  const at::Tensor x = meta({N, D}), filter = meta({D, 4}), weight = meta({E});
  at::Tensor y = meta({N, D}), d = meta({N, D}), none, state = meta({5, D, 3});
  at::Tensor d_filter = meta({D, 4}, at::kFloat), d_weight = meta({E}, at::kFloat);
  Sequences sequences = make_sequences({0, 60, N}, at::kCPU);
  const std::int64_t f = D * 4, states = 2 * D * 3 * 2;  // of two sequences
  Kept kept;
  causal_conv_forward(x, filter, sequences, none, y);
  causal_conv_backward(x, x, filter, sequences, y, none);
  causal_conv_backward(x, x, filter, sequences, y, d_filter);
  sequences.state_rows = at::arange(2);
  causal_conv_forward(x, filter, sequences, state, y);
  gated_norm_forward(x, x, weight, 1e-6, y);
  gated_norm_backward(x, x, x, weight, 1e-6, y, d, none);
  gated_norm_backward(x, x, x, weight, 1e-6, y, d, d_weight);
  kept.expect({{WorkClass::kGatedDelta, kMatrix + 2 * f, kMatrix},
               {WorkClass::kGatedDelta, 2 * kMatrix + 2 * f, kMatrix},
               {WorkClass::kGatedDelta, 4 * kMatrix + 6 * f, kMatrix + 4 * f, 0, 3},
               {WorkClass::kGatedDelta, kMatrix + 2 * f + states, kMatrix + states},
               {WorkClass::kGatedDelta, 2 * kMatrix + 2 * E, kMatrix},
               {WorkClass::kGatedDelta, 3 * kMatrix + 2 * E, 2 * kMatrix},
               {WorkClass::kGatedDelta, 6 * kMatrix + 6 * E, 2 * kMatrix + 4 * E, 0, 3}});
}

TEST(WorkRecord, RopeLeavesTheValuesAlone) {
  const RopeTable table{meta({N, E / 2}, at::kFloat), meta({N, E / 2}, at::kFloat)};
  at::Tensor qkv = meta({N, (H + 2 * K) * E});
  const at::Tensor positions = meta({N}, at::kInt);
  const std::int64_t qk = N * (H + K) * E * 2, v = N * K * E * 2;
  const auto in_place = [&](const at::Tensor& wide) -> AttentionGradients {
    return {wide.narrow(1, 0, H * E).unflatten(1, {H, E}), wide.narrow(1, H * E, K * E).unflatten(1, {K, E}),
            wide.narrow(1, (H + K) * E, K * E).unflatten(1, {K, E})};
  };
  const AttentionGradients apart = {meta({N, H, E}), meta({N, K, E}), meta({N, K, E})};
  QkNorm none, norm{meta({E}), meta({E}), 1e-6, meta({N, (H + K) * E}), meta({H + K, N}, at::kFloat), {}, {}};
  const QkRotation rotation{H, K, E, positions, table};
  const std::int64_t rstd = 4 * (H + K) * N;
  Kept kept;
  qk_norm_rope_forward(qkv, rotation, none);
  qk_norm_rope_backward(in_place(qkv), rotation, none, qkv);
  qk_norm_rope_backward(apart, rotation, none, qkv);
  qk_norm_rope_forward(qkv, rotation, norm);
  qk_norm_rope_backward(in_place(qkv), rotation, norm, qkv);
  norm.grad_q_weight = meta({E}, at::kFloat);
  qk_norm_rope_backward(apart, rotation, norm, qkv);
  kept.expect({{WorkClass::kRope, qk + 4 * N, qk},
               {WorkClass::kRope, qk + 4 * N, qk},
               {WorkClass::kRope, qk + v + 4 * N, qk + v},
               {WorkClass::kRope, qk + 4 * N, 2 * qk + rstd},
               {WorkClass::kRope, 2 * qk + 4 * N + rstd, qk},
               {WorkClass::kRope, 4 * qk + v + 8 * N + 2 * rstd, qk + v, 0, 3}});
}

TEST(WorkRecord, AProductReadsItsOperandsOnceAndWhatItAddsTo) {
  constexpr std::int64_t O = 32;
  const at::Tensor x = meta({N, D}), weight = meta({O, D}), bias = meta({O}), residual = meta({N, O});
  at::Tensor y = meta({N, O});
  const std::int64_t operands = kMatrix + 2 * O * D, result = 2 * N * O;
  Kept kept;
  gemm(x, weight.t(), y, {.bias = bias, .residual = residual});
  gemm(x, weight.t(), y, {.accumulate = true, .work_class = WorkClass::kLora});
  kept.expect({{WorkClass::kGemm, operands + 2 * O + result, result, 2 * N * O * D},
               {WorkClass::kLora, operands + result, result, 2 * N * O * D}});
}

/// Documents that begin there, by a backend.
AttentionLayout attention_layout(const std::vector<std::int64_t>& cu_seqlens, AttentionBackend backend) {
  AttentionLayout layout;
  layout.cu_seqlens_q = layout.cu_seqlens_k = cu_seqlens;
  layout.backend = backend;
  return layout;
}

TEST(WorkRecord, AttentionComputesWhatAQueryMaySee) {
  const at::Tensor q = meta({N, H, E}), k = meta({N, K, E});
  at::Tensor out = meta({N, H, E}), lse = meta({N, H}, at::kFloat);
  AttentionGradients gradients{meta({N, H, E}), meta({N, K, E}), meta({N, K, E})};
  AttentionLayout layout = attention_layout({0, 60, 100}, AttentionBackend::kReference);  // whose copies nobody counts
  const std::int64_t visible = 60 * 61 / 2 + 40 * 41 / 2, rows = 2 * N * E, statistics = 4 * N * H;
  Kept kept;
  attention_forward(q, k, k, layout, out, lse);
  attention_backward(out, q, k, k, out, lse, layout, gradients);
  kept.expect(
      {{WorkClass::kAttention, (H + 2 * K) * rows, H * rows + statistics, 4 * visible * H * E},
       {WorkClass::kAttention, (3 * H + 2 * K) * rows + statistics, (H + 2 * K) * rows, 10 * visible * H * E, 3}});
  layout.window = 10;  // nine queries of a document see fewer
  attention_forward(q, k, k, layout, out, lse);
  EXPECT_EQ(kept.only().flops, 4 * (2 * (9 * 10 / 2) + 51 * 10 + 31 * 10) * H * E);
}

TEST(WorkRecord, FlashAttentionsCopiesCountAndGradientsOfAFusedBackendAreNotCopied) {
  const at::Tensor q = meta({N, H, E}), k = meta({N, K, E});
  at::Tensor out = meta({N, H, E}), lse = meta({N, H}, at::kFloat);
  const AttentionGradients places{meta({N, H, E}), meta({N, K, E}), meta({N, K, E})};
  const std::int64_t rows = 2 * N * E, statistics = 4 * N * H;
  Kept kept;
  attention_forward(q, q, q, attention_layout({0, N}, AttentionBackend::kFa2), out, lse);
  kept.expect({{WorkClass::kAttention, 4 * H * rows + statistics, 2 * (H * rows + statistics),
                4 * (N * (N + 1) / 2) * H * E, 3}});
  const auto backward = [&](AttentionBackend backend) {
    AttentionGradients gradients = places;
    attention_backward(out, q, k, k, out, lse, attention_layout({0, N - 10}, backend), gradients);
    return gradients;
  };
  const AttentionGradients fa2 = backward(AttentionBackend::kFa2), cudnn = backward(AttentionBackend::kCudnn);
  const std::int64_t read = (3 * H + 2 * K) * rows + statistics, written = (H + 2 * K) * rows;
  const std::int64_t flops = 10 * ((N - 10) * (N - 9) / 2) * H * E;
  const std::int64_t copied = statistics + 2 * H * rows;  // lse, and dk and dv of every head
  kept.expect({{WorkClass::kAttention, read + copied, written + copied, flops, 6},
               {WorkClass::kAttention, read, written, flops, 3}});
  EXPECT_FALSE(fa2.q.is_alias_of(places.q) || cudnn.v.is_alias_of(places.v));
  EXPECT_EQ(fa2.k.sizes(), at::IntArrayRef({N - 10, K, E}));  // ends with the last document
  const AttentionGradients own = backward(AttentionBackend::kReference);
  EXPECT_TRUE(own.q.is_same(places.q) && own.k.is_same(places.k) && own.v.is_same(places.v));
}

TEST(WorkRecord, CopiesAndRows) {
  const at::Tensor x = meta({N, D}), rows = meta({10}, at::kLong), token = meta({N}, at::kInt);
  at::Tensor y = meta({N, D}), picked = meta({10, D}), wide = meta({N, D}, at::kFloat);
  Kept kept;
  scaled_copy(x, 2, wide);
  gather_rows(x, rows, picked);
  scatter_rows(picked, rows, y);
  embedding_forward(token, meta({1000, D}), {}, y);
  kept.expect({{WorkClass::kCopy, kMatrix, 2 * kMatrix},
               {WorkClass::kLoss, 80 + 20 * D, 20 * D},
               {WorkClass::kLoss, 80 + 20 * D, kMatrix},
               {WorkClass::kEmbedding, kMatrix + 4 * N, kMatrix}});
}

TEST(WorkRecord, QuantizedWeights) {
  Dequantizations layer;
  const QuantizedWeight nf4 = make_quantized_weight(WeightCode::k4Bit, N, D, at::kMeta);
  QuantizedWeight nested = nf4;
  finish_nested(nested);
  at::Tensor out = meta({N, D});
  layer.add(nf4, out);
  layer.add(nested, out);
  at::Tensor columns = meta({D, 16});
  layer.add(meta({D, 16}), 2.0, columns);
  const std::int64_t blocks = (N * D + 63) / 64, kColumns = D * 16 * 2;
  const std::int64_t read = N * D / 2 * 2 + 5 * blocks + 4 * ((blocks + 255) / 256) + kColumns;
  Kept kept;
  layer.run();
  kept.expect({{WorkClass::kDecode, read, 2 * kMatrix + kColumns}});
}

TEST(WorkRecord, ACallInsideOfAnotherIsNoCall) {
  const RopeTable table = make_rope_table(at::ones({E / 2}), N, 1);
  at::Tensor qkv = at::ones({N, (H + 2 * K) * E});
  const at::Tensor positions = at::zeros({N}, at::kInt);
  QkNorm norm{at::ones({E}), at::ones({E}), 1e-6, at::empty({N, (H + K) * E}), at::empty({H + K, N}), {}, {}};
  Kept kept;
  qk_norm_rope_forward(qkv, {H, K, E, positions, table}, norm);  // on a CPU made of rms_norm and rope
  EXPECT_EQ(kept.only().name, "qk_norm_rope_forward");
  EXPECT_EQ(kept.num_begun, 1);
}

TEST(WorkRecord, NobodyListensUnlessSet) {
  at::Tensor y = at::empty({2, 3});
  {
    Kept kept;
    gated_activation_forward(at::ones({2, 3}), at::ones({2, 3}), y);
    EXPECT_EQ(kept.calls.size(), 1U);
  }
  int num_described = 0;
  const WorkScope scope("nothing", WorkClass::kCopy, [&](Work&) { ++num_described; });
  EXPECT_EQ(num_described, 0);
}

TEST(WorkRecord, GradientsOfLoraComputeTheRanksOfTheirPartsAloneAndReadDyOnceWhereOneKernelGivesBoth) {
  const at::Tensor grad = meta({D, 16}, at::kFloat), s = meta({N, 16}), b = meta({D, 16}), rows = meta({N, D + 24});
  at::Tensor ds = meta({N, 16});
  const std::int64_t sums = 4 * (4 * 16 * D + 1 * N * 16);  // 4 chunks of 32 tokens, 1 block of columns
  const std::int64_t read = kMatrix + 2 * N * 16 + 2 * D * 16 + 4 * D * 16 + sums;
  Kept kept;
  lora_grad_s_and_b(rows.narrow(1, 8, D), b, s, ds, {{0, 16, 0, D, 1, grad}});
  kept.expect({{WorkClass::kLora, read, 4 * D * 16 + 2 * N * 16 + sums, 2 * 2 * N * D * 16, 2}});
  lora_grad_s_and_b(rows.narrow(1, 4, D), b, s, ds, {{0, 16, 0, D, 1, grad}});  // rows that allow no packs
  ASSERT_EQ(kept.calls.size(), 2U);
  EXPECT_EQ(kept.calls[0].work_class, WorkClass::kLora);
  EXPECT_EQ(kept.calls[1].name, "lora_grad_b");
  lora_grad_a(meta({N, 48}), meta({N, D}), {{32, 16, 0, 0, 1, meta({16, D}, at::kFloat)}});
  ASSERT_EQ(kept.calls.size(), 3U);
  EXPECT_EQ(kept.calls[2].flops, 2 * N * D * 16);
}

/// Our CUDA kernels, compiled for the CPU, in the place of the CPU's.
struct NativeOnCpu {
  NativeOnCpu() { use_native_kernels({&linked_native_kernels(), nullptr, true}); }
  ~NativeOnCpu() { use_native_kernels({}); }
};

TEST(WorkRecord, SaidLaunchesAreThoseOfTheLaunchLayer) {
  const NativeOnCpu own;
  const at::Tensor x = at::ones({N, D}), weight = at::ones({D}), s = at::ones({N, 4});
  at::Tensor y = at::empty({N, D}), rstd = at::empty({N}), dx = at::zeros({N, D}), dweight = at::zeros({D});
  at::Tensor bf16 = at::empty({N, D}, at::kBFloat16), picked = at::empty({2, D});
  const at::Tensor rows = at::arange(2);
  const RopeTable table = make_rope_table(at::ones({E / 2}), N, 1);
  at::Tensor qkv = at::ones({N, (H + 2 * K) * E});
  const AttentionGradients gradients{at::ones({N, H, E}), at::ones({N, K, E}), at::ones({N, K, E})};
  const at::Tensor positions = at::zeros({N}, at::kInt);
  QkNorm norm{at::ones({E}),        at::ones({E}),  1e-6,          at::ones({N, (H + K) * E}),
              at::ones({H + K, N}), at::zeros({E}), at::zeros({E})};
  Kept kept;
  const auto before = on_cpu::num_launches();
  rms_norm_forward(x, weight, 1e-6, y, rstd);
  rms_norm_backward(x, x, weight, rstd, dx, true, nullptr);
  rms_norm_backward(x, x, weight, rstd, dx, true, &dweight);
  gated_activation_forward(x, x, y);
  gated_activation_backward(x, x, x, dx, y);
  scaled_copy(x, 2, bf16);
  gather_rows(x, rows, picked);
  scatter_rows(picked, rows, y);
  qk_norm_rope_forward(qkv, {H, K, E, positions, table}, norm);
  qk_norm_rope_backward(gradients, {H, K, E, positions, table}, norm, qkv);
  norm = {};
  qk_norm_rope_backward(gradients, {H, K, E, positions, table}, norm, qkv);
  const at::Tensor dy = at::ones({N, D}, at::kBFloat16), b = at::ones({D, 70}, at::kBFloat16),
                   grad = at::zeros({D, 70});
  at::Tensor ds = at::empty({N, 70}, at::kBFloat16);
  const at::Tensor first_grad = at::zeros({D, 4}), first_b = b.narrow(1, 0, 4), first_s = s.to(at::kBFloat16);
  at::Tensor first_ds = ds.narrow(1, 0, 4);
  lora_grad_s_and_b(dy, first_b, first_s, first_ds, {{0, 4, 0, D, 1, first_grad}});
  lora_grad_b(dy, ds, {{0, 70, 0, D, 1, grad}});
  lora_grad_a(s, x, {{1, 3, 0, 0, 1, at::zeros({3, D})}});
  const at::Tensor filter = at::ones({D, 4});
  at::Tensor d_filter = at::zeros({D, 4}), none;
  const Sequences sequences = make_sequences({0, 60, N}, at::kCPU);
  causal_conv_forward(x, filter, sequences, none, y);
  for (at::Tensor* of_filter : {&none, &d_filter}) causal_conv_backward(x, x, filter, sequences, dx, *of_filter);
  gated_norm_forward(x, x, weight, 1e-6, y);
  for (at::Tensor* of_weight : {&none, &dweight}) gated_norm_backward(x, x, x, weight, 1e-6, dx, y, *of_weight);
  std::int64_t said = 0;
  for (const Work& work : kept.calls) said += work.num_launches;
  EXPECT_EQ(kept.calls.size(), 20U);
  EXPECT_EQ(said, on_cpu::num_launches() - before);
}

}  // namespace
}  // namespace lora_train::kernels
