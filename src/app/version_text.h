// lora-train --version.
#pragma once

#include <string>

namespace lora_train::app {

/// Lines: program and commit; LibTorch with its folder (loaded, so that the line shows whether it works here, else why
/// not); CUDA of LibTorch; GPU architectures of our own kernels. Never throws for a missing LibTorch.
std::string version_text();

}  // namespace lora_train::app
