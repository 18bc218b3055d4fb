// What moves tensors between the ranks: Gloo on a CPU, NCCL on GPUs. Communicator says when and whether; a run uses that.
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

/// Every rank makes the same calls, in the same order, with tensors of the same sizes and dtypes, from one thread. They throw
/// DeviceError when another rank has died or cannot be reached, and after abort().
class Transport {
 public:
  virtual ~Transport() = default;
  /// As Communicator::all_reduce.
  virtual void all_reduce(std::span<const at::Tensor> tensors) = 0;
  /// Overwrites contiguous tensors of any dtype with those of rank 0.
  virtual void broadcast(std::span<const at::Tensor> tensors) = 0;
  /// As Communicator::all_gather.
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;

  /// The fp64 number in device memory that abort() sets to 1 first: kNonFinite of the step. Nothing on a CPU.
  virtual void set_abort_flag(const at::Tensor& flag) { static_cast<void>(flag); }
  /// Ends a call that is waiting in another thread, and all later ones. What is enqueued on a GPU by then updates nothing.
  virtual void abort() noexcept = 0;
  /// The last call where all has gone well; returns once every rank has called it, or after 5 s.
  virtual void end() noexcept {}
  /// An error of work that was enqueued, as text; empty if there is none, and always on a CPU. Safe from another thread.
  virtual std::string asynchronous_error() { return {}; }
};

/// Collectives over Gloo, for tensors in host memory. Connects all ranks. `address`: of the interface at which the others reach this one. Throws DeviceError.
std::unique_ptr<Transport> make_gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               const std::string& address, std::chrono::milliseconds timeout);

/// NCCL for CUDA tensors, all on the device that the CUDA library was started on; `host` for tensors in host memory and for texts.
/// A call has tensors of one kind.
///
/// NCCL connects at the first collective of CUDA tensors; while that waits for the other ranks, a stop request ends it (StopError).
/// abort() ends the calls of `host` as well.
std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, int rank, int world_size);

/// What that uses: Gloo as c10d wraps it, every rank connected with every other. `timeout`: of connecting,
/// and of collectives until setTimeout(). Throws what c10d and Gloo throw (std::exception).
c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int world_size, const std::string& address,
                                                  std::chrono::milliseconds timeout);

}  // namespace lora_train::ranks
