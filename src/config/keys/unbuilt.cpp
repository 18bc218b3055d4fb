// What profiles may say that no code does yet. An issue that builds one of these deletes its line.
#include <functional>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"

namespace lora_train {
namespace {

struct Unbuilt {
  std::string setting;  ///< "key: value"
  std::string advice;   ///< what to use instead
  std::function<bool(const Profile&)> is_requested;
};

const std::vector<Unbuilt>& unbuilt_table() {
  static const std::vector<Unbuilt> table = {
      {"base_precision other than precision", "Leave base_precision out; it follows precision.",
       [](const Profile& p) {
         return (p.model.base_precision == BasePrecision::kBf16 && p.model.precision == Precision::kFp32) ||
                (p.model.base_precision == BasePrecision::kFp32 && p.model.precision == Precision::kBf16);
       }},
      {"add_tokens", "Add the tokens to the tokenizer and the model beforehand.",
       [](const Profile& p) { return !p.model.add_tokens.empty(); }},
  };
  return table;
}

}  // namespace

std::vector<std::string> unbuilt_features(const Profile& profile) {
  std::vector<std::string> lines;
  for (const auto& entry : unbuilt_table()) {
    if (entry.is_requested(profile)) lines.push_back(entry.setting + " is not supported yet. " + entry.advice);
  }
  return lines;
}

void refuse_unbuilt_features(const LoadedProfile& loaded) {
  std::vector<std::string> lines = unbuilt_features(loaded.profile);
  if (lines.empty()) return;
  std::string first_where;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto origin = loaded.origin.find(lines[i].substr(0, lines[i].find_first_of(": ")));
    const std::string where = origin == loaded.origin.end() ? "" : origin->second;
    if (i == 0) first_where = where;
    if (i > 0 && !where.empty()) lines[i] = where + ": " + lines[i];
  }
  throw ConfigError(first_where, join(lines, "\n"));
}

}  // namespace lora_train
