// The decoder: embedding and layers, forward and backward, without autograd. Final norm and head: loss_head.h.
#pragma once

#include <cstdint>

#include "lora_train/model/batch.h"
#include "lora_train/model/layer.h"

namespace lora_train::model {

/// Where the backward stops: no layer below first_layer is trained, and the embedding only if `embedding` is set.
struct FirstNeeded {
  int64_t first_layer = 0;
  bool embedding = false;
};

/// A model ready to run. Not thread-safe.
struct Decoder {
  ModelConfig config;
  ModelShape shape;
  at::ScalarType dtype;
  BaseWeights& weights;
  RopeTables rope;  ///< positions up to max_seq_len
  double embedding_scale = 1;
  FirstNeeded first_needed;
  kernels::AttentionBackend attention = kernels::AttentionBackend::kAuto;
  kernels::AttentionBackend windowed_attention = kernels::AttentionBackend::kAuto;  ///< for layers with a window
};

/// cos and sin for positions below max_positions, which check_rope_supported must have accepted. Computed on the host,
/// so that every device gets the same numbers.
RopeTables make_rope(const ModelConfig& config, int64_t max_positions, at::Device device);

/// Multiplies the embedding; rounded as a model in `dtype` rounds it.
double embedding_scale(const ModelConfig& config, at::ScalarType dtype);

/// `weights` must outlive the decoder. `shape` is the one used to make the weights, adapters included.
Decoder make_decoder(const ModelConfig& config, const ModelShape& shape, BaseWeights& weights, at::ScalarType dtype,
                     int64_t max_seq_len, const FirstNeeded& first_needed);

/// Runs all layers. The caller has filled activations.layer(0).input [N, D]; the result is activations.final_hidden.
void forward_layers(const ForwardPass& pass, BaseWeights& weights, Activations& activations, int64_t num_tokens);

/// Runs embedding and all layers; the result is activations.final_hidden [N, D], before the final norm. At most
/// activations.max_tokens() tokens. use_adapter false: the base model, from the same weights; no backward may follow.
void decoder_forward(Decoder& decoder, const Batch& batch, Activations& activations, bool use_adapter = true);

/// Adds the gradients of all trained tensors to their buffers. activations.d_hidden [N, D] holds the gradient of
/// final_hidden and is overwritten. `activations` must be unchanged since decoder_forward.
void decoder_backward(Decoder& decoder, const Batch& batch, Activations& activations);

}  // namespace lora_train::model
