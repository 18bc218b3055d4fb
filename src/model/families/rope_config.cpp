#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "family.h"
#include "lora_train/base/error.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::model {
namespace {

// By RopeType.
constexpr std::array<std::string_view, 6> kRopeTypes = {"default", "linear", "dynamic", "yarn", "longrope", "llama3"};
constexpr std::int64_t kLongest = std::int64_t{1} << 40;

RopeType read_type(const ConfigReader& rope) {
  const char* key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  if (!rope.has(key) && rope.optional_number("factor").value_or(1.0) != 1.0) {
    rope.reject("factor", "has no effect without rope_type; set rope_type, or remove this key");
  }
  std::string name = rope.text(key, "default");
  if (name == "mrope") name = "default";
  const auto found = std::ranges::find(kRopeTypes, name);
  if (found != kRopeTypes.end()) return static_cast<RopeType>(found - kRopeTypes.begin());
  rope.reject(key, "\"{}\" is not supported; expected default, linear, dynamic, yarn, longrope or llama3", name);
}

constexpr const char* kRotaryFactor = "partial_rotary_factor";

void refuse_parts_of_heads(const ConfigReader& reader) {
  if (reader.optional_number(kRotaryFactor).value_or(1.0) == 1.0) return;
  reader.reject(kRotaryFactor, "rotating only part of each head is not supported in this family; expected 1.0");
}

void refuse_other_kinds(const ConfigReader& reader) {
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (reader.has(layer_type)) reader.reject(layer_type, "RoPE settings per layer type are not supported");
  }
}

void read_yarn(const ConfigReader& rope, const ModelConfig& config, RopeConfig& out) {
  if (rope.has("factor") && !rope.is_given("factor")) {
    out.factor =
        static_cast<double>(config.max_position_embeddings) / static_cast<double>(out.original_max_position_embeddings);
  } else {
    out.factor = rope.positive("factor");
  }
  if (out.theta <= 1.0) rope.reject("rope_theta", "must be above 1 for yarn");
  const auto or_if_zero = [&](const char* key, double fallback) {
    const double value = rope.optional_number(key).value_or(0.0);
    return value == 0.0 ? fallback : value;
  };
  out.beta_fast = or_if_zero("beta_fast", 32);
  out.beta_slow = or_if_zero("beta_slow", 1);
  if (out.beta_fast <= 0 || out.beta_slow <= 0) rope.reject("beta_fast", "beta_fast and beta_slow must be above zero");
  out.mscale = or_if_zero("mscale", 0);
  out.mscale_all_dim = or_if_zero("mscale_all_dim", 0);
  out.attention_factor = rope.optional_number("attention_factor");
  out.truncate = rope.boolean("truncate", true);
}

void read_longrope(const ConfigReader& rope, const ModelConfig& config, RopeConfig& out) {
  for (const char* key : {"short_factor", "long_factor"}) {
    const auto factors = rope.numbers(key);
    if (static_cast<std::int64_t>(factors.size()) * 2 != config.rotary_dim) {
      rope.reject(key, "has {} numbers; {} were expected, one for each pair that rotates", factors.size(),
                  config.rotary_dim / 2);
    }
    if (std::ranges::min(factors) <= 0) rope.reject(key, "holds a number that is not above zero");
  }
  if (out.original_max_position_embeddings < 2)
    rope.reject("original_max_position_embeddings", "must be above 1 for longrope");
  out.short_factor = rope.numbers("short_factor");
  if (rope.is_given("factor")) out.factor = rope.positive("factor");
  out.attention_factor = rope.optional_number("attention_factor");
}

void read_llama3(const ConfigReader& rope, RopeConfig& out) {
  out.factor = rope.positive("factor");
  out.low_freq_factor = rope.positive("low_freq_factor");
  out.high_freq_factor = rope.positive("high_freq_factor");
  if (out.high_freq_factor <= out.low_freq_factor)
    rope.reject("high_freq_factor", "must be larger than low_freq_factor");
}

std::optional<ConfigReader> rope_keys(const ConfigReader& reader) {
  const auto rope = reader.optional_object("rope_scaling");
  return rope ? rope : reader.optional_object("rope_parameters");
}

