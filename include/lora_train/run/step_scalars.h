// Copies the scalars of a step (optim/adamw.h) and the keys of its dropout masks to the device, and the scalars back.
// The host does not wait for the copies: on a GPU several steps may be in flight.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "lora_train/base/philox.h"
#include "lora_train/optim/adamw.h"
#include "lora_train/optim/lr_schedule.h"
#include "lora_train/plan/setup/run_device.h"

namespace lora_train::run {

/// Steps that a GPU may lag behind the host. A CPU never lags.
constexpr std::size_t kMaxStepsInFlight = 2;

/// The figures that each rank sends to the others in the reduction of a step.
struct RankFigures {
  /// Time from the start of the step to its reduction. On a CPU: without waiting for data. On a GPU: by its own clock,
  /// for the last step that has finished (0 for the first ones)
  double compute_ms = 0;
  double data_wait_ms = 0;                   ///< in this step
  double memory_gib = 0;                     ///< GPU memory in use
  double save_is_due = 0;                    ///< rank 0: 1 if save_interval has passed since its last save
  double cpu_s = 0, energy_wh = 0;           ///< report::Usage of the rank; -1 if unknown
  double gpu_watched_s = 0, gpu_busy_s = 0;  ///< the same
};
constexpr std::int64_t kNumRankFigures = sizeof(RankFigures) / sizeof(double);

/// Not thread-safe.
class StepScalars {
 public:
  explicit StepScalars(const plan::RunDevice& device, std::int64_t num_dropout_keys = 0, std::int64_t num_ranks = 1);
  ~StepScalars();

  /// Enqueues the copy of a step's scalars and dropout keys to the device. At most kMaxStepsInFlight + 1 begun steps
  /// may be waiting for their wait().
  void begin(std::int64_t step, double loss_denominator, const optim::LrSchedule& schedule,
             const optim::AdamWOptions& options, std::span<const PhiloxKey> dropout_keys = {});
  /// fp64 [kNumStepScalars], on the device.
  at::Tensor& device() { return scalars_; }
  /// int32 [num_dropout_keys, 2], on the device.
  const at::Tensor& dropout_keys() const { return keys_; }
  /// Enqueues the copy of this rank's figures into its row on the device and zeroes the other rows, so that the sum
  /// over ranks holds the figures of all. On a GPU, fills in compute_ms. Call it before the reduction.
  void put_figures(int rank, RankFigures figures);
  /// fp64 [num_ranks, kNumRankFigures], on the device.
  at::Tensor& figures() { return figures_; }
  /// Enqueues the copy of scalars and figures to the host.
  void end();
  /// Waits for the scalars of the oldest ended step and returns them.
  std::array<double, optim::kNumStepScalars> wait();
  /// Forgets the ended steps that nothing has waited for.
  void drop_ended();
  /// The figures of the step that wait() last returned.
  const std::vector<RankFigures>& figures_of_ranks() const { return figures_of_ranks_; }

  /// While set, steps compute but update nothing (the sticky kNonFinite flag).
  void set_frozen(bool frozen);

 private:
  struct Slot {
    at::Tensor there, keys, back, figures_there, figures_back;  ///< in host memory, page-locked for a GPU
    std::optional<c10::Event> arrived;
    std::optional<c10::Event> begun, computed;  ///< on a GPU with several ranks: the time between them is compute_ms
    bool has_figures = false;
  };
  plan::RunDevice run_device_;
  at::Tensor scalars_, keys_, figures_;
  std::vector<RankFigures> figures_of_ranks_;
  std::vector<Slot> slots_;
  double compute_ms_ = 0;
  std::size_t begun_ = 0, ended_ = 0, received_ = 0;
};

}  // namespace lora_train::run
