#include "lora_train/kernels/launch/graph.h"

#include "lora_train/base/error.h"
#include "lora_train/kernels/dispatch/cuda_library.h"

namespace lora_train::kernels {
namespace {

CaptureFunction capture_in_use;
CapturedWork* work_in_capture = nullptr;
bool capturing = false;

struct CaptureScope {
  CaptureScope() { capturing = true; }
  ~CaptureScope() { capturing = false; }
};

}  // namespace

bool is_capturing() { return capturing; }

CapturedWork*& captured_work() { return work_in_capture; }

void use_capture(CaptureFunction function) { capture_in_use = std::move(function); }

bool can_capture() { return capture_in_use != nullptr || cuda_library() != nullptr; }

std::unique_ptr<Graph> capture(const std::function<void()>& body) {
  const CaptureScope scope;
  if (capture_in_use) return capture_in_use(body);
  if (cuda_library() == nullptr) throw DeviceError("capture", "the CUDA library is not loaded");
  return cuda_library()->capture(body);
}

}  // namespace lora_train::kernels
