// Log-probabilities of supervised tokens and their gradients, in chunks of rows, so that the logits of a whole batch
// never exist. M supervised rows, m rows of a chunk, D hidden, V vocabulary.
#pragma once

#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "lora_train/kernels/embedding/embedding.h"
#include "lora_train/model/batch.h"
#include "lora_train/model/weights/weights.h"

namespace lora_train::model {

/// `weights` must outlive the head.
struct LmHead {
  OuterWeights& weights;
  double norm_eps = 1e-6;
  double logit_scale = 1;         ///< logits = logit_scale * head(norm(hidden)); 1 adds no work
  double norm_weight_offset = 0;  ///< kernels/rms_norm/rms_norm.h
};
LmHead lm_head_of(const ModelConfig& config, OuterWeights& weights);

/// Buffers for m rows: hidden and normed in one dtype, rstd in fp32 (fp64 for fp64), logits in that dtype or in fp32
/// for bf16.
struct LmHeadRows {
  at::Tensor hidden;  ///< [m, D] the last layer's output; kept for the backward
  at::Tensor normed;  ///< [m, D] input of the head product
  at::Tensor rstd;    ///< [m]
  at::Tensor logits;  ///< [m, V]
};

/// Fills normed, rstd and logits from hidden. Without the adapter, trainable rows of the head are left out.
void lm_head_forward(const LmHead& head, LmHeadRows& rows, bool use_adapter = true, Product product = Product::kGemm);

/// Logits [m, V] fp32 for hidden [m, D], in new memory.
at::Tensor lm_head_logits(const LmHead& head, const at::Tensor& hidden, bool use_adapter, Product product);

/// `rows` come from a forward with the adapter; the caller has replaced logits by their gradient, which is overwritten.
/// Writes d_hidden [m, D] and accumulates the gradients of norm, head and trainable rows if defined. d_normed [m, D]:
/// workspace.
void lm_head_backward(const LmHead& head, LmHeadRows& rows, at::Tensor& d_normed, at::Tensor& d_hidden);

constexpr int64_t kCalibrationBins = 15;  ///< bins of equal width

struct LossSums {
  double loss = 0;          ///< sum over supervised tokens of -weight * log p, in fp64
  int64_t num_tokens = 0;   ///< M
  int64_t num_correct = 0;  ///< tokens whose target is the most likely one
  /// Calibration, in 15 bins over the confidence (the probability of the most likely token): tokens, sum of confidence,
  /// correct. If the logits are not finite, the confidence is NaN and counts in the last bin.
  struct Bin {
    int64_t count = 0;
    double confidence = 0;
    int64_t correct = 0;
  };
  std::vector<Bin> bins;       ///< 15
  std::vector<double> losses;  ///< [M] -weight * log p of each supervised token
};

/// The sums of what LossHead::evaluate() has computed for M supervised tokens. values: in host memory.
LossSums loss_sums(const at::Tensor& values, int64_t num_tokens);

struct LossHeadOptions {
  int64_t max_rows = 0;                      ///< supervised rows of the largest batch
  bool needs_backward = true;                ///< false: only evaluate() is used
  int64_t chunk_bytes = int64_t{256} << 20;  ///< approximate; with few rows a GEMM mostly packs the head
  bool has_weights = false;                  ///< the batches of train_next() have weights
  bool has_soft_targets = false;             ///< train_soft() is used; bytes() includes its allocations for a chunk
};

/// Allocates its buffers once; the logits buffer holds one chunk. Not thread-safe.
class LossHead {
 public:
  /// Buffers have dtype and device of the head's weights.
  LossHead(const LmHead& head, const LossHeadOptions& options);

  /// Cross entropy in one pass. hidden [N, D]: output of the last layer. Adds the weighted loss of every supervised
  /// token to loss_sum ([] fp64, on the device) and writes d_hidden [N, D], zero on rows without a target: the gradient
  /// of that sum divided by denominator ([] fp64, on the device), the sum of weights of the global step. Accumulates
  /// the gradients of norm, head and trainable rows if they are defined. Does not synchronize.
  void train(const at::Tensor& hidden, const Batch& batch, const at::Tensor& denominator, at::Tensor& loss_sum,
             at::Tensor& d_hidden);

