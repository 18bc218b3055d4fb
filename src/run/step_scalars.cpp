#include "lora_train/run/step_scalars.h"

#include <algorithm>
#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::run {

StepScalars::StepScalars(const plan::RunDevice& device, std::int64_t num_dropout_keys, std::int64_t num_ranks)
    : run_device_(device), figures_of_ranks_(static_cast<std::size_t>(num_ranks)), slots_(kMaxStepsInFlight + 1) {
  scalars_ = at::zeros({optim::kNumStepScalars}, at::TensorOptions(at::kDouble).device(device.device));
  keys_ = at::zeros({num_dropout_keys, 2}, at::TensorOptions(at::kInt).device(device.device));
  figures_ = at::zeros({num_ranks, kNumRankFigures}, scalars_.options());
  const auto host = at::TensorOptions(at::kDouble).pinned_memory(device.is_cuda());
  for (auto& slot : slots_) {
    slot.there = at::empty({optim::kNumFirstScalars}, host);
    slot.keys = at::empty({num_dropout_keys, 2}, host.dtype(at::kInt));
    slot.back = at::empty({optim::kNumStepScalars}, host);
    slot.figures_there = at::zeros({num_ranks, kNumRankFigures}, host);
    slot.figures_back = at::zeros({num_ranks, kNumRankFigures}, host);
    if (device.is_cuda()) slot.arrived.emplace(at::kCUDA);
    if (device.is_cuda() && num_ranks > 1) {
      slot.begun.emplace(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
      slot.computed.emplace(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    }
  }
}

StepScalars::~StepScalars() {
  if (plan::is_done(run_device_)) return;
  for (auto& slot : slots_) {
    for (at::Tensor* kept : {&slot.there, &slot.keys, &slot.back, &slot.figures_there, &slot.figures_back})
      plan::keep_forever(*kept);
  }
}

void StepScalars::begin(std::int64_t step, double loss_denominator, const optim::LrSchedule& schedule,
                        const optim::AdamWOptions& options, std::span<const PhiloxKey> dropout_keys) {
  begun_ = ended_;  // forgets a step that was broken off
  if (begun_ - received_ == slots_.size()) throw ShapeError("StepScalars", "too many steps in flight");
  Slot& slot = slots_[begun_++ % slots_.size()];
  slot.has_figures = false;
  if (slot.begun) slot.begun->record(plan::compute_stream(run_device_));
  const auto first = optim::first_scalars(step, loss_denominator, schedule.at_step(step), options);
  std::copy(first.begin(), first.end(), slot.there.mutable_data_ptr<double>());
  scalars_.narrow(0, 0, optim::kNumFirstScalars).copy_(slot.there, /*non_blocking=*/true);
  if (dropout_keys.empty()) return;
  if (std::ssize(dropout_keys) != keys_.size(0)) throw ShapeError("StepScalars", "wrong number of dropout keys");
  std::memcpy(slot.keys.mutable_data_ptr(), dropout_keys.data(), dropout_keys.size_bytes());
  keys_.copy_(slot.keys, /*non_blocking=*/true);
}

void StepScalars::put_figures(int rank, RankFigures figures) {
  Slot& slot = slots_[(begun_ - 1) % slots_.size()];
  slot.has_figures = true;
  if (slot.computed) {
    slot.computed->record(plan::compute_stream(run_device_));
    figures.compute_ms = compute_ms_;
  }
  auto* const rows = reinterpret_cast<RankFigures*>(slot.figures_there.mutable_data_ptr<double>());
  std::fill_n(rows, figures_of_ranks_.size(), RankFigures{});
  rows[rank] = figures;
  figures_.copy_(slot.figures_there, /*non_blocking=*/true);
}

void StepScalars::end() {
  if (ended_ == begun_) throw ShapeError("StepScalars", "no step has begun");
  Slot& slot = slots_[ended_++ % slots_.size()];
  slot.back.copy_(scalars_, /*non_blocking=*/true);
  if (figures_of_ranks_.size() > 1) slot.figures_back.copy_(figures_, /*non_blocking=*/true);
  if (slot.arrived) slot.arrived->record(plan::compute_stream(run_device_));
}

std::array<double, optim::kNumStepScalars> StepScalars::wait() {
  if (ended_ == received_) throw ShapeError("StepScalars", "no step has ended");
  Slot& slot = slots_[received_++ % slots_.size()];
  if (slot.arrived) slot.arrived->synchronize();
  if (slot.computed && slot.has_figures) compute_ms_ = slot.begun->elapsedTime(*slot.computed);
  std::array<double, optim::kNumStepScalars> values;
  std::memcpy(figures_of_ranks_.data(), slot.figures_back.const_data_ptr(), slot.figures_back.nbytes());
  std::copy_n(slot.back.const_data_ptr<double>(), values.size(), values.begin());
  return values;
}

void StepScalars::drop_ended() {
  while (received_ < ended_) wait();
}

void StepScalars::set_frozen(bool frozen) { scalars_[optim::kNonFinite].fill_(frozen ? 1.0 : 0.0); }

}  // namespace lora_train::run
