// The ranks of a run: their collectives and agreements.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train::ranks {

/// Every rank must make the same collectives in the same order, with tensors of the same sizes and dtypes. Used by one
/// thread.
///
/// With several ranks, a stop request to any rank stops all (requests are deferred, base/stop_request.h): before
/// begin_steps() at once, after it at the same place. As some may have entered a collective that others have not, all
/// continue to the last one that any rank has entered; from then on, throw_if_stop_requested() and the next collective
/// throw StopError.
///
/// Collectives, and from then on throw_if_stop_requested(), throw PeerError once another rank has failed (report()),
/// has ended without a word, or has stopped answering: within 2 s of a death on this host, 15 s on another one, and 60
/// s of SIGSTOP.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Replaces contiguous tensors (fp32 or fp64) by their sums over all ranks, with the same bits on every rank, as one
  /// operation: a step passes its flat gradients and its fp64 scalars. On a CPU, done on return; on a GPU, enqueued on
  /// the current stream.
  ///
  /// GPUs connect at the first collective of CUDA tensors. NCCL allocates device memory then, and more at the first
  /// collective of each kind and size class: make one all_reduce() of real size and one broadcast() before planning
  /// memory.
  virtual void all_reduce(std::span<const at::Tensor> tensors) = 0;
  /// Returns the bytes of rank 0 on every rank. Ignores `bytes` of the others.
  virtual std::string broadcast(const std::string& bytes) = 0;
  /// Overwrites contiguous tensors with those of rank 0.
  virtual void broadcast(std::span<const at::Tensor> tensors) = 0;
  /// Returns the texts of all ranks on every rank, in rank order. For short texts: each takes the space of the longest.
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;

  /// Sets the fp64 flag in device memory (kNonFinite of the step) that becomes 1 before collectives on GPUs are broken
  /// off, so that work enqueued after them updates nothing. No effect on a CPU.
  virtual void set_abort_flag(const at::Tensor& flag) = 0;
  /// Throws the PeerError of a rank that is known to have failed.
  virtual void throw_if_failed() = 0;

  /// A collective. From now on, ranks agree on stops as described above.
  virtual void begin_steps() = 0;
  /// Call it after the steps, or after the StopError of an agreed stop. From now on, collectives do not throw
  /// StopError, so that the training can be saved.
  virtual void end_steps() = 0;
  /// Tells the other ranks why this one fails. Returns false if another rank has failed earlier: its error is printed
  /// instead.
  virtual bool report(const ErrorReport& error) = 0;
  /// The last call of a rank that has not failed: returns the exit code of rank 0 once all ranks have called it.
  virtual int leave(int exit_code) = 0;
};

/// The communicator of a run with one process.
class OneRank : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  void all_reduce(std::span<const at::Tensor>) override {}
  std::string broadcast(const std::string& bytes) override { return bytes; }
  void broadcast(std::span<const at::Tensor>) override {}
  std::vector<std::string> all_gather(const std::string& text) override { return {text}; }
  void set_abort_flag(const at::Tensor&) override {}
  void throw_if_failed() override {}
  void begin_steps() override {}
  void end_steps() override {}
  bool report(const ErrorReport&) override { return true; }
  int leave(int exit_code) override { return exit_code; }
};

}  // namespace lora_train::ranks
