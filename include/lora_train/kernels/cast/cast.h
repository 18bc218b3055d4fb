// Scaled copies between dtypes, which write adapters and weights from their fp32 masters; copies from the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lora_train/kernels/dispatch/segment_table.h"

namespace lora_train::kernels {

/// A batch of copies that can run repeatedly: to = from * scale, multiplied in fp32 (fp64 for fp64) and then rounded to
/// the dtype of `to`. The tensors stay where they are in memory.
class ScaledCopies {
 public:
  /// from and to [R, C] or [C], each fp32, bf16 or fp64; rows may be strided. They must not overlap.
  void add(const at::Tensor& from, double scale, const at::Tensor& to);
  /// On CUDA, takes one launch if all copies are from fp32 to one dtype, fp32 or bf16; the first run uploads a table.
  void run();

 private:
  struct Copy {
    at::Tensor from;
    double scale;
    at::Tensor to;
  };
  void make_table();

  std::vector<Copy> copies_;
  SegmentTable table_;  ///< holds CopySegments
};

/// One copy.
void scaled_copy(const at::Tensor& from, double scale, at::Tensor& to);

void scaled_copy_reference(const at::Tensor& from, double scale, at::Tensor& to);

/// A copy in host memory. For a tensor of up to 8 GiB on a GPU, the memory is page-locked.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace lora_train::kernels
