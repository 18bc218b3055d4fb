// What `train` knows about where its run comes from.
#pragma once

#include <string>
#include <vector>

#include "lora_train/config/load.h"
#include "lora_train/report/provenance.h"

namespace lora_train::cli {

/// `arguments`: of the command. Call it once the engine is loaded.
report::Provenance provenance_of(const LoadedProfile& loaded, const std::vector<std::string>& arguments);

}  // namespace lora_train::cli
