#include "lora_train/plan/tuning/tuning.h"

#include <c10/core/Event.h>

#include "lora_train/base/log.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/plan/setup/run_device.h"

namespace lora_train::plan {
namespace {

/// Measures the time between two events on the current stream. Short work is repeated, and the mean is returned.
kernels::Stopwatch cuda_stopwatch(const RunDevice& device) {
  constexpr double kShortMs = 0.2;  // below this, the cost of events and launches matters
  constexpr int kRepeats = 10;
  return [device](const std::function<void()>& run) {
    c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    const auto time = [&](int repeats) {
      begin.record(compute_stream(device));
      for (int i = 0; i < repeats; ++i) run();
      end.record(compute_stream(device));
      end.synchronize();
      return begin.elapsedTime(end) / repeats;
    };
    const double once = time(1);
    return once < kShortMs ? time(kRepeats) : once;
  };
}

std::unique_ptr<RunTuning> make_tuning(const RunDevice& device, const std::string& known,
                                       kernels::Stopwatch stopwatch) {
  return std::make_unique<RunTuning>(tuning_machine(device.name, kernels::cuda_library()->versions()), known,
                                     std::move(stopwatch));
}

}  // namespace

RunTuning::RunTuning(TuningMachine machine, const std::string& known, const kernels::Stopwatch& stopwatch)
    : machine_(std::move(machine)),
      cache_file_(tuning_cache_file(machine_)),
      tuner_(parse_tuning(known, machine_, "the checkpoint's table"),
             stopwatch ? read_tuning_cache(cache_file_, machine_) : kernels::TuningTable(), stopwatch) {}

void RunTuning::finish() const {
  add_to_tuning_cache(cache_file_, machine_, tuner_.measured());
  log_info(tuner_.describe());
}

bool makes_choices(const RunSection& section, const RunDevice& device) {
  return device.is_cuda() && !section.deterministic && section.tuning != Tuning::kOff;
}

std::unique_ptr<RunTuning> start_tuning(const RunSection& section, const RunDevice& device, const std::string& known) {
  return makes_choices(section, device) ? make_tuning(device, known, cuda_stopwatch(device)) : nullptr;
}

std::unique_ptr<RunTuning> adopt_tuning(const RunDevice& device, const std::string& known) {
  return make_tuning(device, known, nullptr);
}

std::unique_ptr<kernels::GemmTuning> tune_products(RunTuning* tuning) {
  return tuning != nullptr ? std::make_unique<kernels::GemmTuning>(tuning->tuner()) : nullptr;
}

}  // namespace lora_train::plan
