#include "lora_train/train/step_scalars.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "lora_train/base/error.h"

namespace lora_train::train {

StepScalars::StepScalars(const runtime::RunDevice& device, std::int64_t num_dropout_keys)
    : run_device_(device), slots_(kMaxStepsInFlight + 1) {
  scalars_ = at::zeros({optim::kNumStepScalars}, at::TensorOptions(at::kDouble).device(device.device));
  keys_ = at::zeros({num_dropout_keys, 2}, at::TensorOptions(at::kInt).device(device.device));
  const auto host = at::TensorOptions(at::kDouble).pinned_memory(device.is_cuda());
  for (auto& slot : slots_) {
    slot.there = at::empty({optim::kNumFirstScalars}, host);
    slot.keys = at::empty({num_dropout_keys, 2}, host.dtype(at::kInt));
    slot.back = at::empty({optim::kNumStepScalars}, host);
    if (device.is_cuda()) slot.arrived.emplace(at::kCUDA);
  }
}

StepScalars::~StepScalars() {
  if (runtime::is_done(run_device_)) return;
  for (auto& slot : slots_) {
    runtime::keep_forever(slot.there);
    runtime::keep_forever(slot.keys);
    runtime::keep_forever(slot.back);
  }
}

void StepScalars::begin(std::int64_t step, double loss_denominator, const optim::LrSchedule& schedule,
                        const optim::AdamWOptions& options, std::span<const PhiloxKey> dropout_keys) {
  begun_ = ended_;  // a step that broke off is forgotten
  if (begun_ - received_ == slots_.size()) throw ShapeError("StepScalars", "too many steps in flight");
  Slot& slot = slots_[begun_++ % slots_.size()];
  const auto first = optim::first_scalars(step, loss_denominator, schedule.at_step(step), options);
  std::copy(first.begin(), first.end(), slot.there.mutable_data_ptr<double>());
  scalars_.narrow(0, 0, optim::kNumFirstScalars).copy_(slot.there, /*non_blocking=*/true);
  if (dropout_keys.empty()) return;
  if (std::ssize(dropout_keys) != keys_.size(0)) throw ShapeError("StepScalars", "another number of dropout keys");
  std::memcpy(slot.keys.mutable_data_ptr(), dropout_keys.data(), dropout_keys.size_bytes());
  keys_.copy_(slot.keys, /*non_blocking=*/true);
}

void StepScalars::end() {
  if (ended_ == begun_) throw ShapeError("StepScalars", "no step has begun");
  Slot& slot = slots_[ended_++ % slots_.size()];
  slot.back.copy_(scalars_, /*non_blocking=*/true);
  if (slot.arrived) slot.arrived->record(runtime::compute_stream(run_device_));
}

std::array<double, optim::kNumStepScalars> StepScalars::wait() {
  if (ended_ == received_) throw ShapeError("StepScalars", "no step has ended");
  Slot& slot = slots_[received_++ % slots_.size()];
  if (slot.arrived) slot.arrived->synchronize();
  std::array<double, optim::kNumStepScalars> values;
  std::copy_n(slot.back.const_data_ptr<double>(), values.size(), values.begin());
  return values;
}

void StepScalars::set_frozen(bool frozen) { scalars_[optim::kNonFinite].fill_(frozen ? 1.0 : 0.0); }

}  // namespace lora_train::train
