#include "run_price.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/device/gpu_table.h"

namespace lora_train::run {

std::optional<report::Price> find_price(std::optional<double> given, const std::string& gpu, int num_gpus,
                                        const std::filesystem::path& gpu_table) {
  if (given) return report::Price{*given, num_gpus, "profile"};
  if (gpu.empty() || gpu_table.empty()) return std::nullopt;
  try {
    const auto table = device::read_gpu_table(gpu_table);
    const auto found = std::ranges::find(table, gpu, &device::GpuFacts::device_name);
    if (found != table.end()) return report::Price{found->price_per_hour, num_gpus, "GPU table"};
  } catch (const Error& error) {
    log_warning(std::string("the cost of the run is not known: ") + error.what());
  }
  return std::nullopt;
}

}  // namespace lora_train::run
