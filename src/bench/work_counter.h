// Adds up the work that kernels report (kernels/accounting/work_record.h), and counts the other operations of LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/bench/bench_request.h"
#include "lora_train/kernels/accounting/work_record.h"

namespace lora_train::bench {

/// Is the work recorder while it lives. Counts LibTorch operations outside of kernels as class copy, under their own names
/// ("aten::zero_"), except views and empty buffers. For meta and CPU tensors only: it would slow down a step on a GPU.
class WorkCounter : public kernels::WorkRecorder {
 public:
  WorkCounter();
  ~WorkCounter() override;
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  /// Names the memory of a tensor, so that passes over it can be told apart.
  void name_buffer(const at::Tensor& tensor, const std::string& name);

  /// Forgets what was counted, but not the names.
  void reset() {
    classes_ = {};
    kernels_.clear();
    passes_.clear();
    residual_bytes_ = 0;
  }

  void begin(const kernels::Work&) override { is_inside_ = true; }
  void end(const kernels::Work& work) override;
  bool is_inside_kernel() const { return is_inside_; }
  void add(const kernels::Work& work);

  const BenchWork& of_class(kernels::WorkClass work_class) const {
    return classes_[static_cast<std::size_t>(work_class)];
  }
  /// By class and name: "gemm gemm", "copy aten::zero_".
  const std::map<std::string, BenchWork>& kernels() const { return kernels_; }
  /// Bytes of residuals that GEMMs read, to add them in their epilogue.
  std::int64_t residual_bytes() const { return residual_bytes_; }
  /// Passes over activations that move at least min_bytes each, in the order of their first occurrence.
  std::vector<BenchPass> passes(std::int64_t min_bytes) const;

 private:
  struct Listener;
  std::string buffer_of(const kernels::WorkOperand& operand) const;

  std::array<BenchWork, kernels::kWorkClassNames.size()> classes_{};
  std::map<std::string, BenchWork> kernels_;
  std::map<const void*, std::string> buffers_;
  std::vector<BenchPass> passes_;
  std::vector<at::Tensor> named_;  ///< keeps their memory alive, so that no other tensor gets its address
  std::int64_t residual_bytes_ = 0;
  bool is_inside_ = false;
  std::unique_ptr<Listener> listener_;
};

}  // namespace lora_train::bench
