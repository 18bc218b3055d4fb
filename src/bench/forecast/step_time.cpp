#include "step_time.h"

#include <cmath>

#include "lora_train/base/error.h"
#include "rates_file.h"

namespace lora_train::bench {

BenchRates rates_of(const device::GpuFacts& gpu, const Profile& profile) {
  const std::string precision = to_string(profile.model.precision);
  if (profile.model.precision != Precision::kFp32 || gpu.is_cpu) {
    const BenchRates found = find_rates({}, gpu.device_name, precision);
    if (!found.is_assumed()) return found;
  }
  if (gpu.is_cpu) {
    throw ConfigError("--gpu cpu",
                      "the rates of this CPU in " + precision +
                          " are not known; measure them once with: lora-train bench --measure-rates "
                          "--shape qwen2.5-0.5b device=cpu max_seq_len=2048 micro_batch_size=1 precision=" +
                          precision);
  }
  BenchRates rates{plan::rates_in(profile, gpu.gemm_tflops * 1e12, gpu.bandwidth_gb_s * 1e9)};
  rates.gpu = gpu.device_name;
  return rates;
}

double all_reduce_s(const device::GpuFacts& gpu, int num_gpus, std::int64_t num_parameters) {
  if (num_gpus == 1) return 0;
  const double moved = 2.0 * (num_gpus - 1) / num_gpus * static_cast<double>(num_parameters) * sizeof(float);
  return moved / (gpu.link_gb_s * 1e9);
}

double least_evaluation_s(const plan::RunFacts& facts, const BenchRates& rates, const plan::RankLoad& load) {
  const plan::StepSizes sizes{std::llround(load.tokens), std::llround(load.supervised), load.keys_per_query};
  const plan::RequiredFlops flops = plan::required_flops(facts.config, facts.adapters, sizes);
  return (flops.linears + flops.head + flops.lora) / 2 / rates.gemm_flops_per_s +
         plan::kForwardOfAttention * flops.attention / rates.attention_forward_flops_per_s;
}

}  // namespace lora_train::bench
