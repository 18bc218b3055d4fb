// What a model folder on this machine says of its special tokens.
#pragma once

#include <filesystem>
#include <string>

namespace lora_train {

/// The token of that name in tokenizer_config.json ("eos_token"); empty if there is no folder, or no such token in it.
std::string token_of_model(const std::filesystem::path& model, const std::string& name);

}  // namespace lora_train
