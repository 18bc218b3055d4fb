// The program as a function: arguments in, exit code out.
#pragma once

#include <string>
#include <vector>

namespace lora_train::cli {

/// Runs one command. `arguments` are those of the shell without the program's name. Catches everything that is thrown
/// and reports it; nothing else in the program catches everything.
int run_program(const std::vector<std::string>& arguments);

}  // namespace lora_train::cli
