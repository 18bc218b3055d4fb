// Copies of tensors in host memory, for a background thread.
#pragma once

namespace at {
class Tensor;
}

namespace lora_train::kernels {

/// A copy in host memory. For a tensor of up to 8 GiB on a GPU, the memory is page-locked.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace lora_train::kernels
