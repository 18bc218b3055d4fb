// CUDA graphs whose temporary memory comes from a pool of their own, in LibTorch's allocator. LibTorch's CUDAGraph is not used:
// a capture that breaks leaves its generator recording and its pools held (2.11), and nothing of ours draws from that generator.
#include "graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "lora_train/base/error.h"

namespace lora_train::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

/// Temporary memory of all graphs there are; given back with the last of them.
class Pool {
 public:
  Pool() : device_(c10::cuda::current_device()), id_(at::cuda::graph_pool_handle()) { allocator::createOrIncrefPool(device_, id_); }
  ~Pool() { allocator::releasePool(device_, id_); }
  Pool(const Pool&) = delete;

  static std::shared_ptr<Pool> shared() {
    static std::weak_ptr<Pool> existing;
    std::shared_ptr<Pool> pool = existing.lock();
    if (pool == nullptr) existing = pool = std::make_shared<Pool>();
    return pool;
  }

  c10::DeviceIndex device() const { return device_; }
  at::cuda::MempoolId_t id() const { return id_; }

 private:
  c10::DeviceIndex device_;
  at::cuda::MempoolId_t id_;
};

/// While it lives, what is allocated for work that is being recorded comes from the pool.
class AllocationsIntoPool {
 public:
  explicit AllocationsIntoPool(const Pool& pool) : pool_(pool) {
    allocator::beginAllocateToPool(pool.device(), pool.id(), [](cudaStream_t stream) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
      return status != cudaStreamCaptureStatusNone;
    });
  }
  ~AllocationsIntoPool() {
    allocator::endAllocateToPool(pool_.device(), pool_.id());
    allocator::releasePool(pool_.device(), pool_.id());  // which began with a use of its own
  }
  AllocationsIntoPool(const AllocationsIntoPool&) = delete;

 private:
  const Pool& pool_;
};

/// A stream that records; ends with it, whatever has happened.
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
    static_cast<void>(cudaGetLastError());  // that the capture is broken is known
  }
  Capture(const Capture&) = delete;

  cudaGraph_t end() {
    is_open_ = false;  // the stream records no longer, also where the capture is broken
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    return graph;
  }

 private:
  cudaStream_t stream_;
  bool is_open_ = false;
};

class RecordedGraph : public kernels::Graph {
 public:
  explicit RecordedGraph(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
  ~RecordedGraph() override {
    if (executable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(executable_));
  }
  RecordedGraph(const RecordedGraph&) = delete;

  void take(cudaGraph_t graph) {
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    C10_CUDA_CHECK(status);
  }
  void replay() override { C10_CUDA_CHECK(cudaGraphLaunch(executable_, c10::cuda::getCurrentCUDAStream())); }

 private:
  std::shared_ptr<Pool> pool_;
  cudaGraphExec_t executable_ = nullptr;
};

std::unique_ptr<kernels::Graph> record(const std::function<void()>& body, const c10::cuda::CUDAStream& stream) {
  const std::shared_ptr<Pool> pool = Pool::shared();
  auto recorded = std::make_unique<RecordedGraph>(pool);
  const AllocationsIntoPool allocations(*pool);
  const c10::cuda::CUDAStreamGuard guard(stream);
  Capture capture(stream);
  body();
  recorded->take(capture.end());
  return recorded;
}

}  // namespace

std::unique_ptr<kernels::Graph> capture(const std::function<void()>& body) {
  static const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();  // the default stream records nothing
  c10::cuda::device_synchronize();
  try {
    return record(body, stream);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw DeviceError("CUDA graphs", std::string("a part of the step could not be recorded: ") + error.what_without_backtrace());
  }
}

}  // namespace lora_train::cuda
