// The tools' names for chat formats, and the model's tokens that they depend on.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "converter.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kBuiltin = {
    {{"chatml", "chatml"},
     {"llama3", "llama3"},
     {"gemma", "gemma"},
     {"gemma2", "gemma"},
     {"gemma3", "gemma"},
     {"qwen", "qwen2.5"},
     {"qwen_25", "qwen2.5"},
     {"qwen3", "qwen3"},
     {"qwen3_nothink", "chatml"},
     {"mistral_v1", "mistral-v1"},
     {"mistral_v2v3", "mistral-v3"},
     {"mistral_v3_tekken", "mistral-v3"},
     {"llama-3", "llama3"}}};

constexpr std::array<std::string_view, 4> kOwn = {"granite3", "ministral", "mistral_small", "llama2"};

using Ids = std::vector<std::int32_t>;

/// Answers that begin with a letter, a digit, a bracket, a quote, a mark, a letter of several bytes.
constexpr const char* kAnswers[] = {"Yes.",  "no",  "42",  "(a)",           "<b>",
                                    "\"c\"", "- d", "`e`", "\u00c9t\u00e9", "\u4e2d\u6587"};

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::string end_of_turn(const std::filesystem::path& folder, const tokenizer::Tokenizer& tokenizer) {
  try {
    const auto own = tokenizer::load_chat_template("tokenizer", folder, /*is_quiet=*/true);
    const auto id = own ? tokenizer::end_of_turn_id(*own, tokenizer) : std::nullopt;
    return id ? tokenizer.id_to_token(*id) : "";
  } catch (const Error&) {  // the run will say what is wrong with it
    return "";
  }
}

}  // namespace

std::string builtin_template(const std::string& theirs) {
  const auto found = std::ranges::find_if(kBuiltin, [&](const auto& entry) { return entry.first == theirs; });
  return found == kBuiltin.end() ? "" : std::string(found->second);
}

std::string end_of_builtin(const std::string& ours) {
  if (ours == "chatml" || ours.starts_with("qwen")) return "<|im_end|>";
  if (ours == "llama3") return "<|eot_id|>";
  if (ours == "gemma") return "<end_of_turn>";
  return ours.starts_with("mistral-") ? "eos_token" : "";
}

std::string jinja_text(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (c == '\r') {
      quoted += "\\r";
    } else {
      quoted += (c == '\'' || c == '\\' ? "\\" : "") + std::string(1, c);
    }
  }
  return quoted + "'";
}

std::string written_template(const std::string& theirs, const std::string& default_system) {
  const auto without_system = [](const std::string& text) {
    return "{%- if messages[0].role != 'system' -%}{{ " + text + " }}{%- endif -%}\n";
  };
  const std::string system = jinja_text(default_system);
  if (theirs == "default") {
    return (default_system.empty() ? "" : without_system(fmt::format("'System: ' + {} + eos_token + '\\n'", system))) +
           "{%- for message in messages -%}\n"
           "{%- if message.role == 'system' -%}{{ 'System: ' + message.content + eos_token + '\\n' }}\n"
           "{%- elif message.role == 'assistant' -%}{{ message.content + eos_token + '\\n' }}\n"
           "{%- else -%}{{ 'Human: ' + message.content + eos_token + '\\nAssistant:' }}\n"
           "{%- endif -%}\n"
           "{%- endfor -%}\n";
  }
  if (theirs == "alpaca") {
    const std::string task =
        "'Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\\n\\n'";
    return without_system(default_system.empty() ? task : system) +
           "{%- for message in messages -%}\n"
           "{%- if message.role == 'system' -%}{{ message.content }}\n"
           "{%- elif message.role == 'assistant' -%}{{ message.content + eos_token + '\\n\\n' }}\n"
           "{%- else -%}{{ '### Instruction:\\n' + message.content + '\\n\\n### Response:\\n' }}\n"
           "{%- endif -%}\n"
           "{%- endfor -%}\n";
  }
  if (theirs == "mistral") {
    return "{{- bos_token -}}\n"
           "{%- set turns = messages[1:] if messages[0].role == 'system' else messages -%}\n"
           "{%- set system = messages[0].content if messages[0].role == 'system' else " +
           system +
           " -%}\n"
           "{%- for message in turns -%}\n"
           "{%- if message.role != ('user' if loop.index0 % 2 == 0 else 'assistant') -%}\n"
           "{{ raise_exception('after a system message, user and assistant must take turns') }}\n"
           "{%- elif message.role == 'assistant' -%}{{ ' ' + message.content + eos_token }}\n"
           "{%- else -%}{{ '[INST] ' + (system + '\\n\\n' if loop.first and system else '') + message.content + "
           "'[/INST]' }}\n"
           "{%- endif -%}\n"
           "{%- endfor -%}\n";
  }
  const bool is_chatml = theirs == "chatml" || theirs == "qwen" || theirs == "qwen3_nothink";
  if (!is_chatml || default_system.empty()) return {};
  return without_system(fmt::format("'<|im_start|>system\\n' + {} + '<|im_end|>\\n'", system)) +
         "{%- for message in messages -%}\n"
         "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}\n";
}

bool is_models_own_template(const std::string& theirs) { return std::ranges::count(kOwn, theirs) > 0; }

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

bool ModelTokens::keeps_apart(const std::string& prompt, const std::string& opening) const {
  if (!tokenizer) return true;
  const Ids ids = tokenizer->encode(prompt).ids;
  return std::ranges::all_of(kAnswers, [&](const std::string& answer) {
    return tokenizer->encode(prompt + opening + answer).ids == joined(ids, tokenizer->encode(opening + answer).ids);
  });
}

bool ModelTokens::lacks_token(const std::string& token) const {
  return tokenizer && !tokenizer->token_to_id(token).has_value();
}

std::optional<ModelTokens> open_tokens(const std::string& model) {
  try {
    const std::filesystem::path folder = storage::resolve_model(model).folder;
    const std::shared_ptr<const tokenizer::Tokenizer> opened = tokenizer::load_tokenizer_if_present(folder);
    if (!opened) return std::nullopt;
    return ModelTokens{opened, opened->adds_bos(), opened->eos_id() ? opened->id_to_token(*opened->eos_id()) : "",
                       end_of_turn(folder, *opened)};
  } catch (const Error&) {  // not on this machine, or not ours to judge
    return std::nullopt;
  }
}

std::optional<ModelTokens> tokens_by_name(const std::string& model) {
  const std::string name = lower_case(model);
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("qwen")) return ModelTokens{.adds_bos = false};
  if (has("llama-3") || has("llama3")) return ModelTokens{.adds_bos = true};
  return std::nullopt;
}

}  // namespace lora_train
