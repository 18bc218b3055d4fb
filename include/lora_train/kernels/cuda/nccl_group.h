// The GPUs of several processes, connected by NCCL.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace lora_train::kernels {

/// One rank's end of the connection. One thread makes the calls; abort() and asynchronous_error() may come from any thread, also
/// while a call waits. Calls throw DeviceError with NCCL's text, and always do after abort() or end().
class NcclGroup {
 public:
  /// Unless end() was called: breaks off what is in flight, and asks no other rank.
  virtual ~NcclGroup() = default;

  /// Replaces contiguous CUDA tensors (fp32 or fp64) by their sums over all ranks, the same bits on every rank. One NCCL group,
  /// enqueued on torch's current stream. Throws DeviceError inside a graph capture.
  virtual void all_reduce(std::span<const at::Tensor> tensors) = 0;
  /// Overwrites contiguous CUDA tensors of any dtype with those of rank 0. Enqueued as all_reduce() is.
  virtual void broadcast(std::span<const at::Tensor> tensors) = 0;

  /// The fp64 scalar in device memory that abort() sets to 1: the sticky kNonFinite of the step (kernels/adamw/adamw.h).
  virtual void set_abort_flag(const at::Tensor& flag) = 0;
  /// Sets the abort flag from a stream of its own, waits for that, and only then ends what is in flight: an update that is
  /// enqueued behind it finds the flag set, and writes nothing.
  virtual void abort() noexcept = 0;
  /// The last call where all has gone well: waits until every rank has called it, 5 s at most, and frees the connection.
  virtual void end() noexcept = 0;
  /// An error of work that was enqueued, as text; empty if there is none, and after abort() or end().
  virtual std::string asynchronous_error() = 0;
};

constexpr std::int64_t kNcclIdBytes = 128;

/// Both need the CUDA library to be started (start_cuda), and throw DeviceError.
struct Nccl {
  std::string (*unique_id)();  ///< kNcclIdBytes, of one group: rank 0 makes it and gives it to all others
  /// Returns once all ranks have called it with the same id. `while_waiting` is called every fraction of a millisecond; what it
  /// throws ends the wait. CudaSettings::deterministic fixes NCCL's algorithm and protocol, unless the environment does.
  std::unique_ptr<NcclGroup> (*connect)(const std::string& id, int rank, int world_size,
                                        const std::function<void()>& while_waiting);
};

}  // namespace lora_train::kernels
