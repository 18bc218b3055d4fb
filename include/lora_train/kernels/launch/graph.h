// CUDA graphs: capture work once, then replay it with a single launch. A replay uses the addresses, shapes and host
// values of the capture, so everything that changes between replays must be in device memory.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace lora_train::kernels {

class Graph {
 public:
  virtual ~Graph() = default;
  /// Enqueues the graph on the current stream and returns at once.
  virtual void replay() = 0;
};

/// Runs `body` and captures its work instead of executing it. `body` must neither synchronize with the device nor read
/// from it, and must have run once before, so that everything created at first use exists. All graphs share one memory
/// pool: replay them one at a time. Throws DeviceError with CUDA's message; the capture is then discarded.
std::unique_ptr<Graph> capture(const std::function<void()>& body);

/// True inside capture(). Code that reads document lengths on the host then refuses to run.
bool is_capturing();

/// True when CUDA is loaded or a test has installed a capture function.
bool can_capture();

/// Replaces CUDA's capture; an empty function restores it. For tests that run on CPU tensors.
using CaptureFunction = std::function<std::unique_ptr<Graph>(const std::function<void()>& body)>;
void use_capture(CaptureFunction function);

/// The work captured by a CPU capture, in order. Null outside a capture, and always on a GPU, where the stream
/// captures.
using CapturedWork = std::vector<std::function<void()>>;
CapturedWork*& captured_work();

/// Runs work that is not a native kernel (a GEMM, attention, an ATen call), or captures it inside a CPU capture.
template <class Work>
void run_or_capture(Work work) {
  if (CapturedWork* const captured = captured_work()) {
    captured->emplace_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace lora_train::kernels
