#include "step_limits.h"

namespace lora_train::train {
namespace {

struct Linear {
  std::int64_t in = 0, out = 0;
};

Linear linear_of(const model::ModelConfig& c, model::LinearSlot slot) {
  const std::int64_t D = c.hidden_size, q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  switch (slot) {
    case model::LinearSlot::kQ: return {D, q};
    case model::LinearSlot::kK:
    case model::LinearSlot::kV: return {D, kv};
    case model::LinearSlot::kO: return {q, D};
    case model::LinearSlot::kGate:
    case model::LinearSlot::kUp: return {D, c.intermediate_size};
    case model::LinearSlot::kDown: return {c.intermediate_size, D};
  }
  return {};
}

/// Linears that share their input, in slots [first, last].
struct Joined {
  model::LinearSlot first, last;
  bool adds_to_input_gradient;  ///< dx += dS A after the product with dy
};
constexpr Joined kJoined[] = {{model::LinearSlot::kQ, model::LinearSlot::kV, true},
                              {model::LinearSlot::kO, model::LinearSlot::kO, false},
                              {model::LinearSlot::kGate, model::LinearSlot::kUp, true},
                              {model::LinearSlot::kDown, model::LinearSlot::kDown, false}};

/// Elements a token that the adapters of one layer read and write.
double lora_elements(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters, std::int64_t layer) {
  double elements = 0;
  for (const Joined& joined : kJoined) {
    std::int64_t in = 0, out = 0;
    for (const auto& adapter : adapters) {
      if (adapter.layer != layer || adapter.slot < joined.first || adapter.slot > joined.last) continue;
      in = linear_of(config, adapter.slot).in;
      out += linear_of(config, adapter.slot).out;
    }
    elements += static_cast<double>(2 * in + out + (joined.adds_to_input_gradient ? 2 * in : 0));
  }
  return elements;
}

double num_adapter_parameters(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters) {
  double count = 0;
  for (const auto& adapter : adapters) {
    const Linear linear = linear_of(config, adapter.slot);
    count += static_cast<double>(adapter.rank * (linear.in + linear.out));
  }
  return count;
}

}  // namespace

RequiredFlops required_flops(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                             const StepSizes& sizes) {
  double weights = 0;
  for (int slot = 0; slot < model::kNumLinearSlots; ++slot) {
    const Linear linear = linear_of(config, static_cast<model::LinearSlot>(slot));
    weights += static_cast<double>(linear.in * linear.out);
  }
  const auto L = static_cast<double>(config.num_layers), tokens = static_cast<double>(sizes.tokens);
  const auto head = static_cast<double>(config.hidden_size * config.vocab_size);
  const auto q = static_cast<double>(config.num_heads * config.head_dim);
  RequiredFlops flops;
  flops.linears = 4 * weights * L * tokens;
  flops.head = 4 * head * static_cast<double>(sizes.supervised);
  flops.attention = 3 * 4 * q * sizes.keys_per_query * L * tokens;
  flops.lora = 6 * num_adapter_parameters(config, adapters) * tokens;
  return flops;
}

PlannedBytes planned_bytes(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                           const StepSizes& sizes, int element_bytes) {
  constexpr double kNormPasses = 8, kFloatBytes = 4;
  const auto L = static_cast<double>(config.num_layers), D = static_cast<double>(config.hidden_size);
  const auto F = static_cast<double>(config.intermediate_size), V = static_cast<double>(config.vocab_size);
  const auto qk = static_cast<double>((config.num_heads + config.num_kv_heads) * config.head_dim);
  const double token_bytes = static_cast<double>(sizes.tokens) * element_bytes;
  PlannedBytes bytes;
  bytes.norm = (2 * L + 1) * kNormPasses * D * token_bytes;
  // With a norm of q and k: another write forward (raw), another read backward.
  bytes.rope = L * (config.qk_norm ? 6 : 4) * qk * token_bytes;
  bytes.swiglu = L * 8 * F * token_bytes;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    bytes.lora += lora_elements(config, adapters, layer) * token_bytes;
  }
  bytes.loss = 3 * V * static_cast<double>(sizes.supervised) * element_bytes;
  bytes.optimizer = 7 * kFloatBytes * num_adapter_parameters(config, adapters);
  return bytes;
}

}  // namespace lora_train::train
