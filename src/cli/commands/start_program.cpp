#include "start_program.h"

#include <filesystem>

#include "lora_train/launch/local_ranks.h"

namespace lora_train::cli {

int start_program(const std::vector<std::string>& arguments, int num_ranks, bool* has_signal) {
  launch::LocalRanks ranks{{std::filesystem::read_symlink("/proc/self/exe").string()}, num_ranks};
  ranks.command.insert(ranks.command.end(), arguments.begin(), arguments.end());
  std::vector<int> signals;
  const int code = launch::run_local_ranks(ranks, &signals);
  if (signals.size() > 1) throw Killed{128 + signals.back()};
  if (has_signal != nullptr) *has_signal = !signals.empty();
  return code;
}

}  // namespace lora_train::cli
