// The files of a tokenizer with new tokens, as Hugging Face's add_tokens and save_pretrained leave them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "json/added_tokens.h"

namespace lora_train::tokenizer {

/// tokenizer.json with entries at the end of added_tokens; everything else stays byte for byte. `json` is valid JSON.
std::string with_added_tokens(std::string_view json, const std::vector<AddedToken>& tokens);

/// The texts, by file name, that the new tokens change: `main_file` (tokenizer.json or tokenizer.model, whose content is `bytes`)
/// and its neighbours. tokenizer_config.json lists the tokens where it has an added_tokens_decoder already, or where nothing else
/// could (tokenizer.model); added_tokens.json where that is what the folder has instead.
std::map<std::string, std::string> files_with_new_tokens(const std::filesystem::path& folder,
                                                         const std::string& main_file, std::string_view bytes,
                                                         const std::vector<AddedToken>& tokens);

}  // namespace lora_train::tokenizer
