#include "version_text.h"

#include <sstream>

#include "engine/engine_loader.h"
#include "json_text.h"
#include "lora_train/base/error.h"
#include "lora_train/base/version.h"
#include "lora_train/device/cuda_build.h"

namespace lora_train::cli {
namespace {

struct Found {
  TorchInstallation torch;  ///< empty where there is none
  std::string engine;       ///< version of the LibTorch that the engine was built with
  std::string problem;      ///< why the engine is not loaded
};

Found look() {
  Found found;
  try {
    found.torch = find_torch();
    found.engine = load_engine().torch_version();
  } catch (const Error& error) {
    found.problem = error.what();
  }
  return found;
}

bool has_cuda_library() { return std::filesystem::exists(device::cuda_library_file()); }

nlohmann::ordered_json architectures() {
  auto list = nlohmann::ordered_json::array();
  std::istringstream words(has_cuda_library() ? device::built_architectures_text() : "");
  for (std::string word; words >> word;) list.push_back(word);
  return list;
}

std::string as_json(const Found& found) {
  const nlohmann::ordered_json line = {{"version", version()},
                                       {"commit", commit()},
                                       {"libtorch", or_null(found.torch.version)},
                                       {"libtorch_folder", or_null(found.torch.folder.string())},
                                       {"cuda", or_null(found.torch.cuda)},
                                       {"gpu_architectures", architectures()},
                                       {"engine", or_null(found.engine)},
                                       {"problem", or_null(found.problem)}};
  return to_line(line) + "\n";
}

}  // namespace

std::string version_text(bool json) {
  const Found found = look();
  if (json) return as_json(found);
  std::string text = "lora-train " + version() + " (commit " + commit() + ")\n";
  const TorchInstallation& torch = found.torch;
  if (!torch.folder.empty()) {
    text += "LibTorch " + torch.version + " (" + torch.folder.string() + ", from " + torch.found_by + ")\n";
    text += "CUDA " + (torch.cuda.empty() ? "none: a CPU build of LibTorch" : torch.cuda + " of LibTorch") + "\n";
  }
  text += found.problem.empty() ? "engine built with LibTorch " + found.engine + ", loaded\n"
                                : "engine not loaded: " + found.problem + "\n";
  return text +
         "GPU architectures: " + (has_cuda_library() ? device::built_architectures_text() : "none (a CPU-only build)") +
         "\n";
}

}  // namespace lora_train::cli
