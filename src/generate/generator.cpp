#include "lora_train/generate/generator.h"

#include "lora_train/base/error.h"

namespace lora_train::generate {

struct Generator::State {};

Generator::Generator(const model::ModelConfig&, model::WeightSource&, const GeneratorLimits&, kernels::AttentionBackend)
    : state_(std::make_unique<State>()) {}
Generator::~Generator() = default;

std::vector<Completion> Generator::run(std::span<const Prompt>, const GenerateOptions&, const GenerateCallbacks&) {
  throw ConfigError("generate", "not built yet");
}

std::vector<std::vector<double>> Generator::score(std::span<const ScoreRequest>, bool,
                                                  const std::function<void(std::size_t)>&) {
  throw ConfigError("generate", "not built yet");
}

GenerateStats Generator::stats() const { return {}; }

std::int64_t cache_bytes_per_token(const model::ModelConfig& config, at::ScalarType dtype) {
  return 2 * config.num_layers * config.num_kv_heads * config.head_dim * static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace lora_train::generate
