#include "model_files.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/file.h"

namespace lora_train::app {
namespace {

namespace fs = std::filesystem;

bool has_chat_template(const fs::path& folder) {
  if (fs::exists(folder / "chat_template.jinja")) return true;
  const fs::path config = folder / "tokenizer_config.json";
  if (!fs::exists(config)) return false;
  const auto object = nlohmann::json::parse(read_file(config), nullptr, /*allow_exceptions=*/false);
  // A file that is no JSON is reported by ChatTemplate::load.
  return object.is_discarded() || (object.is_object() && object.contains("chat_template"));
}

}  // namespace

std::unique_ptr<tokenizer::Tokenizer> load_tokenizer_if_present(const fs::path& folder) {
  if (!tokenizer::has_tokenizer(folder)) return nullptr;
  return tokenizer::Tokenizer::load(folder);
}

std::unique_ptr<tokenizer::ChatTemplate> load_chat_template(const std::string& chat_template, const fs::path& folder) {
  if (chat_template != "tokenizer") {
    return tokenizer::ChatTemplate::parse(read_file(chat_template), chat_template, folder);
  }
  return has_chat_template(folder) ? tokenizer::ChatTemplate::load(folder) : nullptr;
}

}  // namespace lora_train::app
