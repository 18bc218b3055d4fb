#include "lora_train/plan/step_limits.h"

#include <c10/core/ScalarType.h>

#include "lora_train/model/layer_shape.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/optim/optimizer.h"

namespace lora_train::plan {
namespace {

/// Elements per token that the adapters of a projection are planned to read and write: x twice, dy of adapted linears once, and
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
  constexpr std::int64_t kPasses = 3;  // of parameters, two, and of gradients
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

}  // namespace

RequiredFlops required_flops(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                             const StepSizes& sizes) {
  const model::ModelShape shape = model::model_shape(config, adapters);
  double weights = 0;
  shape.for_each_projection([&](const model::ProjectionShape& projection) {
    weights += static_cast<double>(projection.in_features * projection.out_features);
  });
  const auto tokens = static_cast<double>(sizes.tokens);
  const auto head = static_cast<double>(config.hidden_size * config.vocab_size);
  const auto q = static_cast<double>(config.num_heads * config.head_dim);
  RequiredFlops flops;
  flops.linears = 4 * weights * tokens;
  flops.head = 4 * head * static_cast<double>(sizes.supervised);
  for (const std::int64_t window : config.layer_window) {
    flops.attention += 3 * 4 * q * keys_in_window(sizes.keys_per_query, window) * tokens;
  }
  flops.lora = 6 * num_adapter_parameters(shape) * tokens;
  return flops;
}

PlannedBytes planned_bytes(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                           const StepSizes& sizes, int element_bytes, OptimizerKind optimizer) {
  constexpr double kNormPasses = 8;
  const auto L = static_cast<double>(config.num_layers), D = static_cast<double>(config.hidden_size);
  const auto F = static_cast<double>(config.intermediate_size), V = static_cast<double>(config.vocab_size);
  const auto qk = static_cast<double>((config.num_heads + config.num_kv_heads) * config.head_dim);
  const double token_bytes = static_cast<double>(sizes.tokens) * element_bytes;
  const model::ModelShape shape = model::model_shape(config, adapters);
  PlannedBytes bytes;
  double num_norms = 1;  // the final one
  for (const auto& layer : shape.layers) {
    for (const auto& block : layer.blocks) num_norms += block.has_output_norm ? 2 : 1;
  }
  bytes.norm = num_norms * kNormPasses * D * token_bytes;
  // With q/k norm: one more write in the forward (raw values), one more read in the backward.
  bytes.rope = L * (config.qk_norm ? 6 : 4) * qk * token_bytes;
  bytes.gated_activation = L * 8 * F * token_bytes;
  shape.for_each_projection([&](const model::ProjectionShape& p) { bytes.lora += lora_elements(p) * token_bytes; });
  bytes.loss = 3 * V * static_cast<double>(sizes.supervised) * element_bytes;
  const auto trained = adapters.empty() ? model::TrainedWeights::kAll : model::TrainedWeights::kNone;
  bytes.optimizer =
      optimizer_bytes(model::make_trainables(config, shape, trained, at::kMeta), optim::optimizer_for(optimizer));
  return bytes;
}

}  // namespace lora_train::plan
