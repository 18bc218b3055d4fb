#include "lora_train/kernels/cast/host_copy.h"

#include <ATen/ATen.h>

namespace lora_train::kernels {

at::Tensor host_copy(const at::Tensor& tensor) {
  constexpr std::size_t kMaxPinnedBytes = std::size_t{8} << 30;  // page-locked memory is rounded up to a power of two
  const bool is_pinned = tensor.is_cuda() && tensor.nbytes() <= kMaxPinnedBytes;
  const auto options = at::TensorOptions(tensor.scalar_type()).pinned_memory(is_pinned);
  return at::empty(tensor.sizes(), options).copy_(tensor);
}

}  // namespace lora_train::kernels
