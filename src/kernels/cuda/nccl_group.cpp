// NCCL without c10d: ProcessGroupNCCL ends the process in its own way, and does not keep an optimizer from applying a
// partial sum.
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/core.h>
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "check.h"
#include "library.h"

namespace lora_train::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPollInterval(20);
constexpr std::chrono::seconds kTimeToEnd(5);

bool has_failed(ncclResult_t status) { return status != ncclSuccess && status != ncclInProgress; }

[[noreturn]] void throw_nccl_error(const std::string& where, const std::string& what, ncclResult_t status,
                                   ncclComm_t communicator) {
  const char* const last = ncclGetLastError(communicator);
  const std::string details = last != nullptr && *last != '\0' ? fmt::format(" ({})", last) : "";
  throw DeviceError(where, "NCCL: " + what + " failed: " + ncclGetErrorString(status) + details +
                               ". NCCL_DEBUG=INFO shows why; with NCCL_P2P_DISABLE=1, GPUs do not access each other's "
                               "memory directly.");
}

ncclDataType_t type_of_sum(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return ncclFloat32;
  if (tensor.scalar_type() == at::kDouble) return ncclFloat64;
  throw ShapeError("all-reduce", std::string("expected fp32 or fp64, not ") + c10::toString(tensor.scalar_type()));
}

