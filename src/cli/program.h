// The program as a function: arguments in, exit code out.
#pragma once

#include <string>
#include <vector>

namespace lora_train::cli {

/// Runs one command. `arguments` are the shell's, without the program's name. Catches every exception and reports it;
/// nothing else in the program catches everything.
int run_program(const std::vector<std::string>& arguments);

}  // namespace lora_train::cli
