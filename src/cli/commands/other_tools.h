// What users of other tools type: names of their commands, and their files where ours takes none.
#pragma once

#include <string>
#include <vector>

namespace lora_train::cli {

/// Of a command that only another tool has (TRL's `sft`): one sentence with what to run instead, for the file in `arguments` if there
/// is one. Empty for other names.
std::string instead_of_command(const std::string& name, const std::vector<std::string>& arguments);

/// Throws ConfigError where `arguments` name a configuration file and the command is one that takes none, but does in another tool
/// (LLaMA-Factory's `export merge.yaml`), with the line that says the same in flags.
void refuse_configuration_file(const std::string& command, const std::vector<std::string>& arguments);

}  // namespace lora_train::cli
