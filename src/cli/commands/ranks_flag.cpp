#include "ranks_flag.h"

#include <filesystem>

#include "lora_train/base/log.h"
#include "lora_train/launch/local_ranks.h"
#include "output/standard_output.h"

namespace lora_train::cli {

RanksFlag::RanksFlag(CommandParser& parser, const launch::World& world, const std::string& help)
    : parser_(parser), world_(world) {
  parser.add_integer("--nproc", num_ranks_, 1, 1024, help);
}

bool RanksFlag::starts_ranks() const {
  if (num_ranks_ > 1 && world_.launcher == launch::Launcher::kNone) return true;
  if (num_ranks_ > 1 && world_.launcher != launch::Launcher::kNproc) {
    parser_.refuse("--nproc", std::string(to_string(world_.launcher)) +
                                  " has started this process already; let either start the ranks, not both.");
  }
  if (world_.rank == 0) return false;
  silence_standard_output();
  set_log_rank(world_.rank);
  if (parser_.common().log_level.empty()) set_log_level(LogLevel::kError);
  return false;
}

int RanksFlag::start(const std::string& command, const std::vector<std::string>& arguments) const {
  launch::LocalRanks ranks{{std::filesystem::read_symlink("/proc/self/exe").string(), command}, num_ranks_};
  ranks.command.insert(ranks.command.end(), arguments.begin(), arguments.end());
  return launch::run_local_ranks(ranks);
}

}  // namespace lora_train::cli
