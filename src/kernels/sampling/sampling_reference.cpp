#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/kernels/sampling/sampling.h"

namespace lora_train::kernels {

void sample_tokens_reference(const at::Tensor& logits, const SamplingFilter& filter, const at::Tensor& keys,
                             const at::Tensor& positions, at::Tensor& chosen) {
  const at::Tensor rows = logits.to(at::kCPU).contiguous(), all_keys = keys.to(at::kCPU), all = positions.to(at::kCPU);
  const auto V = static_cast<std::size_t>(logits.size(1));
  at::Tensor ids = at::empty(chosen.sizes(), at::kInt);
  for (std::int64_t b = 0; b < logits.size(0); ++b) {
    const std::span<const float> row(rows.const_data_ptr<float>() + static_cast<std::size_t>(b) * V, V);
    const auto bits = static_cast<std::uint64_t>(all_keys.const_data_ptr<std::int64_t>()[b]);
    const PhiloxKey key{static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
    bool is_finite = true;
    for (const float logit : row) is_finite = is_finite && std::isfinite(logit);
    const double draw = sampling_draw(key, all.const_data_ptr<std::int64_t>()[b]);
    ids.mutable_data_ptr<std::int32_t>()[b] = is_finite ? sample_token(row, filter, draw) : -1;
  }
  chosen.copy_(ids);
}

}  // namespace lora_train::kernels
