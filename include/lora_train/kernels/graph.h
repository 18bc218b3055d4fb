// Work of a device that is recorded once and then replayed: one call of the host in place of hundreds. What is recorded
// runs on the same addresses, with the same shapes and the same numbers given by the host; whatever changes from replay to
// replay lies in memory of the device.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace lora_train::kernels {

class Graph {
 public:
  virtual ~Graph() = default;
  /// Asks the device for all of it, in the current stream. Waits for nothing.
  virtual void replay() = 0;
};

/// Runs `body`, whose work is recorded and not done: it may neither wait for the device nor read from it, and has run once
/// before, so that whatever is made at first use is there. Temporary memory of all graphs is one pool: they are replayed
/// in turn, never at once. Throws DeviceError with what CUDA said; then nothing is left recorded.
std::unique_ptr<Graph> capture(const std::function<void()>& body);

/// Whether a body is being recorded: what reads lengths of documents on the host refuses then.
bool is_recording();

/// Whether there is anything to capture with: CUDA is started, or a test has put its own there.
bool can_capture();

/// Takes the place of CUDA's capture; empty takes it away. For tests, where CPU tensors stand for those of a GPU.
using CaptureFunction = std::function<std::unique_ptr<Graph>(const std::function<void()>& body)>;
void use_capture(CaptureFunction function);

/// What a capture on the CPU records: pieces of work in their order. Null while nothing is being recorded there. On a
/// GPU the stream records, and this stays null.
using RecordedWork = std::vector<std::function<void()>>;
RecordedWork*& recorded_work();

/// Does a piece of work that is not a launch of ours (a product, attention, something of ATen's), or records it.
template <class Work>
void do_or_record(Work work) {
  if (RecordedWork* const recorded = recorded_work()) {
    recorded->emplace_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace lora_train::kernels
