#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace lora_train {

/// The result of gethostname(), or "localhost" if that fails.
inline std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace lora_train
