#include "chat_templates.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"

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
    return (default_system.empty() ? "" : without_system("'System: ' + " + system + " + eos_token + '\\n'")) +
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
  return without_system("'<|im_start|>system\\n' + " + system + " + '<|im_end|>\\n'") +
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

std::optional<PromptTokens> tokens_by_name(const std::string& model) {
  const std::string name = lower_case(model);
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("qwen")) return PromptTokens{.adds_bos = false};
  if (has("llama-3") || has("llama3")) return PromptTokens{.adds_bos = true};
  return std::nullopt;
}

}  // namespace lora_train
