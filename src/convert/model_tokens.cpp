#include "model_tokens.h"

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/parse_yaml.h"

namespace lora_train {

std::string token_of_model(const std::filesystem::path& model, const std::string& name) {
  try {
    const std::filesystem::path file = model / "tokenizer_config.json";
    const Value config = parse_yaml(read_file(file), {file.string(), 0});
    const Value* token = config.find(name);
    const Value* content = token && token->is_map() ? token->find("content") : token;
    return content ? content->text : "";
  } catch (const Error&) {  // no folder, or not ours to judge
    return "";
  }
}

std::optional<PromptTokens> tokens_by_name(const std::string& model) {
  const std::string name = lower_case(model);
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("qwen")) return PromptTokens{.adds_bos = false};
  if (has("llama-3") || has("llama3")) return PromptTokens{.adds_bos = true};
  return std::nullopt;
}

}  // namespace lora_train