  /// The same with kernels::soft_cross_entropy_in_place and the batch's soft targets.
  void train_soft(const at::Tensor& hidden, const Batch& batch, const kernels::SoftTargetOptions& options,
                  const at::Tensor& denominator, at::Tensor& loss_sum, at::Tensor& d_hidden);

  /// The same in parts that a graph can replay: begin(), then train_next() num_chunks() times. Each call takes the next
  /// chunk_rows() entries of batch.supervised; the position is kept on the device. The list must be padded to whole
  /// chunks, as batch classes are.
  void begin(at::Tensor& d_hidden);
  void train_next(const at::Tensor& hidden, const Batch& batch, const at::Tensor& denominator, at::Tensor& loss_sum,
                  at::Tensor& d_hidden);
  int64_t chunk_rows() const { return chunk_rows_; }
  int64_t num_chunks(const Batch& batch) const { return (batch.num_trained_tokens() + chunk_rows_ - 1) / chunk_rows_; }

  /// For objectives that need every log p before any gradient: two passes over the logits.
  /// Writes log p of the supervised tokens, [M] fp32 (fp64), on the device.
  void log_probs(const at::Tensor& hidden, const Batch& batch, at::Tensor& log_probs, bool use_adapter = true);
  /// The gradients that train() computes, for sum(-token_weights * log p) / denominator. token_weights [M] fp32, of any
  /// sign, or undefined: 1. Ignores the weights of the batch.
  void backward(const at::Tensor& hidden, const Batch& batch, const at::Tensor& token_weights,
                const at::Tensor& denominator, at::Tensor& d_hidden);

  /// Losses and statistics of the supervised tokens of a batch, without gradients: fp64 on the device, for loss_sums().
  /// Does not synchronize.
  at::Tensor evaluate(const at::Tensor& hidden, const Batch& batch, bool use_adapter = true);

  /// Bytes of its buffers.
  int64_t bytes() const { return bytes_; }

 private:
  /// Buffers narrowed to m rows, with hidden rows and logits filled.
  struct Chunk {
    kernels::RowLists lists;  ///< [m]
    LmHeadRows rows;
    kernels::CrossEntropyOutput output;
  };
  Chunk forward(const at::Tensor& hidden, const kernels::RowLists& lists, bool use_adapter);
  /// Calls use(chunk, first) for the chunks that begin at `first` < num_rows. The last one ends with the lists, which
  /// may be padded.
  template <class Use>
  void for_each_chunk(const at::Tensor& hidden, const kernels::RowLists& lists, int64_t num_rows, bool use_adapter,
                      const Use& use);
  /// Loss and gradients of a chunk. loss_sum may be undefined.
  void train_chunk(Chunk& chunk, const at::Tensor& denominator, at::Tensor& loss_sum, at::Tensor& d_hidden);
  /// From a chunk's losses and the gradients of its logits.
  void finish_chunk(Chunk& chunk, at::Tensor& loss_sum, at::Tensor& d_hidden);
  void train_all(const at::Tensor& hidden, const kernels::RowLists& lists, int64_t num_rows,
                 const at::Tensor& denominator, at::Tensor& loss_sum, at::Tensor& d_hidden);
  at::Tensor make(at::IntArrayRef sizes, at::ScalarType dtype);

  LmHead head_;
  int64_t chunk_rows_, bytes_ = 0;
  LmHeadRows rows_;                           ///< for one chunk
  at::Tensor losses_, correct_, confidence_;  ///< [m]
  at::Tensor d_normed_, d_hidden_;            ///< [m, D], undefined without backward
  at::Tensor next_;                           ///< [] position of train_next()
  kernels::RowLists next_lists_;              ///< [m]
};

}  // namespace lora_train::model