/// The three positions of a text token are equal, so that sections over all pairs turn as plain RoPE does.
void read_sections(const ConfigReader& rope, const ModelConfig& config, RopeConfig& out) {
  constexpr const char* kSections = "mrope_section";
  if (!rope.is_given(kSections)) return;
  out.mrope_section = rope.ids(kSections);
  const auto pairs = std::accumulate(out.mrope_section.begin(), out.mrope_section.end(), std::int64_t{0});
  if (out.mrope_section.size() == 3 && 2 * pairs == config.rotary_dim) return;
  rope.reject(kSections, "{} sections of {} pairs in total were given; three of {} pairs in total were expected",
              out.mrope_section.size(), pairs, config.rotary_dim / 2);
}

void read_query_scale(const ConfigReader& rope, const ModelConfig& config, RopeConfig& out) {
  constexpr const char* kBeta = "llama_4_scaling_beta";
  if (!rope.is_given(kBeta)) return;
  if (config.family != Family::kMinistral3) {
    rope.reject(kBeta, "a scale of the queries by their position is supported in the ministral3 family only");
  }
  out.query_scale_beta = *rope.optional_number(kBeta);
  if (out.query_scale_beta < 0) rope.reject(kBeta, "is below 0");
  if (out.query_scale_beta > 0) out.query_scale_period = rope.size("original_max_position_embeddings", kLongest);
}

/// theta^(2i/R), [R/2].
std::vector<float> position_frequencies(double theta, std::int64_t rotary_dim) {
  std::vector<float> out(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = std::pow(static_cast<float>(theta), static_cast<float>(2 * i) / static_cast<float>(rotary_dim));
  }
  return out;
}

std::vector<float> plain_inv_freq(double theta, std::int64_t rotary_dim) {
  auto out = position_frequencies(theta, rotary_dim);
  for (float& value : out) value = 1.0F / value;
  return out;
}

/// The base for the original length, at which the scale is 1 up to rounding.
double dynamic_theta(const ModelConfig& config) {
  const double factor = *config.rope.factor, length = static_cast<double>(config.max_position_embeddings);
  const double R = static_cast<double>(config.rotary_dim);
  return config.rope.theta * std::pow(factor * length / length - (factor - 1), R / (R - 2));
}

