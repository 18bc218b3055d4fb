// Versions of the NVIDIA libraries that the torch wheel brings.
#pragma once

#include <string>
#include <vector>

#include "find_torch.h"

namespace lora_train::cli {

struct LibraryVersion {
  std::string name;     ///< "NCCL"
  std::string version;  ///< "2.28.9", as the library itself says; empty if it cannot be loaded
  std::string problem;  ///< why not
};

/// NCCL, cuDNN and cuBLASLt, loaded from the wheels beside torch, else from where the system's loader finds them. They
/// stay loaded. Empty for a CPU build of torch, which needs none.
std::vector<LibraryVersion> library_versions(const TorchInstallation& torch);

/// 22809 -> "2.28.9": how all three count.
std::string version_of_number(unsigned long number);

}  // namespace lora_train::cli
