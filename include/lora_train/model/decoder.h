// The decoder: embedding, layers, final norm and loss head, forward and backward, without autograd. A step reads from
// top to bottom here: forward() and then backward().
#pragma once

#include <cstdint>

#include "lora_train/kernels/rope.h"
#include "lora_train/model/activations.h"
#include "lora_train/model/batch.h"
#include "lora_train/model/weights.h"

namespace lora_train::model {

/// Where the backward stops: layers below first_layer have nothing to train, nor has the embedding unless said.
struct FirstNeeded {
  int64_t first_layer = 0;
  bool embedding = false;
};

/// A model ready to run. Not thread-safe.
struct Decoder {
  ModelConfig config;
  at::ScalarType dtype;
  WeightSource& weights;
  kernels::RopeTable rope;  ///< positions up to max_seq_len
  FirstNeeded first_needed;
  kernels::AttentionBackend attention = kernels::AttentionBackend::kAuto;
  kernels::AttentionBackend windowed_attention = kernels::AttentionBackend::kAuto;  ///< of layers with a window
};

/// Computes the rope table for positions below max_seq_len, which check_rope_supported has passed; the rest is stored.
/// `weights` must outlive the decoder.
Decoder make_decoder(const ModelConfig& config, WeightSource& weights, at::ScalarType dtype, int64_t max_seq_len,
                     const FirstNeeded& first_needed);

/// Embedding and all layers; the result is activations.final_hidden [N, D]. At most activations.max_tokens() tokens.
void decoder_forward(Decoder& decoder, const Batch& batch, Activations& activations);

/// Gradients of everything that is trained, added to its buffers. activations.d_hidden [N, D] holds the gradient of
/// final_hidden and is used up. `activations` as decoder_forward left them.
void decoder_backward(Decoder& decoder, const Batch& batch, Activations& activations);

/// One layer from saved.input to `output`, which is another buffer. Fills the rest of `saved` for the backward.
void layer_forward(const Decoder& decoder, const LayerWeights& weights, int64_t layer, const Batch& batch,
                   LayerActivations& saved, const at::Tensor& scratch, at::Tensor& output);

/// d_hidden: gradient of the layer's output on entry, of its input on return (when need_input_grad).
void layer_backward(const Decoder& decoder, LayerWeights& weights, int64_t layer, const Batch& batch,
                    LayerActivations& saved, Activations& buffers, at::Tensor& d_hidden, bool need_input_grad);

}  // namespace lora_train::model
