#include "lora_train/tokenizer/model_folder.h"

#include <nlohmann/json.hpp>

#include "lora_train/storage/model_file.h"

namespace lora_train::tokenizer {
namespace {

namespace fs = std::filesystem;

bool has_chat_template(const fs::path& folder) {
  if (fs::exists(folder / "chat_template.jinja")) return true;
  const fs::path config = folder / "tokenizer_config.json";
  if (!fs::exists(config)) return false;
  const auto object = nlohmann::json::parse(storage::read_model_file(config), nullptr, /*allow_exceptions=*/false);
  // A file that is no JSON is reported by ChatTemplate::load.
  return object.is_discarded() ||
         (object.is_object() && object.contains("chat_template") && !object["chat_template"].is_null());
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_if_present(const fs::path& folder, const TokenizerOptions& options) {
  return has_tokenizer(folder) ? Tokenizer::load(folder, options) : nullptr;
}

std::unique_ptr<ChatTemplate> load_chat_template(const std::string& chat_template, const fs::path& folder) {
  if (chat_template != "tokenizer")
    return ChatTemplate::parse(storage::read_model_file(chat_template), chat_template, folder);
  return has_chat_template(folder) ? ChatTemplate::load(folder) : nullptr;
}

}  // namespace lora_train::tokenizer
