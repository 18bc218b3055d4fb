// What the CUDA side of this build was made for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::device {

/// Compute capability that our CUDA code was compiled for; `is_ptx`: as text that the driver compiles for later GPUs.
struct CudaArchitecture {
  int major = 0, minor = 0;
  bool is_ptx = false;
};

/// Of cmake/cuda_architectures.txt.
const std::vector<CudaArchitecture>& built_architectures();

/// "sm_80 sm_86 sm_89 sm_90 compute_90"
std::string built_architectures_text();

/// How our code runs on a GPU of this compute capability.
enum class CodeFor { kNone, kMachineCode, kPtx };
CodeFor code_for(int major, int minor);

/// The oldest driver whose libcuda.so.1 runs our CUDA, and that CUDA.
inline constexpr int kOldestDriver = 580;
inline constexpr int kOldestCudaVersion = 13000;

/// lib/liblora_train_cuda.so beside the program; a CPU-only build has none.
std::filesystem::path cuda_library_file();

}  // namespace lora_train::device
