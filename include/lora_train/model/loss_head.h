// Final norm, output head and cross entropy on supervised rows only, in chunks: logits of a whole batch never exist.
// M supervised rows, D hidden, V vocabulary.
#pragma once

#include "lora_train/model/batch.h"
#include "lora_train/model/weights.h"

namespace lora_train::model {

struct LossSums {
  double loss = 0;           ///< sum over supervised tokens, in fp64
  int64_t num_tokens = 0;    ///< M
  int64_t num_correct = 0;   ///< target is the most likely token; counted when with_statistics
  /// Calibration: per bin of 15 over the confidence of the most likely token: tokens, sum of confidence, correct.
  /// Where the logits are not finite the confidence is NaN and counts in the last bin.
  struct Bin {
    int64_t count = 0;
    double confidence = 0;
    int64_t correct = 0;
  };
  std::vector<Bin> bins;     ///< 15 when with_statistics
};

struct LossHeadOptions {
  double norm_eps = 1e-6;
  double gradient_scale = 0;     ///< of every token's loss: 1 / supervised tokens of the global step
  bool with_gradient = true;
  bool with_statistics = false;
  int64_t chunk_bytes = int64_t{256} << 20;  ///< logits of a chunk take about this; a GEMM of few rows mostly packs the head
};

/// hidden [N, D]: output of the last layer. With gradient, d_hidden [N, D] is written (zero on rows without a target)
/// and the gradients of norm, head and trainable rows are added to where they are defined.
LossSums loss_head(const at::Tensor& hidden, const Batch& batch, OuterWeights& weights, const LossHeadOptions& options,
                   at::Tensor* d_hidden);

}  // namespace lora_train::model
