#include "library_versions.h"

#include <dlfcn.h>

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

unsigned long ask_nccl(void* symbol) {
  int version = 0;
  reinterpret_cast<int (*)(int*)>(symbol)(&version);
  return static_cast<unsigned long>(version);
}

unsigned long ask_size(void* symbol) { return reinterpret_cast<std::size_t (*)()>(symbol)(); }

struct Source {
  std::string name, file;
  std::vector<std::string> folders;  ///< in site-packages/nvidia
  const char* symbol;
  unsigned long (*query)(void* symbol);
};

LibraryVersion look_up(const Source& source, const fs::path& wheels) {
  LibraryVersion found{source.name, "", ""};
  std::string name = source.file;
  for (const auto& folder : source.folders) {
    std::error_code error;
    if (fs::exists(wheels / folder / "lib" / source.file, error))
      name = (wheels / folder / "lib" / source.file).string();
  }
  void* const library = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : ::dlsym(library, source.symbol);
  if (symbol == nullptr) {
    const char* const reason = ::dlerror();
    found.problem = reason != nullptr ? reason : name + " cannot be loaded";
  } else {
    found.version = version_of_number(source.query(symbol));
  }
  return found;
}

}  // namespace

std::string version_of_number(unsigned long number) {
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." + std::to_string(number % 100);
}

std::vector<LibraryVersion> library_versions(const TorchInstallation& torch) {
  if (torch.cuda.empty()) return {};
  const std::string series = torch.cuda.substr(0, torch.cuda.find('.'));
  const Source sources[] = {
      {"NCCL", "libnccl.so.2", {"nccl"}, "ncclGetVersion", ask_nccl},
      {"cuDNN", "libcudnn.so.9", {"cudnn"}, "cudnnGetVersion", ask_size},
      {"cuBLASLt", "libcublasLt.so." + series, {"cublas", "cu" + series}, "cublasLtGetVersion", ask_size}};
  std::vector<LibraryVersion> versions;
  for (const Source& source : sources) versions.push_back(look_up(source, torch.folder.parent_path() / "nvidia"));
  return versions;
}

}  // namespace lora_train::cli
