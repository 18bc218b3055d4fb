// Micro-batches on their way to the device: one copy each, from page-locked memory, in a stream of its own, while the
// device computes on the one before.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "lora_train/data/batch_class.h"
#include "lora_train/data/micro_batch.h"
#include "lora_train/model/batch.h"
#include "lora_train/runtime/run_device.h"

namespace lora_train::runtime {

struct BatchFeedOptions {
  std::int64_t max_tokens = 0;    ///< of a micro-batch
  bool is_pinned = true;          ///< dataloader_pin_memory; on a CPU nothing is
  bool has_dropout = false;       ///< tokens carry their document
  bool trains_embedding = false;  ///< tokens come sorted by id, too
  /// Sizes that micro-batches may be filled up to; the list of supervised tokens then has room for whole chunks of the loss
  /// head.
  std::vector<data::BatchClass> classes{};
  std::int64_t chunk_rows = 1;
  bool has_weights = false;  ///< supervised tokens come with their weight in the loss, 1 where a micro-batch has none
};

/// Not thread-safe.
class BatchFeed {
 public:
  /// Takes the buffers: about 32 bytes a token and slot, 36 with weights, on the host and on the device.
  BatchFeed(const RunDevice& device, const BatchFeedOptions& options);
  ~BatchFeed();

  /// The micro-batch on the device. Valid until the next one is put; on a GPU that holds for what has been asked of the
  /// current stream, which is not waited for. dropout.keys is left to the caller.
  model::Batch put(const data::MicroBatch& micro_batch) { return put(micro_batch, -1); }

  /// The same, filled up to options.classes[index], always at the same addresses; an index of -1 fills nothing.
  model::Batch put(const data::MicroBatch& micro_batch, int class_index);

  /// The class to fill a micro-batch up to; -1: none.
  int class_of(const data::MicroBatch& micro_batch) const;

  /// Bytes that a feed for this many tokens takes of a GPU, at most.
  static std::int64_t device_bytes(std::int64_t max_tokens);

 private:
  static constexpr std::size_t kNumSlots = 3;
  struct Slot {
    at::Tensor host, device;                 ///< uint8; the same memory on a CPU
    std::optional<c10::Event> copied, used;  ///< on a GPU
  };

  /// Parts of a micro-batch: where each begins in a slot, and its length.
  struct Part {
    std::int64_t begin = 0, count = 0;
  };
  struct Parts {
    Part supervised, targets, weights, ids, positions, cu_seqlens, token_document, order;
    std::int64_t bytes = 0;
  };
  Parts cut(const data::BatchClass& sizes, std::int64_t num_supervised) const;
  Parts cut(const data::BatchClass& batch_class) const;
  void fill(const data::MicroBatch& micro_batch, const Parts& parts, const at::Tensor& host) const;
  void fill_up(const data::MicroBatch& micro_batch, const Parts& parts, const at::Tensor& host) const;
  void sort_ids(const Parts& parts, const at::Tensor& host) const;
  void send(Slot& slot, std::int64_t bytes);
  /// What a batch of this class is computed from: a copy at one address on a GPU, the slot itself on a CPU.
  const at::Tensor& settled(const Slot& slot, std::int64_t bytes);
  model::Batch batch_of(const at::Tensor& memory, const at::Tensor& host, const Parts& parts, std::int64_t longest,
                        std::int64_t num_supervised) const;

  RunDevice device_;
  BatchFeedOptions options_;
  std::vector<Slot> slots_;
  at::Tensor settled_;  ///< uint8 on the device, of batches in classes
  std::optional<c10::Stream> stream_;
  std::size_t next_ = 0;
};

}  // namespace lora_train::runtime
