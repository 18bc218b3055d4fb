#include "lora_train/tokenizer/model_folder.h"

#include <nlohmann/json.hpp>

#include "builtin_templates.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::tokenizer {
namespace {

namespace fs = std::filesystem;

bool has_chat_template(const fs::path& folder) {
  if (folder.empty()) return false;
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

std::unique_ptr<ChatTemplate> load_chat_template(const std::string& chat_template, const fs::path& folder,
                                                 bool is_quiet) {
  const bool has_own = has_chat_template(folder);
  if (chat_template == "tokenizer") return has_own ? ChatTemplate::load(folder) : nullptr;
  if (has_own && !is_quiet) log_info("chat_template: " + chat_template + " takes the place of the model's own");
  if (const auto text = builtin_template(chat_template)) {
    return ChatTemplate::parse(std::string(*text), "built-in template " + chat_template, folder);
  }
  const bool is_name = fs::path(chat_template).extension() != ".jinja" && chat_template.find('/') == std::string::npos;
  if (is_name && !fs::exists(chat_template)) {
    throw IoError(chat_template,
                  "no such file, and no built-in chat template. Built in: " + join(builtin_template_names()));
  }
  return ChatTemplate::parse(storage::read_model_file(chat_template), chat_template, folder);
}

}  // namespace lora_train::tokenizer
