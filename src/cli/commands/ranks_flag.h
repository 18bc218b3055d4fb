// Commands that run with several ranks, by --nproc or by another launcher.
#pragma once

#include <string>
#include <vector>

#include "command_line.h"
#include "lora_train/launch/world.h"

namespace lora_train::cli {

class RanksFlag {
 public:
  /// Adds --nproc. `world`: launch::world_from().
  RanksFlag(CommandParser& parser, const launch::World& world, const std::string& help);
  RanksFlag(const RanksFlag&) = delete;
  RanksFlag& operator=(const RanksFlag&) = delete;

  /// After parsing: whether this process starts the ranks of `start`, and is none of them. Refuses --nproc where another launcher has
  /// started this process. Where it is a rank, settles what it says: rank 0 alone writes to stdout and says what all do; the
  /// others say what went wrong there.
  bool starts_ranks() const;
  /// Runs the command with the same arguments in processes of its own; returns the exit code.
  int start(const std::string& command, const std::vector<std::string>& arguments) const;

 private:
  CommandParser& parser_;
  const launch::World& world_;
  int num_ranks_ = 1;
};

}  // namespace lora_train::cli