std::vector<float> llama3_inv_freq(const ModelConfig& config) {
  const auto& rope = config.rope;
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  const auto low_wavelength = static_cast<float>(length / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(length / rope.high_freq_factor);
  const auto factor = static_cast<float>(*rope.factor), low = static_cast<float>(rope.low_freq_factor);
  const auto span = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  auto out = plain_inv_freq(rope.theta, config.rotary_dim);
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
  return static_cast<double>(config.rotary_dim) * std::log(length / (rotations * 2 * std::numbers::pi)) /
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
  high = std::min(high, static_cast<double>(config.rotary_dim - 1));
  if (low == high) high += 0.001;

  auto out = position_frequencies(rope.theta, config.rotary_dim);
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

std::string_view rope_type_name(RopeType type) { return kRopeTypes[static_cast<std::size_t>(type)]; }

RopeConfig read_rope_kind(const ConfigReader& reader, const std::optional<ConfigReader>& rope, double theta,
                          const ModelConfig& config) {
  RopeConfig out;
  out.theta = rope && rope->has("rope_theta") ? rope->positive("rope_theta") : theta;
  if (!rope) return out;
  refuse_other_kinds(*rope);
  if (config.rotary_dim == config.head_dim) refuse_parts_of_heads(*rope);
  read_sections(*rope, config, out);
  out.type = read_type(*rope);
  // In transformers, a length outside the RoPE keys (as in Phi3 files) takes precedence.
  const auto outside = reader.optional_size("original_max_position_embeddings", kLongest);
  const auto inside = rope->optional_size("original_max_position_embeddings", kLongest);
  out.original_max_position_embeddings = outside ? *outside : inside.value_or(config.max_position_embeddings);
  switch (out.type) {
    case RopeType::kDefault: break;
    case RopeType::kLinear: out.factor = rope->positive("factor"); break;
    case RopeType::kDynamic:
      out.factor = rope->positive("factor");
      out.original_max_position_embeddings = config.max_position_embeddings;
      if (config.rotary_dim == 2) rope->reject("rope_type", "dynamic needs more than one pair that rotates");
      break;
    case RopeType::kYarn: read_yarn(*rope, config, out); break;
    case RopeType::kLongrope: read_longrope(*rope, config, out); break;
    case RopeType::kLlama3: read_llama3(*rope, out); break;
  }
  read_query_scale(*rope, config, out);
  return out;
}

void read_rotary_dim(const ConfigReader& reader, const FamilyRules& rules, ModelConfig& config) {
  const auto rope = rope_keys(reader);
  const ConfigReader& from = rope && rope->is_given(kRotaryFactor) ? *rope : reader;
  config.rotary_dim = config.head_dim;
  if (!rules.partial_rotary_factor) return refuse_parts_of_heads(from);
  const double factor = from.positive(kRotaryFactor, *rules.partial_rotary_factor);
  if (factor > 1) from.reject(kRotaryFactor, "is {}; a share of a head, at most 1, was expected", factor);
  config.rotary_dim = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * factor);  // rounds down
  if (config.rotary_dim != 0 && config.rotary_dim % 2 == 0) return;
  from.reject(kRotaryFactor, "{} of head_dim ({}) is {}; RoPE rotates pairs, so an even number above 0 was expected",
              factor, config.head_dim, config.rotary_dim);
}

void read_rope(const ConfigReader& reader, ModelConfig& config) {
  refuse_other_kinds(reader);
  const auto rope = rope_keys(reader);
  const double theta = rope && rope->has("rope_theta") ? 1 : reader.positive("rope_theta", 10000.0);
  config.rope = read_rope_kind(reader, rope, theta, config);
}

std::int64_t ModelConfig::context_length() const {
  if (rope.type != RopeType::kYarn) return max_position_embeddings;
  const double extended = *rope.factor * static_cast<double>(rope.original_max_position_embeddings);
  return std::max(max_position_embeddings,
                  static_cast<std::int64_t>(std::min(extended, static_cast<double>(kLongest))));
}

std::int64_t ModelConfig::supported_length() const {
  const bool is_limited = rope.type == RopeType::kDynamic || rope.type == RopeType::kLongrope;
  return is_limited ? std::min(context_length(), rope.original_max_position_embeddings) : context_length();
}

void check_rope_supported(const ModelConfig& config, std::int64_t max_seq_len) {
  const auto& rope = config.rope;
  if (rope.type != RopeType::kDynamic && rope.type != RopeType::kLongrope) return;
  if (max_seq_len <= rope.original_max_position_embeddings) return;
  throw FormatError(config.path.string() + ": rope_type",
                    "{} RoPE is supported up to the original length of {} tokens, and max_seq_len is {}: beyond it a "
                    "row's result would depend on the longest row of its batch. Lower max_seq_len, or use a model with "
                    "yarn, llama3 or linear RoPE",
                    rope_type_name(rope.type), rope.original_max_position_embeddings, max_seq_len);
}

std::vector<float> rope_inv_freq(const ModelConfig& config) {
  const auto& rope = config.rope;
  switch (rope.type) {
    case RopeType::kDefault: return plain_inv_freq(rope.theta, config.rotary_dim);
    case RopeType::kDynamic: return plain_inv_freq(dynamic_theta(config), config.rotary_dim);
    case RopeType::kLlama3: return llama3_inv_freq(config);
    case RopeType::kYarn: return yarn_inv_freq(config);
    case RopeType::kLinear: {
      auto out = plain_inv_freq(rope.theta, config.rotary_dim);
      for (float& value : out) value /= static_cast<float>(*rope.factor);
      return out;
    }
    case RopeType::kLongrope: {
      auto out = position_frequencies(rope.theta, config.rotary_dim);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = 1.0F / (static_cast<float>(rope.short_factor[i]) * out[i]);
      return out;
    }
  }
  return {};
}

std::vector<float> query_scales(const ModelConfig& config, std::int64_t num_positions) {
  if (config.rope.query_scale_beta == 0) return {};
  const auto beta = static_cast<float>(config.rope.query_scale_beta);
  std::vector<float> scales;
  for (std::int64_t position = 0; position < num_positions; ++position) {
    const auto periods = static_cast<float>(position / config.rope.query_scale_period);
    scales.push_back(1 + beta * std::log(1 + periods));
  }
  return scales;
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
