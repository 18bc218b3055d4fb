// The scalars of a step (optim/step_scalars.h) and the keys of its dropout masks: copies them to the device, and the scalars
// back. The host does not wait for the copies: on a GPU several steps may be in flight.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "lora_train/base/philox.h"
#include "lora_train/optim/lr_schedule.h"
#include "lora_train/optim/step_scalars.h"
#include "lora_train/runtime/run_device.h"

namespace lora_train::train {

/// How many steps a GPU may lag behind the host. A CPU never does.
constexpr std::size_t kMaxStepsInFlight = 2;

/// Not thread-safe.
class StepScalars {
 public:
  explicit StepScalars(const runtime::RunDevice& device, std::int64_t num_dropout_keys = 0);
  ~StepScalars();

  /// Enqueues the copy of a step's scalars and dropout keys to the device. At most kMaxStepsInFlight + 1 begun steps may be
  /// waiting for their wait().
  void begin(std::int64_t step, double loss_denominator, const optim::LrSchedule& schedule,
             const optim::AdamWOptions& options, std::span<const PhiloxKey> dropout_keys = {});
  /// On the device, fp64 [kNumStepScalars].
  at::Tensor& device() { return scalars_; }
  /// On the device, int32 [num_dropout_keys, 2].
  const at::Tensor& dropout_keys() const { return keys_; }
  /// Enqueues the copy of the scalars to the host.
  void end();
  /// Waits for the scalars of the oldest ended step and returns them.
  std::array<double, optim::kNumStepScalars> wait();

  /// While set, steps compute but update nothing (the sticky kNonFinite flag).
  void set_frozen(bool frozen);

 private:
  struct Slot {
    at::Tensor there, keys, back;  ///< in host memory, page-locked for a GPU
    std::optional<c10::Event> arrived;
  };
  runtime::RunDevice run_device_;
  at::Tensor scalars_, keys_;
  std::vector<Slot> slots_;
  std::size_t begun_ = 0, ended_ = 0, received_ = 0;
};

}  // namespace lora_train::train
