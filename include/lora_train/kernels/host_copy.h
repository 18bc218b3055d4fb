// Copies of tensors for a thread of the host to work on.
#pragma once

namespace at {
class Tensor;
}

namespace lora_train::kernels {

/// A copy in host memory of its own. From a GPU it is page-locked, up to 8 GiB.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace lora_train::kernels
