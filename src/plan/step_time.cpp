#include "lora_train/plan/step_time.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "lora_train/base/ceil_div.h"
#include "lora_train/model/layer_shape.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/plan/run_spec.h"

namespace lora_train::plan {
namespace {

/// Planned reads and writes of a projection's adapters, in elements per token: x twice, dy of adapted linears once, and
/// dx once more (read and written) if several linears share it.
double lora_elements(const model::ProjectionShape& projection) {
  if (projection.adapters.empty()) return 0;
  std::int64_t elements = (projection.linears.size() > 1 ? 4 : 2) * projection.in_features;
  for (const auto& adapter : projection.adapters) {
    elements += projection.linears[static_cast<std::size_t>(adapter.linear)].out_features;
  }
  return static_cast<double>(elements);
}

double num_adapter_parameters(const model::ModelShape& shape) {
  std::int64_t count = 0;
  shape.for_each_projection([&](const model::ProjectionShape& projection) {
    for (const auto& adapter : projection.adapters) {
      const auto& linear = projection.linears[static_cast<std::size_t>(adapter.linear)];
      count += adapter.spec.rank * (projection.in_features + linear.out_features);
    }
  });
  return static_cast<double>(count);
}

double optimizer_bytes(const model::Trainables& trained, const optim::Optimizer& optimizer) {
  constexpr std::int64_t kPasses = 3;  // two over parameters, one over gradients
  std::int64_t bytes = kPasses * trained.size() * static_cast<std::int64_t>(sizeof(float));
  for (const optim::StateTensor& state : optimizer.state) {
    const std::int64_t once =
        state.num_elements(trained.blocks()) * static_cast<std::int64_t>(c10::elementSize(state.dtype));
    bytes += state.constant == nullptr ? 2 * once : once;
  }
  return static_cast<double>(bytes);
}

/// The average number of keys visible to a query, at most `window` (0: no limit), in documents of equal length.
double keys_in_window(double keys_per_query, std::int64_t window) {
  const double length = 2 * keys_per_query - 1, W = static_cast<double>(window);
  return window == 0 || W >= length ? keys_per_query : W - W * (W - 1) / (2 * length);
}

// Shares of the rate of bf16 products. Attention: as measured with FlashAttention 2 (docs/performance.md).
constexpr double kTf32Share = 0.5, kFp32Share = 1.0 / 14, kAttentionForwardShare = 0.377,
                 kAttentionBackwardShare = 0.368;

constexpr double kUsualGemmFlopsPerS = 500e12, kUsualCopyBytesPerS = 3e12;  // the median ratio of configs/gpus.json
constexpr double kMicroBatchOverheadS = 0.0005, kStepOverheadS = 0.002;     // launches, the update, the host
constexpr double kTileElements = 128 * 128;  // of a product, computed by a multiprocessor at a time
constexpr double kNormBytesAgain = 0.5, kGateBytesAgain = 3.0 / 8;  // share that recomputation writes once more

/// The extra work of recomputation, as shares of the layers with each mode.
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

/// Bytes read and written, per use, by the layers that are not kept decoded.
double decode_bytes(const RunFacts& facts, const RunSpec& spec) {
  if (facts.base.empty()) return 0;
  const std::int64_t element_bytes = facts.element_bytes();
  const model::ModelShape shape = model::model_shape(facts.config, facts.adapters, spec.columns);
  const auto stored = [&](std::int64_t decoded_layers) {
    return static_cast<double>(model::weight_bytes(facts.config, shape, element_bytes, facts.base, decoded_layers));
  };
  const double whole = stored(model::kAllLayers), packed = stored(0);
  const auto layers = static_cast<double>(facts.config.num_layers);
  const double left = 1 - std::min<double>(layers, static_cast<double>(spec.decoded_layers)) / layers;
  return left * (whole + packed);
}

/// Bytes moved per trained weight in addition to its update: the fp32 gradient is zeroed, summed into by each
/// micro-batch and read for the norm, and the weight is copied to the compute dtype.
double weight_gradient_bytes(double num_micro_batches, std::int64_t element_bytes) {
  constexpr double kFloat = sizeof(float);
  return kFloat + 2 * kFloat * num_micro_batches + kFloat + kFloat + static_cast<double>(element_bytes);
}

/// FLOPs lost to half a round of tiles at the end of each product of a micro-batch.
double lost_flops(const RunFacts& facts, const Recomputed& again) {
  double forward = 0, backward = 0, gate_up = 0;  // elements that products sum over
  model::model_shape(facts.config, facts.adapters).for_each_projection([&](const model::ProjectionShape& projection) {
    forward += static_cast<double>(projection.in_features);
    backward += static_cast<double>(projection.out_features);
    if (projection.linears.size() == 2) gate_up += static_cast<double>(projection.in_features);
  });
  return facts.num_multiprocessors * kTileElements *
         (forward * (1 + again.everything) + gate_up * again.gate_up + backward);
}

}  // namespace

RequiredFlops required_flops(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                             const StepLoad& load) {
  const model::ModelShape shape = model::model_shape(config, adapters);
  double weights = 0;
  shape.for_each_projection([&](const model::ProjectionShape& projection) {
    weights += static_cast<double>(projection.in_features * projection.out_features);
  });
  const auto head = static_cast<double>(config.hidden_size * config.vocab_size);
  const auto q = static_cast<double>(config.num_heads * config.head_dim);
  RequiredFlops flops;
  flops.linears = 4 * weights * load.tokens;
  flops.head = 4 * head * load.supervised;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.kind_of(layer) == model::LayerKind::kGatedDelta) {
      flops.gated_delta += 4 * static_cast<double>(kernels::gated_delta_flops(config.gated_delta)) * load.tokens;
      continue;
    }
    const std::int64_t window = config.layer_window[static_cast<std::size_t>(layer)];
    flops.attention += 3 * 4 * q * keys_in_window(load.keys_per_query, window) * load.tokens;
  }
  flops.lora = 6 * num_adapter_parameters(shape) * load.tokens;
  return flops;
}

