// The table of commands: the one place that maps a name to a function.
#pragma once

#include <string>
#include <vector>

namespace lora_train::cli {

/// Runs a command with the arguments after its name; returns the exit code or throws.
using RunCommand = int(const std::vector<std::string>& arguments);

struct Command {
  std::string name;
  std::string summary;  ///< for the overview
  RunCommand* run = nullptr;
};

const std::vector<Command>& commands();

/// The text of `lora-train --help`.
std::string overview();

// Each is in <name>_command.cpp, or with related commands in <topic>_commands.cpp.
RunCommand run_train, run_check, run_download, run_push, run_convert, run_plan, run_ablate, run_tokenize, run_generate,
    run_teach, run_distill, run_chat, run_eval, run_merge, run_export, run_compare, run_doctor, run_bench, run_cache,
    run_quantize, run_init_model, run_serve, run_sweep, run_completion, run_verify;

}  // namespace lora_train::cli
