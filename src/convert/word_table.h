// Words of other tools and what they are here.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lora_train {

using WordTable = std::vector<std::pair<const char*, const char*>>;  ///< theirs in lower case, ours

/// Our word for theirs, in any case; empty = none.
std::string translated(const WordTable& words, const std::string& theirs);

}  // namespace lora_train
