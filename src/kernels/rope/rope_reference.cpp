#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "lora_train/kernels/rope.h"

namespace lora_train::kernels {

void rope_in_place_reference(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse) {
  const auto cos = table.cos.index_select(0, positions).unsqueeze(1);
  auto sin = table.sin.index_select(0, positions).unsqueeze(1);
  if (inverse) {
    sin = -sin;
  }
  const auto halves = to_math(x).chunk(2, -1);
  const auto first = halves[0] * cos - halves[1] * sin;
  const auto second = halves[1] * cos + halves[0] * sin;
  x.copy_(at::cat({first, second}, -1));
}

}  // namespace lora_train::kernels
