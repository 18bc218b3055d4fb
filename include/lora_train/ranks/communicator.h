// The ranks of a run: collectives, and what they agree on.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train::ranks {

/// Every rank must make the same collectives (all_reduce to barrier), in the same order, with tensors of the same sizes and dtypes.
/// Used by one thread.
///
/// With several ranks, a stop request of any rank stops all (base/stop_request.h, where requests are deferred). Before begin_steps(),
/// at once. After it, all at the same place: some have entered a collective that others have not, so all go on to the last that any
/// has entered; from then on, throw_if_stop_requested() and the next collective throw StopError.
///
/// Collectives, and from then on throw_if_stop_requested(), throw PeerError once another rank has failed (report()), has ended
/// without a word, or has stopped answering: at most 2 s after a death on this host, 15 s on another one, and 60 s after SIGSTOP.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Replaces contiguous tensors (fp32 or fp64) by their sums over all ranks, the same bits on every rank, as one operation:
  /// a step passes its flat gradients and its fp64 scalars. Done on return on a CPU, enqueued on the current stream on a GPU.
  ///
  /// GPUs connect at the first collective of CUDA tensors. NCCL allocates device memory then, and some more at the first of each
  /// kind and size class: make one all_reduce() of real size, and one broadcast(), before memory is planned.
  virtual void all_reduce(std::span<const at::Tensor> tensors) = 0;
  /// The bytes of rank 0, on every rank. `bytes` of the others is not looked at.
  virtual std::string broadcast(const std::string& bytes) = 0;
  /// Overwrites contiguous tensors with those of rank 0.
  virtual void broadcast(std::span<const at::Tensor> tensors) = 0;
  /// The texts of all ranks, on every rank, in the order of ranks. For short ones: each takes the room of the longest.
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;

  /// The fp64 number in device memory that becomes 1 before collectives on GPUs are broken off, so that what is enqueued behind
  /// them updates nothing: kNonFinite of the step. On a CPU, nothing.
  virtual void set_abort_flag(const at::Tensor& flag) = 0;
  /// Throws the PeerError of a rank that is known to have failed; else returns.
  virtual void throw_if_failed() = 0;

  /// A collective. From here on, stops are agreed on as described above.
  virtual void begin_steps() = 0;
  /// After the steps, or after the StopError of an agreed stop: from here on, collectives throw no StopError, so that what was
  /// trained can be saved.
  virtual void end_steps() = 0;
  /// Tells the other ranks why this one fails. False if another rank has failed before: that one is printed.
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