class Group : public kernels::NcclGroup {
 public:
  Group(int rank, int world_size)
      : rank_(rank),
        world_size_(world_size),
        where_(fmt::format("rank {} of {}", rank, world_size)),
        device_(c10::cuda::current_device()),
        abort_stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)),
        one_(at::ones({1}, at::TensorOptions(at::kDouble).pinned_memory(true))) {}
  ~Group() override { release(&ncclCommAbort); }

  void connect(const ncclUniqueId& id, const std::function<void()>& while_waiting) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    wait("connecting the GPUs", ncclCommInitRankConfig(&communicator_, world_size_, id, rank_, &config), while_waiting);
  }

  void all_reduce(std::span<const at::Tensor> tensors) override {
    enqueue("all-reduce", tensors, [this](const at::Tensor& tensor, cudaStream_t stream) {
      void* const data = tensor.data_ptr();
      return ncclAllReduce(data, data, static_cast<std::size_t>(tensor.numel()), type_of_sum(tensor), ncclSum,
                           communicator_, stream);
    });
  }

  void broadcast(std::span<const at::Tensor> tensors) override {
    enqueue("broadcast", tensors, [this](const at::Tensor& tensor, cudaStream_t stream) {
      void* const data = tensor.data_ptr();
      return ncclBroadcast(data, data, tensor.nbytes(), ncclInt8, 0, communicator_, stream);
    });
  }

  void set_abort_flag(const at::Tensor& flag) override {
    if (!flag.is_cuda() || flag.scalar_type() != at::kDouble || flag.numel() != 1) {
      throw ShapeError("set_abort_flag", "expected one fp64 number in device memory");
    }
    const std::lock_guard lock(mutex_);
    flag_ = flag;
  }

  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    if (communicator_ == nullptr) return;
    set_flag();
    release(&ncclCommAbort);
  }

  void end() noexcept override {
    bool is_finalized = true;
    try {
      finalize();
    } catch (const std::exception&) {  // another rank did not call it; this one has all its results
      is_finalized = false;
    }
    const std::lock_guard lock(mutex_);
    release(is_finalized ? &ncclCommDestroy : &ncclCommAbort);
  }

  std::string asynchronous_error() override {
    const std::lock_guard lock(mutex_);
    if (communicator_ == nullptr) return {};
    const ncclResult_t status = state();
    return has_failed(status) ? ncclGetErrorString(status) + std::string(": ") + ncclGetLastError(communicator_)
                              : std::string();
  }

 private:
  // The mutex is held for one call of NCCL at a time, never while a thread waits: with blocking = 0 they return at
  // once.
  template <typename Call>
  void enqueue(const char* what, std::span<const at::Tensor> tensors, const Call& call) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    check(what, tensors, stream);
    ncclResult_t status = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
      if (status = state(); has_failed(status)) throw_nccl_error(where_, what, status, communicator_);
      status = ncclGroupStart();
      for (const at::Tensor& tensor : tensors) {
        if (!has_failed(status)) status = call(tensor, stream);
      }
      const ncclResult_t end = ncclGroupEnd();
      if (!has_failed(status)) status = end;
    }
    wait(what, status, [] {});
  }

  /// Checks before NCCL sees the first tensor: half a group cannot be undone.
  void check(const char* what, std::span<const at::Tensor> tensors, cudaStream_t stream) const {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    LT_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
    if (capture != cudaStreamCaptureStatusNone) {
      throw DeviceError(where_, "NCCL: {} inside a graph capture: graphs differ between ranks", what);
    }
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_cuda() || !tensor.is_contiguous()) throw ShapeError(what, "expected contiguous CUDA tensors");
    }
  }

  void wait(const char* what, ncclResult_t status, const std::function<void()>& while_waiting) {
    while (status == ncclInProgress) {
      while_waiting();
      std::this_thread::sleep_for(kPollInterval);
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
      status = state();
    }
    if (status == ncclSuccess) return;
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
    throw_nccl_error(where_, what, status, communicator_);
  }

  ncclResult_t state() const {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(communicator_, &state);
    return status == ncclSuccess ? state : status;
  }

  void throw_if_aborted() const {
    if (communicator_ == nullptr) throw DeviceError(where_, "NCCL: aborted, because a rank has failed or ended");
  }

  /// Uses another stream than the collectives, which may never end, and sets the group's device, since the device is
  /// per thread.
  void set_flag() noexcept try {
    if (!flag_.defined()) return;
    const c10::cuda::CUDAGuard guard(device_);
    LT_CUDA_CHECK(
        cudaMemcpyAsync(flag_.data_ptr(), one_.data_ptr(), sizeof(double), cudaMemcpyHostToDevice, abort_stream_));
    LT_CUDA_CHECK(cudaStreamSynchronize(abort_stream_));
  } catch (const std::exception&) {  // a failing device does not update anything either
  }

  void finalize() {
    ncclResult_t status = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
      status = ncclCommFinalize(communicator_);
    }
    wait("finalizing", status, [this, deadline = Clock::now() + kTimeToEnd] {
      if (Clock::now() > deadline) throw DeviceError(where_, "NCCL: another rank did not finish");
    });
  }

  /// Waits for NCCL's thread, which must not free the communicator while the process exits.
  void release(ncclResult_t (*how)(ncclComm_t)) noexcept {
    if (communicator_ == nullptr) return;
    const auto deadline = Clock::now() + kTimeToEnd;
    ncclResult_t status = how(communicator_);
    while (status == ncclInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(kPollInterval);
      status = state();
    }
    communicator_ = nullptr;
  }

  int rank_, world_size_;
  std::string where_;
  c10::DeviceIndex device_;
  c10::cuda::CUDAStream abort_stream_;  // created here: an abort must not allocate memory
  at::Tensor one_, flag_;
  std::mutex mutex_;  ///< guards communicator_ and flag_
  ncclComm_t communicator_ = nullptr;
};

std::string unique_id() {
  ncclUniqueId id;
  if (const ncclResult_t status = ncclGetUniqueId(&id); status != ncclSuccess) {
    throw_nccl_error("rank 0", "making an id", status, nullptr);
  }
  return {id.internal, sizeof id.internal};
}

std::unique_ptr<kernels::NcclGroup> connect(const std::string& id, int rank, int world_size,
                                            const std::function<void()>& while_waiting) {
  ncclUniqueId bytes;
  static_assert(sizeof bytes.internal == kernels::kNcclIdBytes);
  if (id.size() != sizeof bytes.internal) throw ShapeError("connect", "expected an id from unique_id()");
  std::memcpy(bytes.internal, id.data(), id.size());
  if (settings().deterministic) {
    // Sums in the order of the ring. NCCL's own choice would follow its estimates of the links.
    ::setenv("NCCL_ALGO", "Ring", /*replace=*/0);
    ::setenv("NCCL_PROTO", "Simple", /*replace=*/0);
  }
  auto group = std::make_unique<Group>(rank, world_size);
  group->connect(bytes, while_waiting);
  return group;
}

}  // namespace

const kernels::Nccl kNccl = {.unique_id = &unique_id, .connect = &connect};

}  // namespace lora_train::cuda
