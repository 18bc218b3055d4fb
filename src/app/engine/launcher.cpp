#include "launcher.h"

#include <charconv>

namespace lora_train::app {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
};

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE"},        {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE"},         {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
};

bool is_above_one(const std::string& text) {
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 1;
}

}  // namespace

std::string several_processes(const std::function<std::optional<std::string>(const std::string&)>& environment) {
  const std::string job = environment("SLURM_JOB_NAME").value_or("");
  const bool is_interactive = job == "bash" || job == "interactive";
  for (const Launcher& launcher : kLaunchers) {
    const auto world_size = environment(launcher.world_size);
    if (!environment(launcher.rank) || !world_size || !is_above_one(*world_size)) continue;
    if (is_interactive && std::string(launcher.name) == "Slurm") continue;
    return std::string(launcher.world_size) + "=" + *world_size + " (" + launcher.name + ")";
  }
  return {};
}

}  // namespace lora_train::app
