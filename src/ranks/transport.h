// Moves tensors between the ranks: Gloo on a CPU, NCCL on GPUs. A run uses Communicator, which decides if and when.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace lora_train::ranks {

/// Every rank makes the same calls, in the same order, with tensors of the same sizes and dtypes, from one thread. They
/// throw DeviceError if another rank has died or cannot be reached, and after abort().
class Transport {
 public:
  virtual ~Transport() = default;
  /// Like Communicator::all_reduce.
  virtual void all_reduce(std::span<const at::Tensor> tensors) = 0;
  /// Overwrites contiguous tensors of any dtype with those of rank 0.
  virtual void broadcast(std::span<const at::Tensor> tensors) = 0;
  /// Like Communicator::all_gather.
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;

  /// Sets the fp64 flag in device memory (kNonFinite of the step) that abort() sets to 1 first. No effect on a CPU.
  virtual void set_abort_flag(const at::Tensor& flag) { static_cast<void>(flag); }
  /// Ends a call that is waiting in another thread, and all later ones. Work already enqueued on a GPU updates nothing.
  virtual void abort() noexcept = 0;
  /// The last call if all went well. Returns once every rank has called it, or after 5 s.
  virtual void end() noexcept {}
  /// The error text of enqueued work; empty if there is none, and always on a CPU. Safe to call from another thread.
  virtual std::string asynchronous_error() { return {}; }
};

/// Collectives over Gloo, for tensors in host memory. Connects all ranks. `address`: the interface at which the others
/// reach this rank. Throws DeviceError.
std::unique_ptr<Transport> make_gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               const std::string& address, std::chrono::milliseconds timeout);

/// NCCL for CUDA tensors, all on the device that the CUDA library was started on; `host` handles tensors in host memory
/// and texts. All tensors of a call must be of one kind.
///
/// NCCL connects at the first collective of CUDA tensors; while that waits for the other ranks, a stop request ends it
/// (StopError). abort() also ends calls of `host`.
std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, int rank, int world_size);

/// For make_gloo_transport(): Gloo as wrapped by c10d, with every rank connected to every other. `timeout` applies to
/// connecting, and to collectives until setTimeout(). Throws what c10d and Gloo throw (std::exception).
c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int world_size, const std::string& address,
                                                  std::chrono::milliseconds timeout);

}  // namespace lora_train::ranks
