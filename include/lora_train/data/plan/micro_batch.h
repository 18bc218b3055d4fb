// A micro-batch as flattened documents, the input of one forward and backward pass (plan/setup/batch_feed copies it
// into page-locked memory for a GPU); and background threads that prepare a run's micro-batches in order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/plan.h"

namespace lora_train::data {

/// A buffer of int32 values, aligned to 64 bytes, that grows on demand and never shrinks. Not thread-safe.
class HostBuffer {
 public:
  /// `memory` must outlive the buffer.
  explicit HostBuffer(std::pmr::memory_resource* memory = std::pmr::new_delete_resource()) : lines_(memory) {}

  /// Room for `count` values. Invalidates earlier spans.
  std::span<std::int32_t> resize(std::size_t count);

 private:
  struct alignas(64) Line {
    std::int32_t values[16];
  };
  std::pmr::vector<Line> lines_;
};

/// N = tokens of all documents side by side, without padding. The parts are aligned to 64 bytes. The builder owns
/// the memory.
struct MicroBatch {
  std::span<const std::int32_t> ids;               ///< [N]
  std::span<const std::int32_t> labels;            ///< [N] shifted: token t's label is that of ids[t + 1]; -100 = none
  std::span<const std::int32_t> positions;         ///< [N], from 0 in each document
  std::span<const std::int32_t> cu_seqlens;        ///< [num_docs + 1], starts with 0, ends with N
  std::span<const std::int32_t> document_in_step;  ///< [num_docs] the document's ordinal in the global step
  std::int64_t max_document_tokens = 0;
  std::int64_t num_supervised = 0;      ///< labels other than -100
  std::span<const float> weights = {};  ///< [N] loss weights, shifted like labels; empty: all 1
  double weight_sum = 0;                ///< weight sum of the supervised tokens
  SoftLabels soft = {};  ///< for the supervised tokens, as wide as the store's; width 0 if the store has none
};

/// Sizes of a micro-batch, and how many micro-batches of the run have these sizes.
struct BatchShape {
  std::int64_t num_tokens = 0, num_docs = 0, longest = 0;  ///< longest document, in tokens
  std::int64_t count = 1;
};

/// The sizes of the micro-batch that build_micro_batch() makes from this plan. Reads no tokens.
BatchShape shape_of(const DocumentStore& store, const MicroBatchPlan& plan);

/// Gathers the documents of a plan into the buffer. The result points into the buffer and is valid until its next use.
/// The last label of each document is -100, so nothing is predicted across documents. An empty plan gives N = 0. Throws
/// ConfigError if N is above 2^31 - 1.
MicroBatch build_micro_batch(const DocumentStore& store, const MicroBatchPlan& plan, HostBuffer& buffer);

struct PrefetchOptions {
  std::int64_t num_workers = DataSection{}.dataloader_num_workers;  ///< threads; 0 = prepare in the calling thread
  std::int64_t prefetch_factor =
      DataSection{}.dataloader_prefetch_factor;  ///< micro-batches prepared ahead per worker, >= 1
  /// Thread-safe; must outlive the prefetcher and the last micro-batch. What it throws is passed on.
  std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
  /// Reports a wait of this length, and again each time it doubles. Without workers, nothing is reported.
  std::chrono::milliseconds stall_after{60'000};
  /// Receives the report; default: log_warning.
  std::function<void(const std::string&)> report_stall;
};

/// Prepares steps first_step..last_step of a plan. At most num_workers * prefetch_factor micro-batches are prepared and
/// not yet taken. The options do not affect the content of a step or the order.
///
/// Errors (from the plan, reading, memory) are thrown when the consumer asks for the failed micro-batch, after all
/// earlier ones are delivered. Asking again throws again. The destructor drops prepared micro-batches and waits for
/// those in progress. One consumer thread. Store and plan must outlive the prefetcher and not change.
class BatchPrefetcher {
 public:
  BatchPrefetcher(const DocumentStore& store, const RunPlan& plan, std::int64_t first_step, std::int64_t last_step,
                  const PrefetchOptions& options = {});
  ~BatchPrefetcher();

  /// The plan of the next step. Throws ShapeError if micro-batches of this step were not taken, or no step is left.
  std::shared_ptr<const StepPlan> next_step();
  /// The next micro-batch of the step; call it exactly plan->micro_batches.size() times, then it throws ShapeError. The
  /// memory is reused when the last copy of the pointer is gone, which may outlive the prefetcher.
  std::shared_ptr<const MicroBatch> next_micro_batch();
  /// Time spent in next_step() and next_micro_batch() in this step: how long training waited for data.
  double data_wait_ms() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace lora_train::data
