// The GPUs and drivers that this build supports.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::device {

/// A compute capability that our CUDA code was compiled for. `is_ptx`: as PTX, which the driver compiles for later GPUs.
struct CudaArchitecture {
  int major = 0, minor = 0;
  bool is_ptx = false;
};

/// The architectures of this build (LORA_TRAIN_CUDA_ARCHITECTURES, else those of cmake/cuda_architectures.txt).
const std::vector<CudaArchitecture>& built_architectures();

/// "sm_80 sm_86 sm_89 sm_90 sm_100 sm_120 compute_120"
std::string built_architectures_text();

/// How our code runs on a GPU of this compute capability.
enum class CodeFor { kNone, kMachineCode, kPtx };
CodeFor code_for(int major, int minor, const std::vector<CudaArchitecture>& built = built_architectures());

/// The oldest driver that runs our CUDA code, and the CUDA version that it supports.
inline constexpr int kOldestDriver = 580;
inline constexpr int kOldestCudaVersion = 13000;

/// The path of lib/liblora_train_cuda.so beside the program. A CPU-only build has no such file.
std::filesystem::path cuda_library_file();

}  // namespace lora_train::device