PlannedBytes planned_bytes(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                           const StepLoad& load, int element_bytes, OptimizerKind optimizer) {
  constexpr double kNormPasses = 8;
  const auto L = static_cast<double>(config.num_layers), D = static_cast<double>(config.hidden_size);
  const auto F = static_cast<double>(config.intermediate_size), V = static_cast<double>(config.vocab_size);
  const auto qk = static_cast<double>((config.num_heads + config.num_kv_heads) * config.head_dim);
  const double token_bytes = load.tokens * element_bytes;
  const model::ModelShape shape = model::model_shape(config, adapters);
  PlannedBytes bytes;
  double num_norms = 1;  // the final one
  for (const auto& layer : shape.layers) {
    for (const auto& block : layer.blocks) num_norms += block.has_output_norm ? 2 : 1;
  }
  bytes.norm = num_norms * kNormPasses * D * token_bytes;
  // With q/k norm: one more write in the forward (raw values), one more read in the backward.
  const auto attention_layers = static_cast<double>(config.num_layers_of(model::LayerKind::kAttention));
  bytes.rope = attention_layers * (config.qk_norm ? 6 : 4) * qk * token_bytes;
  const double gates = config.has_attention_gate ? static_cast<double>(config.num_heads * config.head_dim) : 0;
  bytes.gated_activation = 8 * (L * F + attention_layers * gates) * token_bytes;
  const kernels::GatedDeltaSizes& delta = config.gated_delta;
  const auto qkv = static_cast<double>(delta.qkv_width()), values = static_cast<double>(delta.value_width());
  const auto states = 2 * sizeof(float) * static_cast<double>(delta.state_elements()) / kernels::kChunkTokens;
  bytes.gated_delta = (L - attention_layers) * ((10 * qkv + 10 * values) * token_bytes + states * load.tokens);
  shape.for_each_projection([&](const model::ProjectionShape& p) { bytes.lora += lora_elements(p) * token_bytes; });
  bytes.loss = 3 * V * load.supervised * element_bytes;
  const auto trained = adapters.empty() ? model::TrainedWeights::kAll : model::TrainedWeights::kNone;
  bytes.optimizer =
      optimizer_bytes(model::make_trainables(config, shape, trained, at::kMeta), optim::optimizer_for(optimizer));
  return bytes;
}

