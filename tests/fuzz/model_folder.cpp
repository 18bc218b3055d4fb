// A model folder: config.json, model.safetensors.index.json and one shard, in this order in an input.
#include <cmath>
#include <set>

#include "fuzz/refusal.h"
#include "lora_train/base/log.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_weights.h"

namespace {

using namespace lora_train;  // NOLINT: the names under test
using fuzz::require;

constexpr const char* kShard = "model-00001-of-00001.safetensors";

void check_expected(const model::ModelConfig& config, const std::vector<model::TensorSpec>& expected) {
  std::set<std::string> names;
  std::int64_t num_elements = 0;
  for (const auto& spec : expected) {
    require(names.insert(spec.name).second, "a weight that is expected twice: " + spec.name);
    std::int64_t count = 1;
    for (const std::int64_t size : spec.shape) {
      require(size > 0 && !__builtin_mul_overflow(count, size, &count), "a shape beyond 64 bits: " + spec.name);
    }
    require(!__builtin_add_overflow(num_elements, count, &num_elements), "weights beyond 64 bits");
  }
  require(num_elements == model::num_parameters(config), "num_parameters() counts otherwise");
}

void check_config(const model::ModelConfig& config) {
  require(config.head_dim % 2 == 0 && config.num_heads % config.num_kv_heads == 0, "heads that do not fit");
  require(config.layer_window.size() == static_cast<std::size_t>(config.num_layers), "a layer without its window");
  for (const std::int64_t window : config.layer_window) require(window >= 0, "a window below zero");
  fuzz::accepts([&] { check_rope_supported(config, 4096); });
  const auto frequencies = rope_inv_freq(config);
  require(config.rotary_dim > 0 && config.rotary_dim <= config.head_dim, "a rotation of no part of a head");
  require(frequencies.size() == static_cast<std::size_t>(config.rotary_dim / 2), "not a frequency for each pair");
  for (const float value : frequencies) require(std::isfinite(value), "a frequency that is not finite");
  require(std::isfinite(rope_attention_factor(config)), "an attention factor that is not finite");
}

/// What the program reads out of the tensors of an accepted linear lies inside them.
void check_linear(const model::StoredLinear& linear, const model::TensorSpec& spec,
                  const storage::WeightFiles& weights) {
  const std::int64_t count = spec.shape[0] * spec.shape[1];
  require(linear.out_features == spec.shape[0] && linear.in_features == spec.shape[1], "another size: " + spec.name);
  require(linear.bytes(2) > 0, "no bytes: " + spec.name);
  for (const auto& name : linear.names)
    require(weights.find(name) != nullptr, "belongs to it but is not there: " + name);
  if (linear.format == model::LinearFormat::kPlain) {
    require(linear.scales == nullptr && linear.weight->shape == spec.shape, "accepted without " + spec.name);
    return;
  }
  require(linear.scales->num_elements() == linear.num_scales(), "not all scales: " + spec.name);
  if (linear.format != model::LinearFormat::k4Bit) {
    require(linear.weight->num_bytes() == static_cast<std::size_t>(count), "not a byte for each weight: " + spec.name);
    return;
  }
  require(linear.weight->num_bytes() == static_cast<std::size_t>((count + 1) / 2), "not half a byte: " + spec.name);
  require(linear.map->num_bytes() == 64 && std::isfinite(linear.nested_offset), "no map: " + spec.name);
  if (linear.nested_block_size == 0) return;
  require(linear.nested_map->num_bytes() == 1024, "no nested map: " + spec.name);
  require(linear.nested_scales->num_elements() * linear.nested_block_size >= linear.num_scales(),
          "not all nested scales: " + spec.name);
}

void check_weights_of(const model::ModelConfig& config, const std::vector<model::TensorSpec>& expected,
                      const std::filesystem::path& folder) {
  const auto weights = storage::open_model_weights(folder);
  model::check_weights(config, weights);
  for (const auto& spec : expected) {
    const auto* entry = weights.find(spec.name);
    require(entry != nullptr, "accepted without " + spec.name);
    if (spec.kind == model::WeightKind::kLinear) {
      check_linear(model::stored_linear(config, spec, weights), spec, weights);
    } else {
      require(entry->shape == spec.shape, "accepted without " + spec.name);
    }
  }
  require(!weights.fingerprint().empty(), "no fingerprint");
}

void check_index(const std::filesystem::path& path) {
  const auto index = storage::read_shard_index(path);
  for (const auto& file : index.files()) {
    require(std::filesystem::path(file).filename() == file && !file.empty() && file != "..",
            "leads elsewhere: " + file);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::InputFile config_file("config.json");
  set_log_level(LogLevel::kOff);
  const auto parts = fuzz::split(data, size, 3);
  const auto index = config_file.folder() / "model.safetensors.index.json";
  config_file.write_beside("config.json", parts[0]);
  config_file.write_beside(index.filename().string(), parts[1]);
  config_file.write_beside(kShard, parts[2]);
  fuzz::accepts([&] { check_index(index); });
  fuzz::accepts([&] {
    const auto config = model::read_model_config(config_file.folder());
    check_config(config);
    if (config.num_layers > 100) return;  // names of 100,000 weights take a second
    const auto expected = model::expected_tensors(config);
    check_expected(config, expected);
    check_weights_of(config, expected, config_file.folder());
  });
  return 0;
}
