// CUDA graphs through LibTorch's, whose allocator keeps what a body allocates apart (ATen/cuda/CUDAGraph.h).
#include "graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "lora_train/base/error.h"

namespace lora_train::cuda {
namespace {

class RecordedGraph : public kernels::Graph {
 public:
  void replay() override { graph.replay(); }
  at::cuda::CUDAGraph graph;
};

/// Ends a capture that has failed, so that the stream and LibTorch's allocator are as before.
void abandon(at::cuda::CUDAGraph& graph, const c10::cuda::CUDAStream& stream, at::cuda::MempoolId_t pool) {
  try {
    graph.capture_end();
  } catch (const std::exception&) {  // says that the capture is broken, which is known
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(stream.device_index(), pool);
    } catch (const std::exception&) {
    }
  }
  static_cast<void>(cudaGetLastError());
}

}  // namespace

std::unique_ptr<kernels::Graph> capture(const std::function<void()>& body) {
  static const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  static const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();  // the default stream records nothing
  auto recorded = std::make_unique<RecordedGraph>();
  c10::cuda::device_synchronize();
  const c10::cuda::CUDAStreamGuard guard(stream);
  try {
    recorded->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    body();
    recorded->graph.capture_end();
  } catch (const c10::OutOfMemoryError&) {
    abandon(recorded->graph, stream, pool);
    throw;
  } catch (const c10::Error& error) {
    abandon(recorded->graph, stream, pool);
    throw DeviceError("CUDA graphs", std::string("a part of the step could not be recorded: ") + error.what_without_backtrace());
  } catch (...) {
    abandon(recorded->graph, stream, pool);
    throw;
  }
  return recorded;
}

}  // namespace lora_train::cuda
