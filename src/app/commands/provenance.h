// What `train` knows about where its run comes from.
#pragma once

#include <string>
#include <vector>

#include "lora_train/config/load.h"
#include "lora_train/metrics/provenance.h"

namespace lora_train::app {

/// "--set 'a b=c'": words as a shell reads them back.
std::string shell_line(const std::vector<std::string>& words);

/// `arguments`: of the command. Call it once the engine is loaded.
metrics::Provenance provenance_of(const LoadedProfile& loaded, const std::vector<std::string>& arguments);

}  // namespace lora_train::app
