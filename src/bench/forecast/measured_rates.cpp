#include "measured_rates.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "rates_file.h"

namespace lora_train::bench {
namespace {

constexpr double kMarginOfOneRun = 0.15, kLeastMargin = 0.05;

double median(const std::vector<double>& sorted) {
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

}  // namespace

void Calibrations::add(const std::string& gpu, Precision precision, double ratio) {
  std::vector<double>& ratios = ratios_[{gpu, precision}];
  ratios.insert(std::ranges::upper_bound(ratios, ratio), ratio);
  const double middle = median(ratios);
  const double margin = ratios.size() == 1 ? kMarginOfOneRun : kLeastMargin;
  calibrations_[{gpu, precision}] = {middle, std::min(ratios.front(), (1 - margin) * middle),
                                     std::max(ratios.back(), (1 + margin) * middle), static_cast<int>(ratios.size())};
}

const Calibration* Calibrations::find(const std::string& gpu, Precision precision) const {
  const auto found = calibrations_.find({gpu, precision});
  return found == calibrations_.end() ? nullptr : &found->second;
}

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
