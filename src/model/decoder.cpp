#include "lora_train/model/decoder.h"

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/embedding/embedding.h"

// N tokens, D hidden.
namespace lora_train::model {
namespace {

/// On a CPU, a layer can take seconds. On a GPU, it is only enqueued, perhaps into a graph, which an exception would
/// leave open.
void look_for_stop(const at::Tensor& hidden) {
  if (hidden.is_cpu()) throw_if_stop_requested();
}

ForwardPass pass_over(const Decoder& decoder, const Batch& batch, const Activations& activations,
                      AttentionPass& attention, bool use_adapter) {
  return {decoder.config,  decoder.shape, decoder.rope,
          batch.positions, attention,     {batch.dropout, activations.scratch, use_adapter}};
}

}  // namespace

RopeTables make_rope(const ModelConfig& config, int64_t max_positions, at::Device device) {
  const auto make = [&](const ModelConfig& of) {
    const std::vector<float> inv_freq = rope_inv_freq(of);
    const at::Tensor frequencies = at::tensor(at::ArrayRef<float>(inv_freq), at::kFloat);
    const kernels::RopeTable rope = kernels::make_rope_table(frequencies, max_positions, rope_attention_factor(of));
    const std::vector<float> scales = query_scales(of, max_positions);
    const at::Tensor q_scale = scales.empty() ? at::Tensor() : at::tensor(at::ArrayRef<float>(scales), at::kFloat);
    return kernels::RopeTable{rope.cos.to(device), rope.sin.to(device), scales.empty() ? q_scale : q_scale.to(device)};
  };
  const kernels::RopeTable global = make(config);
  if (!config.local_rope) return {global, global};
  ModelConfig local = config;
  local.rope = *config.local_rope;
  return {global, make(local)};
}

double embedding_scale(const ModelConfig& config, at::ScalarType dtype) {
  if (!config.rounds_embedding_multiplier) return config.embedding_multiplier;
  return at::scalar_tensor(config.embedding_multiplier, at::kFloat).to(dtype).item<double>();
}

Decoder make_decoder(const ModelConfig& config, const ModelShape& shape, BaseWeights& weights, at::ScalarType dtype,
                     int64_t max_seq_len, const FirstNeeded& first_needed) {
  const at::Device device = weights.acquire_outer(Pass::kForward).embedding.device();
  weights.release_outer(Pass::kForward);
  return {config,      shape, dtype, weights, make_rope(config, max_seq_len, device), embedding_scale(config, dtype),
          first_needed};
}

void forward_layers(const ForwardPass& pass, BaseWeights& weights, Activations& activations, int64_t num_tokens) {
  const int64_t num_layers = std::ssize(pass.shape.layers);
  LayerActivations saved = activations.layer(0, num_tokens);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    look_for_stop(activations.final_hidden);
    LayerActivations next;
    if (layer + 1 < num_layers) next = activations.layer(layer + 1, num_tokens);
    if (InputOffload* const offload = activations.offload()) offload->begin_forward(layer, num_tokens);
    at::Tensor output = next.empty() ? activations.final_hidden.narrow(0, 0, num_tokens) : next.front().input;
    const AcquiredLayer acquired(weights, layer, Pass::kForward);
    layer_forward(pass, *acquired, layer, saved, output);
    saved = std::move(next);
  }
}

void decoder_forward(Decoder& decoder, const Batch& batch, Activations& activations, bool use_adapter) {
  const int64_t N = batch.num_tokens();
  if (N > activations.max_tokens()) throw ShapeError("decoder_forward", "more tokens than planned");
  const OuterWeights& outer = decoder.weights.acquire_outer(Pass::kForward);
  at::Tensor first = activations.layer(0, N).front().input;
  kernels::embedding_forward(batch.ids, outer.embedding, use_adapter ? outer.rows : kernels::TrainableRows{}, first,
                             decoder.embedding_scale);
  decoder.weights.release_outer(Pass::kForward);
  DocumentAttention attention(decoder.config, batch, decoder.attention, decoder.windowed_attention);
  forward_layers(pass_over(decoder, batch, activations, attention, use_adapter), decoder.weights, activations, N);
}

void decoder_backward(Decoder& decoder, const Batch& batch, Activations& activations) {
  const int64_t N = batch.num_tokens();
  DocumentAttention attention(decoder.config, batch, decoder.attention, decoder.windowed_attention);
  const ForwardPass forward = pass_over(decoder, batch, activations, attention, true);
  const BackwardPass pass{forward, attention, activations};
  at::Tensor d_hidden = activations.d_hidden.narrow(0, 0, N);
  const int64_t first_layer = decoder.first_needed.first_layer;
  for (int64_t layer = decoder.config.num_layers - 1; layer >= first_layer; --layer) {
    look_for_stop(d_hidden);
    if (InputOffload* const offload = activations.offload()) offload->begin_backward(layer, first_layer, N);
    LayerActivations saved = activations.layer(layer, N);
    const bool need_input_grad = layer > first_layer || decoder.first_needed.embedding;
    const AcquiredLayer acquired(decoder.weights, layer, Pass::kBackward);
    layer_backward(pass, *acquired, layer, saved, d_hidden, need_input_grad);
  }
  if (!decoder.first_needed.embedding) return;
  OuterWeights& outer = decoder.weights.acquire_outer(Pass::kBackward);
  kernels::embedding_backward(batch.ids, d_hidden, &outer.grad_embedding, outer.rows, batch.order,
                              decoder.embedding_scale);
  decoder.weights.release_outer(Pass::kBackward);
}

}  // namespace lora_train::model
