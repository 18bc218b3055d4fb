// Copies micro-batches to the device: one copy each, from page-locked memory, on a separate stream, while the device
// computes the previous micro-batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "lora_train/data/plan/batch_class.h"
#include "lora_train/data/plan/micro_batch.h"
#include "lora_train/model/batch.h"
#include "lora_train/plan/setup/run_device.h"

namespace lora_train::plan {

struct BatchFeedOptions {
  std::int64_t max_tokens = 0;    ///< per micro-batch
  bool is_pinned = true;          ///< dataloader_pin_memory; ignored on a CPU
  bool has_dropout = false;       ///< batches say which document each token belongs to
  bool trains_embedding = false;  ///< batches also list the tokens sorted by id
  /// Sizes to pad micro-batches to. The list of supervised tokens is then padded to whole chunks of the loss head.
  std::vector<data::BatchClass> classes{};
  std::int64_t chunk_rows = 1;  ///< rows of such a chunk
  bool has_weights = false;     ///< batches have a loss weight per supervised token, 1 if a micro-batch has none
  std::int64_t soft_width =
      0;  ///< width of the training data's soft labels; 0 if batches have none. Evaluation data have none
  std::vector<data::BatchClass> eval_classes{};  ///< sizes to pad evaluation micro-batches to
  bool lists_chunks = false;                     ///< batches list the chunks of their documents (kernels/sequences.h)
};

/// Not thread-safe.
class BatchFeed {
 public:
  /// Allocates the buffers on host and device: about 32 bytes per token and slot, 36 with weights, plus 9 with chunks
  /// and 8 per soft label.
  BatchFeed(const RunDevice& device, const BatchFeedOptions& options);
  ~BatchFeed();

  /// Enqueues the copy of a micro-batch and returns it as a batch on the device: padded to
  /// options.classes[class_index], then always at the same addresses, or with -1 as it is. The batch is valid until the
  /// next put(); on a GPU, work enqueued on the current stream before that put() may still read it. Does not wait. The
  /// caller sets dropout.keys.
  model::Batch put(const data::MicroBatch& micro_batch, int class_index = -1);

  /// The same for an evaluation micro-batch: without dropout, and padded to the class of options.eval_classes that it
  /// fits, if any. The list of supervised tokens is not padded.
  model::Batch put_evaluation(const data::MicroBatch& micro_batch);

  /// The class that a micro-batch is padded to, or -1.
  int class_of(const data::MicroBatch& micro_batch) const;

  /// Upper bound on a feed's GPU memory for micro-batches of max_tokens, in bytes.
  static std::int64_t device_bytes(std::int64_t max_tokens, std::int64_t soft_width = 0, bool lists_chunks = false);

 private:
  static constexpr std::size_t kNumSlots = 3;
  struct Slot {
    at::Tensor host, device;                 ///< uint8; the same memory on a CPU
    std::optional<c10::Event> copied, used;  ///< on a GPU
  };

  /// A part of a micro-batch: its byte offset in a slot, and its number of elements.
  struct Part {
    std::int64_t begin = 0, count = 0;
  };
  struct Parts {
    Part supervised, targets, weights, soft_ids, soft_log_probs, ids, positions, cu_seqlens, cu_chunks, chunk_sequence,
        token_document, order;
    std::int64_t bytes = 0;
  };
  Parts cut(const data::BatchClass& sizes, std::int64_t num_supervised) const;
  Parts cut(const data::BatchClass& batch_class) const;
  void fill(const data::MicroBatch& micro_batch, const Parts& parts, const at::Tensor& host) const;
  void fill_up(const data::MicroBatch& micro_batch, const Parts& parts, const at::Tensor& host) const;
  /// Starts sending a micro-batch, padded to these sizes, to the device. Returns its slot.
  const Slot& put(const data::MicroBatch& micro_batch, const data::BatchClass& sizes, const Parts& parts);
  void send(Slot& slot, std::int64_t bytes);
  model::Batch batch_of(const at::Tensor& memory, const at::Tensor& host, const Parts& parts, std::int64_t longest,
                        std::int64_t num_supervised) const;

  RunDevice device_;
  BatchFeedOptions options_;
  std::vector<Slot> slots_;
  at::Tensor settled_;  ///< uint8 on the device: the batch of a class, at a fixed address
  std::optional<c10::Stream> stream_;
  std::shared_ptr<const kernels::AttentionCalls> calls_, eval_calls_;  ///< for training and for evaluations
  std::size_t next_ = 0;
};

}  // namespace lora_train::plan
