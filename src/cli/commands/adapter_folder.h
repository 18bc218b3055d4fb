// The one rule for where an adapter is: --adapter and init_adapter take a PEFT folder or the output_dir of a run.
#pragma once

#include <string>

namespace lora_train::cli {

/// The PEFT folder that `given` means: itself, or adapter/ of a run. Looks, and refuses nothing.
std::string adapter_folder(const std::string& given);

/// Warns, once per folder, where adapter/ of a run is older than the run: it was resumed or extended, and has not ended since.
void warn_of_older_result(const std::string& adapter);

/// The same as adapter_folder(), with that warning. Throws FormatError where there is no such folder, and ConfigError(`name`) for a run that has no adapter yet, naming its newest
/// checkpoint. `name`: "--adapter" or "init_adapter".
std::string find_adapter(const std::string& given, const std::string& name = "--adapter");

}  // namespace lora_train::cli
