// Adds up what kernels say of their calls (kernels/work_record.h), and finds what LibTorch is asked to do beside them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/kernels/work_record.h"

namespace lora_train::bench {

struct WorkTotals {
  std::int64_t calls = 0, launches = 0, bytes_read = 0, bytes_written = 0, flops = 0;

  std::int64_t bytes() const { return bytes_read + bytes_written; }
  void add(const kernels::Work& work);
};

/// All reads or writes of one buffer by one kernel.
struct ActivationPass {
  std::string kernel, operand, buffer;
  std::int64_t times = 0, bytes_read = 0, bytes_written = 0;
};

/// Installs itself as the recorder while it lives; operations of LibTorch outside of kernels are counted as class copy,
/// under their own names ("aten::zero_"), views and empty buffers left out. For meta and CPU tensors: what it does takes
/// longer than a step of a GPU.
class WorkCounter : public kernels::WorkRecorder {
 public:
  WorkCounter();
  ~WorkCounter() override;
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  /// Names the memory of a tensor, so that passes over it are told apart.
  void name_buffer(const at::Tensor& tensor, const std::string& name);

  void begin(const kernels::Work&) override { is_inside_ = true; }
  void end(const kernels::Work& work) override;
  bool is_inside_kernel() const { return is_inside_; }
  void add(const kernels::Work& work);

  const WorkTotals& of_class(kernels::WorkClass work_class) const {
    return classes_[static_cast<std::size_t>(work_class)];
  }
  /// By class and name: "gemm gemm", "copy aten::zero_".
  const std::map<std::string, WorkTotals>& kernels() const { return kernels_; }
  WorkTotals total() const;
  /// Bytes that products read of a residual, which their epilogue adds.
  std::int64_t residual_bytes() const { return residual_bytes_; }
  /// Passes over activations, in the order of their first occurrence, that move at least min_bytes a time.
  std::vector<ActivationPass> passes(std::int64_t min_bytes) const;

 private:
  struct Listener;
  std::string buffer_of(const kernels::WorkOperand& operand) const;

  std::array<WorkTotals, kernels::kWorkClassNames.size()> classes_{};
  std::map<std::string, WorkTotals> kernels_;
  std::map<const void*, std::string> buffers_;
  std::vector<ActivationPass> passes_;
  std::vector<at::Tensor> named_;  ///< keeps their memory, so that no other has its address
  std::int64_t residual_bytes_ = 0;
  bool is_inside_ = false;
  std::unique_ptr<Listener> listener_;
};

}  // namespace lora_train::bench
