// CUDA graphs with a private memory pool in LibTorch's allocator. Not LibTorch's CUDAGraph: a failed capture leaves its
// generator capturing and its pools referenced (2.11), and we never draw from that generator.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "library.h"
#include "lora_train/base/error.h"

namespace lora_train::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

/// The memory pool of all graphs, released with the last graph.
struct Pool {
  Pool() { allocator::createOrIncrefPool(device, id); }
  ~Pool() { allocator::releasePool(device, id); }
  Pool(const Pool&) = delete;

  static std::shared_ptr<Pool> shared() {
    static std::weak_ptr<Pool> existing;
    std::shared_ptr<Pool> pool = existing.lock();
    if (pool == nullptr) existing = pool = std::make_shared<Pool>();
    return pool;
  }

  const c10::DeviceIndex device = c10::cuda::current_device();
  const at::cuda::MempoolId_t id = at::cuda::graph_pool_handle();
};

/// While this lives, allocations made by a capturing stream come from the pool.
class AllocationsIntoPool {
 public:
  explicit AllocationsIntoPool(const Pool& pool) : pool_(pool) {
    allocator::beginAllocateToPool(pool.device, pool.id, [](cudaStream_t stream) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
      return status != cudaStreamCaptureStatusNone;
    });
  }
  ~AllocationsIntoPool() {
    allocator::endAllocateToPool(pool_.device, pool_.id);
    allocator::releasePool(pool_.device, pool_.id);  // beginAllocateToPool took a reference
  }
  AllocationsIntoPool(const AllocationsIntoPool&) = delete;

 private:
  const Pool& pool_;
};

/// A capturing stream. The destructor ends the capture, even after an exception.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    C10_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    is_open_ = true;
  }
  ~Capture() {
    if (!is_open_) return;
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());  // the caller already knows that the capture failed
  }
  Capture(const Capture&) = delete;

  cudaGraph_t end() {
    is_open_ = false;  // the stream stops capturing even if this fails
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    return graph;
  }

 private:
  cudaStream_t stream_;
  bool is_open_ = false;
};

class CapturedGraph : public kernels::Graph {
 public:
  explicit CapturedGraph(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
  ~CapturedGraph() override {
    if (executable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(executable_));
  }
  CapturedGraph(const CapturedGraph&) = delete;

  void take(cudaGraph_t graph) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    TORCH_CHECK_WITH(OutOfMemoryError, status != cudaErrorMemoryAllocation, "CUDA out of memory: cudaGraphInstantiate");
    C10_CUDA_CHECK(status);
  }
  void replay() override { C10_CUDA_CHECK(cudaGraphLaunch(executable_, c10::cuda::getCurrentCUDAStream())); }

 private:
  std::shared_ptr<Pool> pool_;
  cudaGraphExec_t executable_ = nullptr;
};

std::unique_ptr<kernels::Graph> capture_on(const std::function<void()>& body, const c10::cuda::CUDAStream& stream) {
  const std::shared_ptr<Pool> pool = Pool::shared();
  auto captured = std::make_unique<CapturedGraph>(pool);
  const AllocationsIntoPool allocations(*pool);
  const c10::cuda::CUDAStreamGuard guard(stream);
  Capture capture(stream);
  body();
  captured->take(capture.end());
  return captured;
}

}  // namespace

std::unique_ptr<kernels::Graph> capture(const std::function<void()>& body) {
  static const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();  // the default stream cannot capture
  c10::cuda::device_synchronize();
  try {
    return capture_on(body, stream);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw DeviceError("CUDA graphs",
                      std::string("a part of the step could not be captured: ") + error.what_without_backtrace());
  }
}

}  // namespace lora_train::cuda
