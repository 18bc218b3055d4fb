// Micro-batches of a run, prepared in background threads and delivered in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/plan/batch_memory.h"
#include "lora_train/data/plan/micro_batch.h"
#include "lora_train/data/plan/plan.h"

namespace lora_train::data {

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
