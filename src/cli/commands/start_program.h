// Runs of this program that a command starts.
#pragma once

#include <string>
#include <vector>

namespace lora_train::cli {

/// By a second signal: ends the command with this code.
struct Killed {
  int exit_code;
};

/// Runs this program with these arguments, the command first, in processes of their own (launch::run_local_ranks), and returns its exit
/// code. `has_signal`: whether a signal came meanwhile; nothing else in this process has seen it. Throws Killed if a second one came.
int start_program(const std::vector<std::string>& arguments, int num_ranks, bool* has_signal = nullptr);

}  // namespace lora_train::cli
