// Copies of tensors for a thread of the host to work on.
#pragma once

namespace at {
class Tensor;
}

namespace lora_train::kernels {

/// A copy in host memory, page-locked up to 8 GiB when it comes from a GPU.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace lora_train::kernels
