#include "chat_templates.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace lora_train {

namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kBuiltin = {
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
     {"mistral", "mistral-v3"},
     {"mistral_v2v3", "mistral-v3"},
     {"mistral_v3_tekken", "mistral-v3"},
     {"llama-3", "llama3"}}};

constexpr std::array<std::string_view, 4> kOwn = {"granite3", "ministral", "mistral_small", "llama2"};

}  // namespace

std::string builtin_template(const std::string& theirs) {
  const auto found = std::ranges::find_if(kBuiltin, [&](const auto& entry) { return entry.first == theirs; });
  return found == kBuiltin.end() ? "" : std::string(found->second);
}

std::string written_template(const std::string& theirs) {
  if (theirs == "default") {
    return "{%- for message in messages -%}\n"
           "{%- if message.role == 'system' -%}{{ 'System: ' + message.content + eos_token + '\\n' }}\n"
           "{%- elif message.role == 'assistant' -%}{{ message.content + eos_token + '\\n' }}\n"
           "{%- else -%}{{ 'Human: ' + message.content + eos_token + '\\nAssistant:' }}\n"
           "{%- endif -%}\n"
           "{%- endfor -%}\n";
  }
  if (theirs != "alpaca") return {};
  return "{%- if messages[0].role != 'system' -%}{{ 'Below is an instruction that describes a task. Write a response "
         "that appropriately completes the request.\\n\\n' }}{%- endif -%}\n"
         "{%- for message in messages -%}\n"
         "{%- if message.role == 'system' -%}{{ message.content }}\n"
         "{%- elif message.role == 'assistant' -%}{{ message.content + eos_token + '\\n\\n' }}\n"
         "{%- else -%}{{ '### Instruction:\\n' + message.content + '\\n\\n### Response:\\n' }}\n"
         "{%- endif -%}\n"
         "{%- endfor -%}\n";
}

bool is_models_own_template(const std::string& theirs) { return std::ranges::count(kOwn, theirs) > 0; }

}  // namespace lora_train
