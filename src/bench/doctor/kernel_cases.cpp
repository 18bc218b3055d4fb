// N tokens or rows, M selected ones, D features, F ffn, V vocabulary, R rank, H heads, K kv heads, E head size, P
// parameters.
#include "kernel_cases.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <type_traits>

#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/cast/cast.h"
#include "lora_train/kernels/causal_conv/causal_conv.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/dropout/dropout.h"
#include "lora_train/kernels/embedding/embedding.h"
#include "lora_train/kernels/gated_activation/gated_activation.h"
#include "lora_train/kernels/gated_delta/gated_delta.h"
#include "lora_train/kernels/gated_norm/gated_norm.h"
#include "lora_train/kernels/lora/lora.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"
#include "lora_train/kernels/rope/rope.h"
#include "lora_train/kernels/sampling/sampling.h"
#include "lora_train/optim/adamw.h"
#include "lora_train/optim/optimizer.h"

namespace lora_train::bench {
namespace {

/// Llama's norm, and Gemma's: 1 + weight, with the residual added in the same pass.
void add_rms_norm(const Place& place, std::int64_t N, std::int64_t D, const CaseSink& sink) {
  const at::Tensor x = place.uniform({N, D}), weight = place.uniform({D}), dy = place.uniform({N, D});
  const at::Tensor residual = place.uniform({N, D});
  const auto forward = [=](auto kernel, Outputs& o) { kernel(x, weight, 1e-6, o[0], o[1], 0, {}); };
  const auto add_forward = [=](auto kernel, Outputs& o) {
    kernel(x, weight, 1e-6, o[0], o[1], /*weight_offset=*/1, residual);
  };
  Outputs of_forward = {place.empty({N, D}), place.fp32({N})};
  forward(kernels::rms_norm_forward_reference, of_forward);
  const at::Tensor rstd = of_forward[1];
  const auto backward = [=](double weight_offset) {
    return
        [=](auto kernel, Outputs& o) { kernel(dy, x, weight, rstd, o[0], /*accumulate=*/false, &o[1], weight_offset); };
  };
  const std::string shape = sizes_text({{"N", N}, {"D", D}});
  const Outputs outputs = {place.empty({N, D}), place.fp32({N})}, gradients = {place.empty({N, D}), place.fp32({D})};
  add_case(sink, "rms_norm forward", shape, outputs, forward, kernels::rms_norm_forward,
           kernels::rms_norm_forward_reference);
  add_case(sink, "rms_norm backward", shape, gradients, backward(0), kernels::rms_norm_backward,
           kernels::rms_norm_backward_reference);
  add_case(sink, "rms_norm_add forward", shape, outputs, add_forward, kernels::rms_norm_forward,
           kernels::rms_norm_forward_reference);
  add_case(sink, "rms_norm backward of 1 + weight", shape, gradients, backward(1), kernels::rms_norm_backward,
           kernels::rms_norm_backward_reference);
}

void add_gated_activation(const Place& place, std::int64_t N, std::int64_t F, const CaseSink& sink) {
  const std::vector<at::Tensor> parts = place.uniform({N, 2 * F}).chunk(2, 1);
  const at::Tensor dy = place.uniform({N, F});
  const std::string shape = sizes_text({{"N", N}, {"F", F}});
  using kernels::Activation;
  for (const auto& [name, activation] : {std::pair<std::string, Activation>{"swiglu", Activation::kSilu},
                                         {"geglu", Activation::kGeluTanh},
                                         {"output_gate", Activation::kSigmoid}}) {
    const auto forward = [=, act = activation](auto kernel, Outputs& o) { kernel(parts[0], parts[1], o[0], act); };
    const auto backward = [=, act = activation](auto kernel, Outputs& o) {
      kernel(dy, parts[0], parts[1], o[0], o[1], act);
    };
    add_case(sink, name + " forward", shape, {place.empty({N, F})}, forward, kernels::gated_activation_forward,
             kernels::gated_activation_forward_reference);
    add_case(sink, name + " backward", shape, {place.empty({N, F}), place.empty({N, F})}, backward,
             kernels::gated_activation_backward, kernels::gated_activation_backward_reference);
  }
}

/// What surrounds the gated delta rule: the convolution of sequences of odd lengths, and the norm of H heads.
void add_gated_delta_surroundings(const Place& place, std::int64_t N, std::int64_t H, std::int64_t E,
                                  const CaseSink& sink) {
  const std::int64_t C = H * E, first = N / 3 | 1;
  const at::Tensor x = place.uniform({N, C}), dy = place.uniform({N, C}), gate = place.uniform({N, C});
  const at::Tensor filter = place.uniform({C, 4}), weight = place.uniform({E});
  const kernels::Sequences sequences = kernels::make_sequences({0, first, first, first + 1, N - 1}, place.device);
  const auto convolve = [=](auto kernel, Outputs& o) {
    at::Tensor none;
    kernel(x, filter, sequences, none, o[0]);
  };
  const auto convolve_back = [=](auto kernel, Outputs& o) { kernel(dy, x, filter, sequences, o[0], o[1]); };
  const auto forward = [=](auto kernel, Outputs& o) { kernel(x, gate, weight, 1e-6, o[0]); };
  const auto backward = [=](auto kernel, Outputs& o) { kernel(dy, x, gate, weight, 1e-6, o[0], o[1], o[2]); };
  const std::string shape = sizes_text({{"N", N}, {"H", H}, {"E", E}});
  const at::Tensor out = place.empty({N, C});
  add_case(sink, "causal_conv forward", shape, {out}, convolve, kernels::causal_conv_forward,
           kernels::causal_conv_forward_reference);
  add_case(sink, "causal_conv backward", shape, {out, place.fp32({C, 4})}, convolve_back, kernels::causal_conv_backward,
           kernels::causal_conv_backward_reference);
  add_case(sink, "gated_norm forward", shape, {out}, forward, kernels::gated_norm_forward,
           kernels::gated_norm_forward_reference);
  add_case(sink, "gated_norm backward", shape, {out, out, place.fp32({E})}, backward, kernels::gated_norm_backward,
           kernels::gated_norm_backward_reference);
}

/// Three documents, the second of one token.
void add_gated_delta(const Place& place, std::int64_t N, const kernels::GatedDeltaSizes& sizes, const CaseSink& sink) {
  const std::int64_t heads = sizes.value_heads;
  const kernels::Sequences sequences = kernels::make_sequences({0, N / 3, N / 3 + 1, N}, place.device);
  const kernels::GatedDeltaInputs inputs = {place.uniform({N, sizes.qkv_width()}), place.uniform({N, heads}),
                                            place.uniform({N, heads}), place.fp32({heads}).mul(-4),  // slow
                                            place.fp32({heads})};
  const at::Tensor d_out = place.uniform({N, sizes.value_width()});
  const at::Tensor scratch = at::empty({N, kernels::gated_delta_scratch_width(sizes)}, inputs.qkv.options());
  const auto forward = [=](auto kernel, Outputs& o) {
    at::Tensor no_state, room = scratch;
    kernel(sizes, inputs, sequences, no_state, room, o[0]);
  };
  const auto backward = [=](auto kernel, Outputs& o) {
    at::Tensor room = scratch;
    kernels::GatedDeltaGradients gradients = {o[0], o[1], o[2], o[3], o[4]};
    kernel(sizes, inputs, sequences, d_out, room, gradients);
  };
  const std::string shape =
      sizes_text({{"N", N}, {"Hk", sizes.key_heads}, {"Hv", heads}, {"dk", sizes.key_size}, {"dv", sizes.value_size}});
  add_case(sink, "gated_delta forward", shape, {place.empty(d_out.sizes())}, forward, kernels::gated_delta_forward,
           kernels::gated_delta_forward_reference, sequences.cu_seqlens);
  add_case(sink, "gated_delta backward", shape,
           {place.empty(inputs.qkv.sizes()), place.empty({N, heads}), place.empty({N, heads}), place.fp32({heads}),
            place.fp32({heads})},
           backward, kernels::gated_delta_backward, kernels::gated_delta_backward_reference);
}

kernels::RopeTable rope_table(const Place& place, std::int64_t N, std::int64_t R) {
  const at::Tensor exponents = at::arange(0, R, 2, at::kFloat) / static_cast<double>(R);
  return kernels::make_rope_table(at::pow(10000.0, -exponents).to(place.device), N, 1.0);
}

void add_rope(const Place& place, std::int64_t N, std::int64_t H, std::int64_t E, const CaseSink& sink) {
  const kernels::RopeTable table = rope_table(place, N, E);
  const at::Tensor x = place.uniform({N, H, E}), positions = place.positions(N);
  for (const bool inverse : {false, true}) {
    const auto rotate = [=](auto kernel, Outputs& o) { kernel(o[0], positions, table, inverse); };
    add_case(sink, inverse ? "rope backward" : "rope forward", sizes_text({{"N", N}, {"H", H}, {"E", E}}), {x}, rotate,
             kernels::rope_in_place, kernels::rope_in_place_reference);
  }
}

/// One kernel over the q|k|v buffer, with the norm of the heads: Qwen3's (weight_offset 0) or Gemma's (1). Rotates the
/// first R of E dimensions.
void add_qk_norm_rope(const Place& place, std::int64_t N, std::int64_t H, std::int64_t K, std::int64_t E,
                      std::int64_t R, double weight_offset, const CaseSink& sink) {
  const kernels::RopeTable table = rope_table(place, N, R);
  const at::Tensor positions = place.positions(N), qkv = place.uniform({N, (H + 2 * K) * E});
  const kernels::AttentionGradients d = {place.uniform({N, H, E}), place.uniform({N, K, E}), place.uniform({N, K, E})};
  const kernels::QkNorm weights{place.uniform({E}), place.uniform({E}), 1e-6, {}, {}, {}, {}, weight_offset};
  const auto forward = [=](auto kernel, Outputs& o) {
    kernels::QkNorm norm = weights;
    norm.raw = o[1];
    norm.rstd = o[2];
    kernel(o[0], {H, K, E, positions, table}, norm);
  };
  const Outputs outputs = {qkv, place.empty({N, (H + K) * E}), place.fp32({H + K, N})};
  Outputs kept = {qkv.clone(), outputs[1].clone(), outputs[2].clone()};
  forward(kernels::qk_norm_rope_forward_reference, kept);
  const auto backward = [=](auto kernel, Outputs& o) {
    kernels::QkNorm norm = weights;
    norm.raw = kept[1];
    norm.rstd = kept[2];
    norm.grad_q_weight = o[1];
    norm.grad_k_weight = o[2];
    kernel(d, {H, K, E, positions, table}, norm, o[0]);
  };
  kernels::RopeTable scaled = table;
  scaled.q_scale = (at::arange(N, table.cos.options()).remainder(3) * 0.1).add_(1);  // as of Ministral 3, sooner
  const auto forward_without_norm = [=](auto kernel, Outputs& o) {
    kernels::QkNorm none;
    kernel(o[0], {H, K, E, positions, scaled}, none);
  };
  const auto backward_without_norm = [=](auto kernel, Outputs& o) {
    kernels::QkNorm none;
    kernel(d, {H, K, E, positions, scaled}, none, o[0]);
  };
  const std::string shape = sizes_text({{"N", N}, {"H", H}, {"K", K}, {"E", E}, {"R", R}});
  const std::string of_weight = weight_offset == 0 ? "" : " of 1 + weight";
  const at::Tensor d_qkv = place.empty({N, (H + 2 * K) * E});
  add_case(sink, "qk_norm_rope forward" + of_weight, shape, outputs, forward, kernels::qk_norm_rope_forward,
           kernels::qk_norm_rope_forward_reference);
  add_case(sink, "qk_norm_rope backward" + of_weight, shape, {d_qkv, place.fp32({E}), place.fp32({E})}, backward,
           kernels::qk_norm_rope_backward, kernels::qk_norm_rope_backward_reference);
  if (weight_offset != 0) return;
  add_case(sink, "qkv rope forward", shape, {qkv}, forward_without_norm, kernels::qk_norm_rope_forward,
           kernels::qk_norm_rope_forward_reference);
  add_case(sink, "qkv rope backward", shape, {d_qkv}, backward_without_norm, kernels::qk_norm_rope_backward,
           kernels::qk_norm_rope_backward_reference);
}

void add_cross_entropy(const Place& place, std::int64_t N, std::int64_t V, const CaseSink& sink) {
  const at::Tensor logits = place.uniform({N, V}).mul(4), targets = place.ids(N, V);
  const at::Tensor num_tokens = at::scalar_tensor(2, at::dtype(at::kDouble).device(place.device));
  const auto add = [&](const char* name, const at::Tensor& weights) {
    const auto run = [=](auto kernel, Outputs& o) {
      kernels::CrossEntropyOutput output{.losses = o[1], .correct = {}, .confidence = o[2]};
      kernel(o[0], targets, weights, num_tokens, output);
    };
    add_case(sink, name, sizes_text({{"N", N}, {"V", V}}), {logits, place.fp32({N}), place.fp32({N})}, run,
             kernels::cross_entropy_in_place, kernels::cross_entropy_in_place_reference);
  };
  add("cross_entropy", {});
  add("cross_entropy weighted", place.uniform({N}).to(at::kFloat));
}

void add_embedding(const Place& place, std::int64_t N, std::int64_t V, std::int64_t D, const CaseSink& sink) {
  const at::Tensor ids = place.ids(N, V), host_ids = ids.cpu();
  const at::Tensor weight = place.uniform({V, D}), dout = place.uniform({N, D});
  const std::span<const std::int32_t> values(host_ids.const_data_ptr<std::int32_t>(), static_cast<std::size_t>(N));
  const at::Tensor order = at::tensor(kernels::order_by_id(values), at::kInt).to(place.device);
  const std::string shape = sizes_text({{"N", N}, {"V", V}, {"D", D}});
  for (const double scale : {1.0, 12.0}) {
    const std::string scaled = scale == 1 ? "" : ", scaled";
    const auto forward = [=](auto kernel, Outputs& o) { kernel(ids, weight, kernels::TrainableRows(), o[0], scale); };
    const auto backward = [=](auto kernel, Outputs& o) {
      kernels::TrainableRows none;
      if constexpr (std::is_same_v<decltype(kernel), decltype(&kernels::embedding_backward)>) {
        kernel(ids, dout, o.data(), none, order, scale);
      } else {
        kernel(ids, dout, o.data(), none, scale);
      }
    };
    add_case(sink, "embedding forward" + scaled, shape, {place.empty({N, D})}, forward, kernels::embedding_forward,
             kernels::embedding_forward_reference);
    add_case(sink, "embedding backward" + scaled, shape, {place.fp32({V, D})}, backward, kernels::embedding_backward,
             kernels::embedding_backward_reference);
  }
}

void add_lora(const Place& place, std::int64_t N, std::int64_t D, std::int64_t R, const CaseSink& sink) {
  const at::Tensor wide = place.uniform({N, D}), thin = place.uniform({N, R});
  // Two adapters: the first half of the outputs and ranks, and the rest.
  const std::int64_t half = D / 2, few = R / 2;
  const auto of_a = [=](auto kernel, Outputs& o) {
    kernel(thin, wide, {{0, few, 0, 0, 1, o[0]}, {few, R - few, 0, 0, 1, o[1]}});
  };
  const auto of_b = [=](auto kernel, Outputs& o) {
    kernel(wide, thin, {{0, few, 0, half, 2, o[0]}, {few, R - few, half, D, 0.5, o[1]}});
  };
  const std::string shape = sizes_text({{"N", N}, {"D", D}, {"R", R}});
  add_case(sink, "lora gradient of A", shape, {place.fp32({few, D}), place.fp32({R - few, D})}, of_a,
           kernels::lora_grad_a, kernels::lora_grad_a_reference);
  add_case(sink, "lora gradient of B", shape, {place.fp32({half, few}), place.fp32({D - half, R - few})}, of_b,
           kernels::lora_grad_b, kernels::lora_grad_b_reference);
  // Each adapter has a multiple of 8 outputs for tensor cores.
  const std::int64_t O = D / 16 * 16;
  const at::Tensor dy = place.uniform({N, O}), scaled_b = place.uniform({O, R});
  scaled_b.narrow(0, 0, O / 2).narrow(1, few, R - few).zero_();
  scaled_b.narrow(0, O / 2, O / 2).narrow(1, 0, few).zero_();
  const auto of_s_and_b = [=](auto kernel, Outputs& o) {
    kernel(dy, scaled_b, thin, o[0], {{0, few, 0, O / 2, 2, o[1]}, {few, R - few, O / 2, O, 0.5, o[2]}});
  };
  add_case(sink, "lora gradients of S and B", sizes_text({{"N", N}, {"O", O}, {"R", R}}),
           {place.empty({N, R}), place.fp32({O / 2, few}), place.fp32({O / 2, R - few})}, of_s_and_b,
           kernels::lora_grad_s_and_b, kernels::lora_grad_s_and_b_reference);
}

void add_dropout(const Place& place, std::int64_t N, std::int64_t D, const CaseSink& sink) {
  const at::Tensor x = place.uniform({N, D}), positions = place.positions(N), documents = place.ids(N, 5);
  const at::Tensor key = at::tensor({1234567, 89}, at::kInt).to(place.device);
  const auto run = [=](auto kernel, Outputs& o) { kernel(x, documents, positions, key, 0.1, o[0]); };
  add_case(sink, "dropout", sizes_text({{"N", N}, {"D", D}}), {place.empty({N, D})}, run, kernels::dropout_forward,
           kernels::dropout_forward_reference);
}

/// Every backend that supports a case on this device.
std::vector<kernels::AttentionBackend> backends_of(const Place& place, const AttentionCaseSizes& sizes) {
  if (!place.device.is_cuda()) return {kernels::AttentionBackend::kAuto};
  kernels::AttentionCase c;
  c.dtype = place.dtype;
  c.head_size = sizes.E;
  c.sm = kernels::cuda_compute_capability();
  return kernels::attention_candidates(c);
}

void add_attentions(const Place& place, const AttentionCaseSizes& sizes, const CaseSink& sink) {
  constexpr kernels::CudaAttention kCalls = {&kernels::attention_forward, &kernels::attention_backward};
  for (const auto backend : backends_of(place, sizes)) add_attention(place, sizes, backend, kCalls, sink);
}

void add_cast(const Place& place, std::int64_t N, std::int64_t D, const CaseSink& sink) {
  const at::Tensor from = Place{place.device, at::kFloat}.uniform({N, D});
  const auto copy = [=](auto kernel, Outputs& o) { kernel(from, 2.5, o[0]); };
  add_case(sink, "cast", sizes_text({{"N", N}, {"D", D}}), {place.empty({N, D})}, copy, kernels::scaled_copy,
           kernels::scaled_copy_reference);
}

/// Decodes every format of a quantised weight [O, D] into rows followed by adapter columns.
void add_dequantize(const Place& place, std::int64_t O, std::int64_t D, const CaseSink& sink) {
  const at::Tensor w = Place{place.device, at::kFloat}.uniform({O, D});
  const auto add = [&](const char* name, kernels::WeightCode code, bool is_nested) {
    auto weight = kernels::make_quantized_weight(code, O, D, place.device);
    kernels::quantize_rows(w, 0, weight);
    if (is_nested) kernels::finish_nested(weight);
    const auto decode = [=](auto kernel, Outputs& o) {
      at::Tensor out = o[0].narrow(1, 0, D);
      kernel(weight, out);
    };
    add_case(sink, name, sizes_text({{"O", O}, {"D", D}}), {place.empty({O, D + 16})}, decode, kernels::dequantize,
             kernels::dequantize_reference);
  };
  add("dequantize nf4", kernels::WeightCode::k4Bit, false);
  add("dequantize nested nf4", kernels::WeightCode::k4Bit, true);
  add("dequantize int8", kernels::WeightCode::kInt8, false);
  add("dequantize fp8", kernels::WeightCode::kFp8, false);
}

void add_picked_rows(const Place& place, std::int64_t N, std::int64_t D, const CaseSink& sink) {
  const at::Tensor all = place.uniform({N, D}), rows = at::arange(0, N, 3, at::kLong).to(place.device);
  const std::int64_t M = rows.size(0);
  const at::Tensor picked = place.uniform({M, D});
  const auto gather = [=](auto kernel, Outputs& o) { kernel(all, rows, o[0]); };
  const auto scatter = [=](auto kernel, Outputs& o) { kernel(picked, rows, o[0]); };
  const std::string shape = sizes_text({{"N", N}, {"M", M}, {"D", D}});
  add_case(sink, "gather_rows", shape, {place.empty({M, D})}, gather, kernels::gather_rows,
           kernels::gather_rows_reference);
  add_case(sink, "scatter_rows", shape, {place.empty({N, D})}, scatter, kernels::scatter_rows,
           kernels::scatter_rows_reference);
}

void add_loss_sum(const Place& place, std::int64_t N, const CaseSink& sink) {
  const at::Tensor losses = place.uniform({N}).add(1), sum = at::ones({}, losses.options().dtype(at::kDouble));
  const auto add = [=](auto kernel, Outputs& o) { kernel(losses, at::Tensor(), o[0]); };
  add_case(sink, "add_losses", sizes_text({{"N", N}}), {sum}, add, kernels::add_losses, kernels::add_losses_reference);
}

void add_sampling(const Place& place, std::int64_t V, const CaseSink& sink) {
  const at::Tensor logits = place.uniform({16, V}).mul(8), numbers = at::arange(16, at::kLong).to(place.device);
  const auto sample = [=](auto kernel, Outputs& o) { kernel(logits, {0.9, 50, 0.9, 0.01}, numbers, numbers, o[0]); };
  add_case(sink, "sample_tokens", sizes_text({{"B", 16}, {"V", V}}), {at::zeros({16}, place.positions(1).options())},
           sample, kernels::sample_tokens, kernels::sample_tokens_reference);
}

/// Gradient norm with clipping, then AdamW, in fp32 and in 8 bits.
void add_optimizer(const Place& place, std::int64_t P, const CaseSink& sink) {
  const optim::AdamWOptions options = optim::adamw_options({});
  const auto first = optim::first_scalars(/*step=*/3, /*loss_denominator=*/5, /*learning_rate=*/1e-2, options);
  at::Tensor scalars = at::zeros({optim::kNumStepScalars}, at::kDouble);
  for (std::size_t i = 0; i < first.size(); ++i) scalars[static_cast<std::int64_t>(i)] = first[i];
  scalars = scalars.to(place.device);
  // The norm is clipped and the moments have the same magnitude, so that a wrong term in any of them shows.
  const double size = 1 / std::sqrt(static_cast<double>(P));
  const at::Tensor gradients = place.uniform({P}).mul(size), moments = place.uniform({P}).mul(0.1 * size);
  const at::Tensor squares = place.uniform({P}).mul(0.1 * size).square();
  const auto measure = [=](auto kernel, Outputs& o) { kernel(gradients, /*max_norm=*/0.1, o[0]); };
  Outputs measured = {scalars.clone()};
  measure(optim::measure_gradients_reference, measured);
  const std::vector<kernels::ParameterBlock> blocks = {{0, P / 2}, {P / 2, P - P / 2, 16.0, false}};
  const auto step = [=](auto kernel, Outputs& o) { kernel(o[0], gradients, o[1], o[2], options, blocks, measured[0]); };
  const std::string shape = sizes_text({{"P", P}});
  add_case(sink, "gradient norm", shape, {scalars}, measure, optim::measure_gradients,
           optim::measure_gradients_reference);
  add_case(sink, "adamw", shape, {place.uniform({P}), moments, squares}, step, optim::adamw_step,
           optim::adamw_step_reference);
  if (P < 16384) return;
  // Encoded, fp32, and encoded with a short last block. The second step decodes the codes of the first.
  const std::vector<kernels::ParameterBlock> tensors = {
      {0, P / 2}, {P / 2, 1000, 16.0, false}, {P / 2 + 1000, P - P / 2 - 1000, 16.0, false}};
  const optim::OptimizerState zero(optim::optimizer_for(OptimizerKind::kAdamw8bit), tensors, place.device);
  const auto two_steps = [=, z = zero.tensors](auto kernel, Outputs& o) {
    const optim::AdamW8bitState state = {z[0].clone(), o[1], z[2].clone(), o[2], o[3], o[4], z[6]};
    for (int i = 0; i < 2; ++i) kernel(o[0], gradients, state, options, tensors, o[5]);
  };
  add_case(sink, "adamw_8bit", shape,
           {place.uniform({P}), zero.tensors[1], zero.tensors[3], zero.tensors[4], zero.tensors[5], measured[0]},
           two_steps, optim::adamw_8bit_step, optim::adamw_8bit_step_reference);
}

}  // namespace

void add_attention(const Place& place, const AttentionCaseSizes& sizes, kernels::AttentionBackend backend,
                   const kernels::CudaAttention& calls, const CaseSink& sink) {
  const auto& [N, H, K, E, window] = sizes;
  const std::int64_t first = N / 3 | 1, third = (N - first) / 2 | 1;
  kernels::AttentionLayout layout;
  layout.cu_seqlens_q = {0, 0, first, first, first + 1, first + 1, first + 1, first + 1 + third, N, N};
  layout.cu_seqlens_k = layout.cu_seqlens_q;
  layout.window = window;
  layout.scale = 1 / std::sqrt(static_cast<double>(E));
  layout.backend = backend;
  const at::Tensor q = place.uniform({N, H, E}), k = place.uniform({N, K, E}), v = place.uniform({N, K, E});
  const at::Tensor dout = place.uniform({N, H, E});
  const auto forward = [=](auto kernel, Outputs& o) { kernel(q, k, v, layout, o[0], o[1]); };
  Outputs kept = {place.empty({N, H, E}), place.fp32({N, H})};
  forward(kernels::attention_forward_reference, kept);
  const auto backward = [=](auto kernel, Outputs& o) {
    kernels::AttentionGradients gradients{o[0], o[1], o[2]};
    kernel(dout, q, k, v, kept[0], kept[1], layout, gradients);
    o = {gradients.q, gradients.k, gradients.v};  // a GPU backend may return its own memory
  };
  const std::string of = backend == kernels::AttentionBackend::kAuto ? "" : std::string(" ") + name_of(backend);
  std::string shape = sizes_text({{"N", N}, {"H", H}, {"K", K}, {"E", E}});
  if (window > 0) shape += fmt::format(" window={}", window);
  add_case(sink, "attention forward" + of, shape, {place.empty({N, H, E}), place.fp32({N, H})}, forward, calls.forward,
           kernels::attention_forward_reference, layout.cu_seqlens_q);
  add_case(sink, "attention backward" + of, shape,
           {place.empty({N, H, E}), place.empty({N, K, E}), place.empty({N, K, E})}, backward, calls.backward,
           kernels::attention_backward_reference, layout.cu_seqlens_q);
}

std::string sizes_text(const std::vector<std::pair<const char*, std::int64_t>>& sizes) {
  std::string text;
  for (const auto& [letter, size] : sizes) text += fmt::format("{}{}={}", text.empty() ? "" : " ", letter, size);
  return text;
}

void make_layer_cases(const Place& place, const CaseSink& sink) {
  using Sizes = std::vector<std::array<std::int64_t, 4>>;
  const auto with_large = [&](Sizes sizes, const std::array<std::int64_t, 4>& large) {
    if (place.device.is_cuda()) sizes.push_back(large);
    return sizes;
  };
  for (const auto& [N, D, F, V] : with_large({{37, 67, 131, 111}, {512, 896, 4864, 2048}}, {4096, 3584, 18944, 8192})) {
    add_rms_norm(place, N, D, sink);
    add_gated_activation(place, N, F, sink);
    add_lora(place, N, D, 16, sink);
    add_dropout(place, N, D, sink);
    add_embedding(place, N, V, D, sink);
  }
  for (const auto& [N, H, K, E] : with_large({{37, 3, 1, 16}, {512, 14, 2, 64}}, {4096, 28, 4, 128})) {
    add_rope(place, N, H, E, sink);
    add_gated_delta_surroundings(place, N, H, E, sink);
    for (const double weight_offset : {0.0, 1.0}) add_qk_norm_rope(place, N, H, K, E, E, weight_offset, sink);
    for (const std::int64_t window : {std::int64_t{0}, N / 5}) add_attentions(place, {N, H, K, E, window}, sink);
  }
  add_gated_delta(place, 37, {2, 4, 16, 24}, sink);
  add_gated_delta(place, 200, {2, 4, 64, 64}, sink);
  if (place.device.is_cuda()) add_gated_delta(place, 1024, {8, 16, 128, 128}, sink);
  add_qk_norm_rope(place, 512, 8, 2, 256, 64, 1.0, sink);
  add_cross_entropy(place, 5, 1009, sink);
  add_cross_entropy(place, 64, 32000, sink);
  if (place.device.is_cuda()) add_cross_entropy(place, 512, 151936, sink);
}

void make_step_cases(const Place& place, const CaseSink& sink) {
  for (const auto& [N, D] : {std::pair<std::int64_t, std::int64_t>{37, 67}, {512, 896}}) {
    add_cast(place, N, D, sink);
    add_dequantize(place, N, D, sink);
    add_picked_rows(place, N, D, sink);
    if (place.dtype != at::kFloat) continue;
    add_loss_sum(place, N, sink);
    add_optimizer(place, N * D, sink);
  }
  if (place.dtype == at::kFloat) add_sampling(place, place.device.is_cuda() ? 151936 : 2479, sink);
}

}  // namespace lora_train::bench
