// adapter_config.json of strangers: planned for a small model, and the same when it is written and read again.
#include "fuzz/refusal.h"
#include "lora_train/base/log.h"
#include "lora_train/lora/adapter_config.h"

namespace {

using namespace lora_train;  // NOLINT: the names under test
using fuzz::require;

model::ModelConfig small_model() {
  model::ModelConfig config;
  config.num_layers = 3;
  return config;
}

void check_round_trip(const fuzz::InputFile& file, const lora::AdapterConfig& config,
                      const std::vector<model::AdapterSpec>& specs, const model::ModelConfig& model) {
  lora::AdapterConfig written = config;
  written.lora_target_modules = lora::explicit_targets(specs, model);
  file.write_beside("adapter_config.json", lora::adapter_config_json(written));
  const lora::AdapterConfig copy = lora::read_adapter_config(file.folder());
  require(copy.base_model_name_or_path == config.base_model_name_or_path, "another base model");
  require(
      config.lora_r == copy.lora_r && config.lora_alpha == copy.lora_alpha && config.lora_dropout == copy.lora_dropout,
      "another rank, alpha or dropout");
  require(config.rank_pattern == copy.rank_pattern && config.alpha_pattern == copy.alpha_pattern, "other patterns");
  require(lora::plan_adapters(copy, model) == specs, "other adapters");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::InputFile file("adapter_config.json");
  static const model::ModelConfig model = small_model();
  set_log_level(LogLevel::kOff);
  file.write(data, size);
  fuzz::accepts([&] {
    const lora::AdapterConfig config = lora::read_adapter_config(file.folder());
    const auto specs = lora::plan_adapters(config, model);
    lora::check_patterns(config, model);
    require(!specs.empty(), "no adapter");
    for (const auto& spec : specs) require(spec.rank >= 1 && spec.scale > 0, "a rank or a scale that is none");
    require(lora::first_adapted_layer(specs) < model.num_layers, "an adapter outside the model");
    check_round_trip(file, config, specs, model);
  });
  return 0;
}
