#include "lora_train/kernels/sampling/sampling.h"

#include "dispatch/checks.h"
#include "dispatch/native_arguments.h"
#include "lora_train/kernels/accounting/work_record.h"

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

}  // namespace lora_train::kernels
