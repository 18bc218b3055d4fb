#include "lora_train/kernels/sampling/sampling.h"

#include <cmath>

#include "dispatch/arguments.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {

void sample_tokens(const at::Tensor& logits, const SamplingFilter& filter, const at::Tensor& keys,
                   const at::Tensor& positions, at::Tensor& chosen) {
  constexpr auto kName = "sample_tokens";
  check_rows(kName, "logits", logits, {-1, -1}, at::kFloat);
  const std::int64_t B = logits.size(0);
  check_vector(kName, "keys", keys, B, at::kLong);
  check_vector(kName, "positions", positions, B, at::kLong);
  check_vector(kName, "chosen", chosen, B, at::kInt);
  if (!samples_on_device(logits)) return sample_tokens_reference(logits, filter, keys, positions, chosen);
  native_kernels().sample_tokens(read_rows<float>(logits), B, logits.size(1), filter, read<std::int64_t>(keys),
                                 read<std::int64_t>(positions), write<std::int32_t>(chosen), native_stream());
}

bool samples_on_device(const at::Tensor& logits) { return has_native_kernel(KernelName::kCrossEntropy, logits); }

void sample_tokens_reference(const at::Tensor& logits, const SamplingFilter& filter, const at::Tensor& keys,
                             const at::Tensor& positions, at::Tensor& chosen) {
  const at::Tensor rows = logits.to(at::kCPU).contiguous(), all_keys = keys.to(at::kCPU), all = positions.to(at::kCPU);
  const auto V = static_cast<std::size_t>(logits.size(1));
  at::Tensor ids = at::empty(chosen.sizes(), at::kInt);
  for (std::int64_t b = 0; b < logits.size(0); ++b) {
    const std::span<const float> row(rows.const_data_ptr<float>() + static_cast<std::size_t>(b) * V, V);
    const PhiloxKey key = unpacked_key(all_keys.const_data_ptr<std::int64_t>()[b]);
    bool is_finite = true;
    for (const float logit : row) is_finite = is_finite && std::isfinite(logit);
    const double draw = sampling_draw(key, all.const_data_ptr<std::int64_t>()[b]);
    ids.mutable_data_ptr<std::int32_t>()[b] = is_finite ? sample_token(row, filter, draw) : -1;
  }
  chosen.copy_(ids);
}

}  // namespace lora_train::kernels
