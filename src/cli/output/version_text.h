// lora-train --version.
#pragma once

#include <string>

namespace lora_train::cli {

/// Lines: program and commit; LibTorch with its folder (loaded, so that the line shows whether it works here, else why
/// not); CUDA of LibTorch; GPU architectures of our own kernels. With json one object: version, commit, libtorch,
/// libtorch_folder, cuda, gpu_architectures, engine (LibTorch it was built with), problem; null = none. Never throws
/// for a missing LibTorch.
std::string version_text(bool json);

}  // namespace lora_train::cli
