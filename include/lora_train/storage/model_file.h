// Files of a model or adapter folder before their content is looked at: what a download or a stranger may have left in
// their place.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lora_train::storage {

/// Which files of a Hugging Face folder make up its tokenizer: what goes along when it is copied.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer.model", "tekken.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json",      "merges.txt",  "chat_template.jinja"};

/// Call before opening: opening a pipe would wait for ever, reading a device might never end. Throws FormatError for a
/// folder, a pipe, a socket or a device. Links are followed; a path that is not there is left to whoever opens it.
void require_regular_file(const std::filesystem::path& path);

/// Throws FormatError when the content is that of a Git LFS pointer, with the line that gets the file.
void refuse_lfs_pointer(std::string_view content, const std::string& path);

/// The content of a file that is neither of these. Throws FormatError, IoError.
std::string read_model_file(const std::filesystem::path& path);

/// The content of a text file of up to 100 MB that is neither of these nor empty. Throws FormatError, IoError.
std::string read_model_text(const std::filesystem::path& path);

}  // namespace lora_train::storage
