#include <fmt/core.h>

#include <sstream>

#include "lora_train/device/gpu.h"

namespace lora_train::device {

const std::vector<CudaArchitecture>& built_architectures() {
  static const std::vector<CudaArchitecture> built = [] {
    std::vector<CudaArchitecture> list;
    std::istringstream words(LORA_TRAIN_CUDA_ARCHITECTURES);
    for (std::string word; words >> word;) {
      const int number = std::stoi(word);
      list.push_back({number / 10, number % 10, word.ends_with("-virtual")});
    }
    return list;
  }();
  return built;
}

std::string built_architectures_text() {
  std::string text;
  for (const auto& built : built_architectures()) {
    if (!text.empty()) text += ' ';
    text += fmt::format("{}{}{}", built.is_ptx ? "compute_" : "sm_", built.major, built.minor);
  }
  return text;
}

CodeFor code_for(int major, int minor, const std::vector<CudaArchitecture>& built) {
  CodeFor found = CodeFor::kNone;
  for (const auto& code : built) {
    const bool is_later = major > code.major || (major == code.major && minor >= code.minor);
    // Machine code runs on GPUs with the same major number and the same or a later minor one.
    if (!code.is_ptx && major == code.major && is_later) return CodeFor::kMachineCode;
    if (code.is_ptx && is_later) found = CodeFor::kPtx;
  }
  return found;
}

std::filesystem::path cuda_library_file() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lib" / "liblora_train_cuda.so";
}

}  // namespace lora_train::device
