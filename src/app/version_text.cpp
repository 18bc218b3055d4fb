#include "version_text.h"

#include "engine_loader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/version.h"

namespace lora_train::app {

std::string version_text() {
  std::string text = "lora-train " + version() + " (commit " + commit() + ")\n";
  try {
    const TorchInstallation torch = find_torch();
    text += "LibTorch " + torch.version + " (" + torch.folder.string() + ", from " + torch.found_by + ")\n";
    text += "CUDA " + (torch.cuda.empty() ? "none: a CPU build of LibTorch" : torch.cuda + " of LibTorch") + "\n";
    text += "engine built with LibTorch " + load_engine().torch_version() + ", loaded\n";
  } catch (const Error& error) {
    text += std::string("engine not loaded: ") + error.what() + "\n";
  }
  return text + "GPU architectures: none (own kernels are not built yet; CPU only)\n";
}

}  // namespace lora_train::app
