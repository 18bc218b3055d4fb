#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "lora_train/kernels/cast.h"

namespace lora_train::kernels {

void scaled_copy_reference(const at::Tensor& from, double scale, at::Tensor& to) {
  to.copy_(scale == 1.0 ? from : (to_math(from) * scale).to(to.scalar_type()));
}

}  // namespace lora_train::kernels
