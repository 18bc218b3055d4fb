// A micro-batch as flattened documents: what one forward and backward pass sees; its memory on the host (plan/setup/batch_feed
// copies what goes to a GPU into page-locked memory), and background threads that prepare those of a run in order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/plan.h"

namespace lora_train::data {

/// Where memory comes from. Thread-safe.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  /// `bytes` > 0 of uninitialised memory, aligned to 64. May throw anything; a BatchPrefetcher passes it on.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
};

/// Ordinary memory. Lives as long as the program.
HostMemory& pageable_memory();

/// A buffer of int32 values that grows on demand and never shrinks. Not thread-safe.
class HostBuffer {
 public:
  /// `memory` outlives the buffer.
  explicit HostBuffer(HostMemory& memory = pageable_memory()) : values_(nullptr, Release{&memory}) {}

  /// Room for `count` values, uninitialised. Invalidates what it returned before.
  std::span<std::int32_t> resize(std::size_t count);

 private:
  struct Release {
    HostMemory* memory;
    void operator()(std::int32_t* values) const noexcept { memory->release(values); }
  };

  std::unique_ptr<std::int32_t[], Release> values_;
  std::size_t capacity_ = 0;  ///< of values_, unless they were moved away
};

/// N = tokens of all documents side by side; no padding. The parts lie one after another in `storage`, each at a
/// multiple of 64 bytes. Whoever built it owns the memory.
struct MicroBatch {
  std::span<const std::int32_t> ids;               ///< [N]
  std::span<const std::int32_t> labels;            ///< [N] shifted: that of token t is ids[t + 1]'s; -100 = none
  std::span<const std::int32_t> positions;         ///< [N], from 0 in each document
  std::span<const std::int32_t> cu_seqlens;        ///< [num_docs + 1], starts with 0, ends with N
  std::span<const std::int32_t> document_in_step;  ///< [num_docs] ordinal of the document in the global step
  std::span<const std::int32_t> storage;           ///< all of these; what lies between the parts is undefined
  std::int64_t max_document_tokens = 0;
  std::int64_t num_supervised = 0;      ///< labels other than -100
  std::span<const float> weights = {};  ///< [N] shifted as labels are: of that token in the loss; empty: all 1
  double weight_sum = 0;                ///< of the supervised tokens
  SoftLabels soft = {};  ///< of the supervised tokens, as wide as the store's; width 0 if the store has none
};

/// Sizes of a micro-batch, and how many micro-batches of the run have them.
struct BatchShape {
  std::int64_t num_tokens = 0, num_docs = 0, longest = 0;  ///< longest document, in tokens
  std::int64_t count = 1;
};

/// The sizes that build_micro_batch gives this plan. Reads no tokens.
BatchShape shape_of(const DocumentStore& store, const MicroBatchPlan& plan);

/// Gathers the documents of a plan into the buffer, which the result points into: valid until the buffer is used again.
/// The last label of each document is -100, so nothing is predicted across documents. An empty plan gives N = 0.
/// Throws ConfigError if N is above 2^31 - 1.
MicroBatch build_micro_batch(const DocumentStore& store, const MicroBatchPlan& plan, HostBuffer& buffer);

struct PrefetchOptions {
  std::int64_t num_workers = DataSection{}.dataloader_num_workers;  ///< threads; 0 = prepared in the thread that asks
  std::int64_t prefetch_factor =
      DataSection{}.dataloader_prefetch_factor;  ///< micro-batches ahead for each worker, >= 1
  HostMemory* memory = &pageable_memory();       ///< outlives the prefetcher and the last micro-batch
  /// A wait this long is reported, and again whenever it has doubled. Without workers, nothing is reported.
  std::chrono::milliseconds stall_after{60'000};
  /// Takes the report; the default is log_warning.
  std::function<void(const std::string&)> report_stall;
};

/// Steps first_step..last_step of a plan. At most num_workers * prefetch_factor micro-batches are prepared and not yet
/// taken. What a step holds, and the order, do not depend on the options.
///
/// An error (of the plan, of reading, of memory) is thrown when the consumer asks for the micro-batch that failed; all that
/// comes before it is delivered first. Asking again throws it again.
/// The destructor drops what was prepared and waits for the micro-batches in progress.
/// One consumer thread. Store and plan outlive the prefetcher and do not change.
class BatchPrefetcher {
 public:
  BatchPrefetcher(const DocumentStore& store, const RunPlan& plan, std::int64_t first_step, std::int64_t last_step,
                  const PrefetchOptions& options = {});
  ~BatchPrefetcher();

  /// The plan of the next step. Throws ShapeError if micro-batches of this step were not taken, or none is left.
  std::shared_ptr<const StepPlan> next_step();
  /// The next micro-batch of the step; exactly plan->micro_batches.size() of them, then ShapeError.
  /// Its memory is reused when the last copy of the pointer is gone, which may outlive the prefetcher.
  std::shared_ptr<const MicroBatch> next_micro_batch();
  /// Time that next_step() and next_micro_batch() took in this step: how long training waited for data.
  double data_wait_ms() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace lora_train::data
