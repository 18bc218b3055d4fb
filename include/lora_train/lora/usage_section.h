// The parts of a model card that hold names from configurations, each quoted for its context: YAML, Markdown, Python,
// shell. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace lora_train::lora {

struct AdapterUse {
  std::string base;     ///< base_model_name_or_path
  std::string adapter;  ///< the adapter's folder
  std::int64_t largest_rank = 0;
  bool is_plain = true;         ///< neither rsLoRA nor rank and alpha patterns
  bool has_token_rows = false;  ///< trains rows of tokens
  std::string base_class = {};  ///< transformers' class of the base; empty: AutoModelForCausalLM opens it
  std::int64_t vocab_size = 0;  ///< resize the base's embedding to this first; 0: not needed
};

/// The name or path as one line without control characters.
std::string one_line(const std::string& text);

/// The start of a card, up to library_name: "peft" or "transformers".
std::string card_head(const std::string& base, const std::string& library);

/// The text from "## Use" to the end of the card: commands to paste for PEFT, vLLM and llama.cpp, and what each does
/// not support.
std::string usage_section(const AdapterUse& use);

/// Replaces the "## Use" section, the last one of the card. Returns the card unchanged if it has no such section.
std::string with_usage_section(const std::string& card, const AdapterUse& use);

}  // namespace lora_train::lora
