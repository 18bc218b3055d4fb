// What an hour of a run costs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lora_train/report/run_times.h"

namespace lora_train::run {

/// The one place that decides it: `given` (gpu_price_per_hour) where the profile has it, else the price of `gpu`, the name that the
/// driver gives, in the GPU table, where it is in there; nothing on a CPU (`gpu` empty) without the key. Warns if the table cannot
/// be read. num_gpus: 1 on a CPU, where the price is that of the machine.
std::optional<report::Price> find_price(std::optional<double> given, const std::string& gpu, int num_gpus,
                                        const std::filesystem::path& gpu_table);

}  // namespace lora_train::run
