#include "maps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "lora_train/kernels/quantized_weight.h"

namespace lora_train::kernels {
namespace {

/// torch.linspace(0.1, 1, count) in fp32, as ATen's vectorised kernel rounds it.
std::vector<float> linspace(int count) {
  const float first = 0.1F, step = (1.0F - first) / static_cast<float>(count - 1);
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    const int from_end = count - 1 - i;
    values.push_back(i < count / 2 ? std::fma(step, static_cast<float>(i), first)
                                   : std::fma(-step, static_cast<float>(from_end), 1.0F));
  }
  return values;
}

}  // namespace

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
  // Seven decades below 1, each with twice the values of the one before; a value is the middle of two neighbours of a linspace.
  constexpr int kDecades = 7;
  std::vector<float> values = {0, 1};
  for (int decade = 0; decade < kDecades; ++decade) {
    const std::vector<float> bounds = linspace((is_signed ? 1 << decade : 2 << decade) + 1);
    const auto unit = static_cast<float>(std::pow(10.0, decade - (kDecades - 1)));
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      const float value = unit * ((bounds[i] + bounds[i + 1]) / 2);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return at::tensor(values, at::kFloat);
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

at::Tensor thresholds_to_even(const at::Tensor& map) {
  const at::Tensor middle = (map.narrow(0, 0, 255) + map.narrow(0, 1, 255)) * 0.5;
  // at::bucketize gives a threshold itself to the lower side: below an odd code, the next smaller number is the threshold.
  const at::Tensor is_odd = at::arange(255, map.device()).remainder(2) == 1;
  return at::where(is_odd, at::nextafter(middle, at::full_like(middle, -2.0)), middle);
}

}  // namespace lora_train::kernels
