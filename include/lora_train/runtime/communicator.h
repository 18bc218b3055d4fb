// Sums over the ranks of a run.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace lora_train::runtime {

/// Every rank must make the same calls, in the same order, with tensors of the same sizes.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Replaces the tensors by their sums over all ranks, as one operation, enqueued on the current stream.
  virtual void sum(std::span<const at::Tensor> tensors) = 0;
};

/// The communicator of a run with one process: there is nothing to sum.
class OneRank : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  void sum(std::span<const at::Tensor>) override {}
};

}  // namespace lora_train::runtime
