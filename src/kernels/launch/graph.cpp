#include "lora_train/kernels/graph.h"

#include "lora_train/base/error.h"
#include "lora_train/kernels/cuda_library.h"

namespace lora_train::kernels {
namespace {

CaptureFunction& capture_in_use() {
  static CaptureFunction function;
  return function;
}

bool recording = false;

struct Recording {
  Recording() { recording = true; }
  ~Recording() { recording = false; }
};

}  // namespace

bool is_recording() { return recording; }

RecordedWork*& recorded_work() {
  static RecordedWork* recorded = nullptr;
  return recorded;
}

void use_capture(CaptureFunction function) { capture_in_use() = std::move(function); }

bool can_capture() { return capture_in_use() != nullptr || cuda_library() != nullptr; }

std::unique_ptr<Graph> capture(const std::function<void()>& body) {
  const Recording now;
  if (capture_in_use()) return capture_in_use()(body);
  if (cuda_library() == nullptr) throw DeviceError("capture", "there is no CUDA library to record with");
  return cuda_library()->capture(body);
}

}  // namespace lora_train::kernels
