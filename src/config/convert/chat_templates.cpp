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

bool is_models_own_template(const std::string& theirs) { return std::ranges::count(kOwn, theirs) > 0; }

}  // namespace lora_train
