#include "step_time.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/bench/rates_file.h"
#include "lora_train/bench/step_limits.h"
#include "lora_train/model/base_weights.h"

namespace lora_train::forecast {
namespace {

// Of the rate of bf16 products. Attention: as measured beside products with FlashAttention 2 (docs/performance.md).
constexpr double kTf32Share = 0.5, kFp32Share = 1.0 / 14, kAttentionForwardShare = 0.377,
                 kAttentionBackwardShare = 0.368;
constexpr double kMicroBatchOverheadS = 0.0005, kStepOverheadS = 0.002;  // launches, the update, the host
constexpr double kForwardOfStep = 1.0 / 3;                               // of attention's FLOPs
constexpr double kNormBytesAgain = 0.5, kGateBytesAgain = 3.0 / 8;       // of what recomputation writes once more

/// What recomputation adds, as shares of the layers with each mode.
struct Recomputed {
  double everything = 0, gate_up = 0, elementwise = 0;
};

Recomputed shares_of(const std::vector<model::Recompute>& modes) {
  Recomputed shares;
  for (const model::Recompute mode : modes) {
    if (mode == model::Recompute::kFull) ++shares.everything;
    if (mode == model::Recompute::kGateUp) ++shares.gate_up;
    if (mode != model::Recompute::kOff) ++shares.elementwise;
  }
  const auto count = static_cast<double>(std::max<std::size_t>(1, modes.size()));
  return {shares.everything / count, shares.gate_up / count, shares.elementwise / count};
}

double gate_up_share(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters) {
  double all = 0, gate_up = 0;
  model::model_shape(config, adapters).for_each_projection([&](const model::ProjectionShape& projection) {
    const auto weights = static_cast<double>(projection.in_features * projection.out_features);
    all += weights;
    if (projection.linears.size() == 2) gate_up += weights;
  });
  return all > 0 ? gate_up / all : 0;
}

/// Bytes that the layers which are not decoded once read and write, each time they are used.
double decode_bytes(const planner::RunFacts& facts, const planner::RunSpec& spec) {
  if (facts.base.empty()) return 0;
  const std::int64_t element_bytes = runtime::compute_bytes(facts.profile.model.precision);
  const model::ModelShape shape = model::model_shape(facts.config, facts.adapters, spec.columns);
  const auto stored = [&](std::int64_t decoded_layers) {
    return static_cast<double>(model::weight_bytes(facts.config, shape, element_bytes, facts.base, decoded_layers));
  };
  const double whole = stored(model::kAllLayers), packed = stored(0);
  const auto layers = static_cast<double>(facts.config.num_layers);
  const double left = 1 - std::min<double>(layers, static_cast<double>(spec.decoded_layers)) / layers;
  return left * (whole + packed);
}

/// Bytes of a trained weight beside its update: the fp32 gradient is zeroed, summed into by each micro-batch and read for the norm,
/// and the weight is copied to the compute dtype.
double weight_gradient_bytes(double num_micro_batches, std::int64_t element_bytes) {
  constexpr double kFloat = sizeof(float);
  return kFloat + 2 * kFloat * num_micro_batches + kFloat + kFloat + static_cast<double>(element_bytes);
}

}  // namespace

bench::BenchRates rates_of(const device::GpuFacts& gpu, const Profile& profile) {
  const std::string precision = to_string(profile.model.precision);
  const bool is_fp32 = profile.model.precision == Precision::kFp32;
  if (!is_fp32 || gpu.is_cpu) {
    const bench::BenchRates found = bench::find_rates({}, gpu.device_name, precision);
    if (!found.is_assumed()) return found;
  }
  if (gpu.is_cpu) {
    throw ConfigError("--gpu cpu",
                      "the rates of this CPU in " + precision +
                          " are not known; measure them once with: lora-train bench --measure-rates "
                          "--shape qwen2.5-0.5b device=cpu max_seq_len=2048 micro_batch_size=1 precision=" +
                          precision);
  }
  const double gemm = gpu.gemm_tflops * 1e12;
  bench::BenchRates rates;
  rates.gpu = gpu.device_name;
  rates.gemm_flops_per_s = gemm * (!is_fp32 ? 1 : profile.run.tf32 ? kTf32Share : kFp32Share);
  rates.copy_bytes_per_s = gpu.bandwidth_gb_s * 1e9;
  rates.attention_forward_flops_per_s = kAttentionForwardShare * (is_fp32 ? gemm * kFp32Share : gemm);
  rates.attention_backward_flops_per_s = kAttentionBackwardShare * (is_fp32 ? gemm * kFp32Share : gemm);
  return rates;
}

double least_step_s(const planner::RunFacts& facts, const planner::RunSpec& spec, const bench::BenchRates& rates,
                    const RankLoad& load) {
  const std::int64_t element_bytes = runtime::compute_bytes(facts.profile.model.precision);
  const bench::StepSizes sizes{std::llround(load.tokens), std::llround(load.supervised), load.keys_per_query};
  const bench::RequiredFlops flops = bench::required_flops(facts.config, facts.adapters, sizes);
  const bench::PlannedBytes bytes = bench::planned_bytes(facts.config, facts.adapters, sizes,
                                                         static_cast<int>(element_bytes), facts.profile.optimizer.kind);
  const Recomputed again = shares_of(spec.recompute);
  const double product_passes =  // of forward and backward, which are one each
      2 + again.everything + again.gate_up * gate_up_share(facts.config, facts.adapters);
  const bool trains_all = facts.adapters.empty();  // then there are the gradients of weights as well
  const double products =
      flops.linears * (product_passes / 2 + (trains_all ? 0.5 : 0)) + flops.head * (trains_all ? 1.5 : 1) + flops.lora;
  const model::ModelShape shape = model::model_shape(facts.config, facts.adapters, spec.columns);
  const auto micro_batches = static_cast<double>(load.num_micro_batches);
  const double weight_reads =
      micro_batches * product_passes * static_cast<double>(model::weight_bytes(facts.config, shape, element_bytes));
  const double products_s = std::max(products / rates.gemm_flops_per_s, weight_reads / rates.copy_bytes_per_s);
  const double attention_s =
      flops.attention * (kForwardOfStep * (1 + again.everything) / rates.attention_forward_flops_per_s +
                         (1 - kForwardOfStep) / rates.attention_backward_flops_per_s);
  const double all_weights = trains_all ? static_cast<double>(model::num_parameters(facts.config)) : 0;
  const double moved = bytes.total() + all_weights * weight_gradient_bytes(micro_batches, element_bytes) +
                       again.elementwise * (kNormBytesAgain * bytes.norm + kGateBytesAgain * bytes.gated_activation) +
                       micro_batches * product_passes * decode_bytes(facts, spec);
  return products_s + attention_s + moved / rates.copy_bytes_per_s + micro_batches * kMicroBatchOverheadS +
         kStepOverheadS;
}

double all_reduce_s(const device::GpuFacts& gpu, int num_gpus, std::int64_t num_parameters) {
  if (num_gpus == 1) return 0;
  const double moved = 2.0 * (num_gpus - 1) / num_gpus * static_cast<double>(num_parameters) * sizeof(float);
  return moved / (gpu.link_gb_s * 1e9);
}

double least_evaluation_s(const planner::RunFacts& facts, const bench::BenchRates& rates, const RankLoad& load) {
  const bench::StepSizes sizes{std::llround(load.tokens), std::llround(load.supervised), load.keys_per_query};
  const bench::RequiredFlops flops = bench::required_flops(facts.config, facts.adapters, sizes);
  return (flops.linears + flops.head + flops.lora) / 2 / rates.gemm_flops_per_s +
         kForwardOfStep * flops.attention / rates.attention_forward_flops_per_s;
}

}  // namespace lora_train::forecast