Rates rates_in(const Profile& profile, double gemm_flops_per_s, double copy_bytes_per_s) {
  const bool is_fp32 = profile.model.precision == Precision::kFp32;
  const double attention = is_fp32 ? gemm_flops_per_s * kFp32Share : gemm_flops_per_s;
  return {gemm_flops_per_s * (!is_fp32           ? 1
                              : profile.run.tf32 ? kTf32Share
                                                 : kFp32Share),
          copy_bytes_per_s, kAttentionForwardShare * attention, kAttentionBackwardShare * attention};
}

double least_step_s(const RunFacts& facts, const RunSpec& spec, const Rates& rates, const StepLoad& load) {
  const std::int64_t element_bytes = facts.element_bytes();
  const RequiredFlops flops = required_flops(facts.config, facts.adapters, load);
  const PlannedBytes bytes = planned_bytes(facts.config, facts.adapters, load, static_cast<int>(element_bytes),
                                           facts.profile.get().optimizer.kind);
  const Recomputed again = shares_of(spec.recompute);
  const double product_passes =  // forward and backward count as one each
      2 + again.everything + again.gate_up * gate_up_share(facts.config, facts.adapters);
  const bool trains_all = facts.adapters.empty();  // then weights have gradients too
  const double products =
      flops.linears * (product_passes / 2 + (trains_all ? 0.5 : 0)) + flops.head * (trains_all ? 1.5 : 1) + flops.lora;
  const model::ModelShape shape = model::model_shape(facts.config, facts.adapters, spec.columns);
  const auto micro_batches = static_cast<double>(load.num_micro_batches);
  const double weight_reads =
      micro_batches * product_passes * static_cast<double>(model::weight_bytes(facts.config, shape, element_bytes));
  const double products_s = std::max(products / rates.gemm_flops_per_s, weight_reads / rates.copy_bytes_per_s) +
                            micro_batches * lost_flops(facts, again) / rates.gemm_flops_per_s;
  // The rule's products are as small as attention's. No GPU has measured them.
  constexpr double kForwardOfRule = 1.0 / 4;
  const auto mixing_s = [&](double of_flops, double forward) {
    return of_flops * (forward * (1 + again.everything) / rates.attention_forward_flops_per_s +
                       (1 - forward) / rates.attention_backward_flops_per_s);
  };
  const double attention_s =
      mixing_s(flops.attention, kForwardOfAttention) + mixing_s(flops.gated_delta, kForwardOfRule);
  const double all_weights = trains_all ? static_cast<double>(model::num_parameters(facts.config)) : 0;
  const double moved = bytes.total() + all_weights * weight_gradient_bytes(micro_batches, element_bytes) +
                       again.elementwise * (kNormBytesAgain * bytes.norm + kGateBytesAgain * bytes.gated_activation) +
                       micro_batches * product_passes * decode_bytes(facts, spec);
  return products_s + attention_s + moved / rates.copy_bytes_per_s + micro_batches * kMicroBatchOverheadS +
         kStepOverheadS;
}

double token_s(const RunFacts& facts, const RunSpec& spec) {
  const std::int64_t rows =
      facts.rows_of_rank > 0 ? facts.rows_of_rank : ceil_div(spec.global_batch_size, facts.num_ranks);
  const auto tokens = static_cast<double>(rows * spec.max_seq_len);
  const StepLoad load{tokens, tokens, (static_cast<double>(spec.max_seq_len) + 1) / 2,
                      ceil_div(rows, spec.micro_batch_size)};
  return least_step_s(facts, spec, rates_in(facts.profile, kUsualGemmFlopsPerS, kUsualCopyBytesPerS), load) / tokens;
}

}  // namespace lora_train::plan
