#include "maps.h"

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "lora_train/kernels/quantized_weight/dynamic_map.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"

namespace lora_train::kernels {

at::Tensor nf4_map() {
  return at::tensor({-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F, -0.28444138169288635F,
                     -0.18477343022823334F, -0.09105003625154495F, 0.0F, 0.07958029955625534F, 0.16093020141124725F,
                     0.24611230194568634F, 0.33791524171829224F, 0.44070982933044434F, 0.5626170039176941F,
                     0.7229568362236023F, 1.0F},
                    at::kFloat);
}

at::Tensor fp4_map() {
  constexpr std::array<float, 8> kTwelfths = {0, 0.0625F, 8, 12, 4, 6, 2, 3};
  std::vector<float> values;
  for (const float sign : {1.0F, -1.0F}) {
    for (const float twelfths : kTwelfths) values.push_back(twelfths == 0 ? 0.0F : sign * twelfths / 12.0F);
  }
  return at::tensor(values, at::kFloat);
}

at::Tensor dynamic_map(bool is_signed) {
  const DynamicMap& map = is_signed ? kSignedMap : kUnsignedMap;
  return at::tensor(at::ArrayRef<float>(map.values), at::kFloat);
}

at::Tensor thresholds_of(WeightCode code) {
  if (code == WeightCode::kFp4) {
    return at::tensor({0.00260417F, 0.0859375F, 0.20833333F, 0.29166667F, 0.4166667F, 0.583333F, 0.8333333F},
                      at::kFloat);
  }
  const at::Tensor map = nf4_map();
  return (map.narrow(0, 0, 15) + map.narrow(0, 1, 15)) * 0.5;
}

at::Tensor fp4_codes_by_magnitude() { return at::tensor({0, 1, 6, 7, 4, 5, 2, 3}, at::kLong); }

}  // namespace lora_train::kernels
