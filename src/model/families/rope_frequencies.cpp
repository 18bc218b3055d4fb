// Inverse frequencies and attention factors of the RoPE kinds. Source: transformers modeling_rope_utils.py (5.17). The
// order and the precision of the operations are those of the fp32 tensors there, so that angles agree at position
// 100,000 as well; only powf may differ from torch's vectorised one, by one unit in the last place.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "lora_train/model/families/model_config.h"

namespace lora_train::model {
namespace {

/// theta^(2i/E), [E/2].
std::vector<float> position_frequencies(double theta, std::int64_t head_dim) {
  std::vector<float> out(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = std::pow(static_cast<float>(theta), static_cast<float>(2 * i) / static_cast<float>(head_dim));
  }
  return out;
}

std::vector<float> plain_inv_freq(double theta, std::int64_t head_dim) {
  auto out = position_frequencies(theta, head_dim);
  for (float& value : out) value = 1.0F / value;
  return out;
}

/// The base for the original length, at which the scale is 1 up to rounding.
double dynamic_theta(const ModelConfig& config) {
  const double factor = *config.rope.factor, length = static_cast<double>(config.max_position_embeddings);
  const double E = static_cast<double>(config.head_dim);
  return config.rope.theta * std::pow(factor * length / length - (factor - 1), E / (E - 2));
}

std::vector<float> llama3_inv_freq(const ModelConfig& config) {
  const auto& rope = config.rope;
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  const auto low_wavelength = static_cast<float>(length / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(length / rope.high_freq_factor);
  const auto factor = static_cast<float>(*rope.factor), low = static_cast<float>(rope.low_freq_factor);
  const auto span = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  auto out = plain_inv_freq(rope.theta, config.head_dim);
  for (float& value : out) {
    const float wavelength = 1.0F / value * static_cast<float>(2 * std::numbers::pi);
    const float smooth = (1.0F / wavelength * static_cast<float>(length) - low) / span;
    if (wavelength > low_wavelength) {
      value = value / factor;
    } else if (!(wavelength < high_wavelength)) {
      value = (1.0F - smooth) * value / factor + smooth * value;
    }
  }
  return out;
}

/// The (fractional) index of the pair that rotates `rotations` times over the original length.
double correction_dim(const ModelConfig& config, double rotations) {
  const double length = static_cast<double>(config.rope.original_max_position_embeddings);
  return static_cast<double>(config.head_dim) * std::log(length / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope.theta));
}

std::vector<float> yarn_inv_freq(const ModelConfig& config) {
  const auto& rope = config.rope;
  double low = correction_dim(config, rope.beta_fast), high = correction_dim(config, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;

  auto out = position_frequencies(rope.theta, config.head_dim);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float extrapolation = 1.0F / out[i];
    const float interpolation = 1.0F / (static_cast<float>(*rope.factor) * out[i]);
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1.0F - std::clamp(ramp, 0.0F, 1.0F);
    out[i] = interpolation * (1.0F - keep) + extrapolation * keep;
  }
  return out;
}

double yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0; }

}  // namespace

std::vector<float> rope_inv_freq(const ModelConfig& config) {
  const auto& rope = config.rope;
  switch (rope.type) {
    case RopeType::kDefault: return plain_inv_freq(rope.theta, config.head_dim);
    case RopeType::kDynamic: return plain_inv_freq(dynamic_theta(config), config.head_dim);
    case RopeType::kLlama3: return llama3_inv_freq(config);
    case RopeType::kYarn: return yarn_inv_freq(config);
    case RopeType::kLinear: {
      auto out = plain_inv_freq(rope.theta, config.head_dim);
      for (float& value : out) value /= static_cast<float>(*rope.factor);
      return out;
    }
    case RopeType::kLongrope: {
      auto out = position_frequencies(rope.theta, config.head_dim);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = 1.0F / (static_cast<float>(rope.short_factor[i]) * out[i]);
      return out;
    }
  }
  return {};
}

double rope_attention_factor(const ModelConfig& config) {
  const auto& rope = config.rope;
  if (rope.type != RopeType::kYarn && rope.type != RopeType::kLongrope) return 1.0;
  if (rope.attention_factor) return *rope.attention_factor;
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  const double factor = rope.factor ? *rope.factor : static_cast<double>(config.max_position_embeddings) / length;
  if (rope.type == RopeType::kLongrope) return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(length));
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    return yarn_mscale(factor, rope.mscale) / yarn_mscale(factor, rope.mscale_all_dim);
  }
  return yarn_mscale(factor, 1);
}

}  // namespace lora_train::model
