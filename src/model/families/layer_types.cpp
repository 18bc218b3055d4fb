#include "family.h"

namespace lora_train::model {

std::optional<std::int64_t> read_window(const ConfigReader& reader) {
  constexpr std::int64_t kDefault = 4096;
  return reader.has("sliding_window") ? reader.optional_size("sliding_window", kLongestWindow) : kDefault;
}

bool read_layer_types(const ConfigReader& reader, std::optional<std::int64_t> window, ModelConfig& config) {
  config.layer_window.assign(static_cast<std::size_t>(config.num_layers), 0);
  const auto types = reader.optional_texts("layer_types");
  if (!types) return false;
  if (types->size() != config.layer_window.size()) {
    reader.reject("layer_types", "has " + std::to_string(types->size()) + " entries for " +
                                     std::to_string(config.num_layers) + " layers (num_hidden_layers)");
  }
  for (std::size_t i = 0; i < types->size(); ++i) {
    if ((*types)[i] == "full_attention") continue;
    if ((*types)[i] != "sliding_attention") {
      reader.reject("layer_types",
                    "\"" + (*types)[i] + "\" is not supported; expected full_attention or sliding_attention");
    }
    if (!window) {
      reader.reject("layer_types", "layer " + std::to_string(i) +
                                       " is sliding_attention, but there is no window: set use_sliding_window to true "
                                       "and sliding_window to a size");
    }
    config.layer_window[i] = *window;
  }
  return true;
}

}  // namespace lora_train::model
