// What a model card says about using an adapter. No torch here.
#pragma once

#include <cstdint>
#include <string>

namespace lora_train::lora {

struct AdapterUse {
  std::string base;     ///< as base_model_name_or_path says
  std::string adapter;  ///< its folder
  std::int64_t largest_rank = 0;
  bool is_plain = true;  ///< neither rsLoRA nor rank and alpha patterns
};

/// "## Use" to the end of the card: lines to paste for PEFT, vLLM and llama.cpp, and what each does not support.
std::string usage_section(const AdapterUse& use);

/// The card with its "## Use" section, which is the last one, replaced; unchanged if it has no such section.
std::string with_usage_section(const std::string& card, const AdapterUse& use);

}  // namespace lora_train::lora
