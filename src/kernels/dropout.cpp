#include "lora_train/kernels/dropout.h"

#include "checks.h"
#include "lora_train/base/error.h"

namespace lora_train::kernels {

void dropout_forward(const at::Tensor& x, const at::Tensor& token_document, const at::Tensor& token_position,
                     PhiloxKey key, double p, at::Tensor& y) {
  constexpr auto kName = "dropout_forward";
  check_rows(kName, "x", x, {-1, -1});
  check_floating(kName, "x", x);
  check_rows(kName, "y", y, x.sizes());
  check_dtype(kName, "y", y, x.scalar_type());
  for (const auto* t : {&token_document, &token_position}) {
    check_shape(kName, "token_document, token_position", *t, {x.size(0)});
    check_contiguous(kName, "token_document, token_position", *t);
    check_dtype(kName, "token_document, token_position", *t, at::kInt);
  }
  if (!(p >= 0 && p < 1)) {
    throw ShapeError("dropout_forward: p", "is " + std::to_string(p) + ", expected [0, 1)");
  }
  dropout_forward_reference(x, token_document, token_position, key, p, y);
}

}  // namespace lora_train::kernels
