// What processes use of processors and GPUs.
#pragma once

#include <optional>

namespace lora_train::report {

/// Of one process, or the sum over several.
struct Usage {
  std::optional<double> cpu_s = {};      ///< processor time of all threads; empty: not known
  std::optional<double> energy_wh = {};  ///< of the GPUs; empty: not known, or no GPU
  double gpu_watched_s = 0;              ///< time with known GPU utilization, from the first step of the process on
  double gpu_busy_s = 0;                 ///< the part of it in which a kernel ran

  /// 0 to 100; empty if it was never known.
  std::optional<double> mean_gpu_utilization() const;
};

/// A sum is known where both parts are.
Usage operator+(const Usage& one, const Usage& other);

/// Of this process so far: cpu_s alone.
Usage process_usage();

}  // namespace lora_train::report
