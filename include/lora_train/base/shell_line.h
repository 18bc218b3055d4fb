// Commands as a person types them.
#pragma once

#include <string>
#include <vector>

namespace lora_train {

/// The words as one line of a POSIX shell, with quotes where one needs them.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace lora_train
