// The table of commands: the one place that maps a name to a function.
#pragma once

#include <string>
#include <vector>

namespace lora_train::cli {

struct Command {
  std::string name;
  std::string summary;  ///< for the overview
  /// Runs with the arguments after the name; returns the exit code or throws.
  int (*run)(const std::vector<std::string>& arguments) = nullptr;
};

const std::vector<Command>& commands();

/// The text of `lora-train --help`.
std::string overview();

// Each is in <name>_command.cpp, or with related commands in <topic>_commands.cpp.
int run_train(const std::vector<std::string>& arguments);
int run_check(const std::vector<std::string>& arguments);
int run_download(const std::vector<std::string>& arguments);
int run_push(const std::vector<std::string>& arguments);
int run_convert(const std::vector<std::string>& arguments);
int run_plan(const std::vector<std::string>& arguments);
int run_ablate(const std::vector<std::string>& arguments);
int run_tokenize(const std::vector<std::string>& arguments);
int run_generate(const std::vector<std::string>& arguments);
int run_teach(const std::vector<std::string>& arguments);
int run_distill(const std::vector<std::string>& arguments);
int run_chat(const std::vector<std::string>& arguments);
int run_eval(const std::vector<std::string>& arguments);
int run_merge(const std::vector<std::string>& arguments);
int run_export(const std::vector<std::string>& arguments);
int run_compare(const std::vector<std::string>& arguments);
int run_doctor(const std::vector<std::string>& arguments);
int run_bench(const std::vector<std::string>& arguments);
int run_cache(const std::vector<std::string>& arguments);
int run_quantize(const std::vector<std::string>& arguments);
int run_init_model(const std::vector<std::string>& arguments);
int run_serve(const std::vector<std::string>& arguments);
int run_sweep(const std::vector<std::string>& arguments);
int run_completion(const std::vector<std::string>& arguments);

}  // namespace lora_train::cli
