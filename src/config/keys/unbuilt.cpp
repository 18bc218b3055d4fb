// What profiles may say that no code does yet. An issue that builds one of these deletes its line.
#include <functional>

#include "lora_train/config/check.h"

namespace lora_train {
namespace {

struct Unbuilt {
  std::string key;
  std::string what;  ///< the value that is not built; empty = any
  std::string advice;
  std::function<bool(const Profile&)> is_requested;

  std::string text() const { return what + (what.empty() ? "" : " is ") + "not built yet. " + advice; }
};

const std::vector<Unbuilt>& unbuilt_table() {
  static const std::vector<Unbuilt> table = {
      {"base_precision", "one other than precision", "Leave base_precision out; it follows precision.",
       [](const Profile& p) {
         return (p.model.base_precision == BasePrecision::kBf16 && p.model.precision == Precision::kFp32) ||
                (p.model.base_precision == BasePrecision::kFp32 && p.model.precision == Precision::kBf16);
       }},
  };
  return table;
}

}  // namespace

std::vector<UnbuiltFeature> unbuilt_features(const Profile& profile) {
  std::vector<UnbuiltFeature> features;
  for (const auto& entry : unbuilt_table()) {
    if (entry.is_requested(profile)) features.push_back({entry.key, entry.text()});
  }
  return features;
}

void add_unbuilt_features(const LoadedProfile& loaded, Mistakes& mistakes) {
  for (const auto& [key, text] : unbuilt_features(loaded.profile)) {
    const auto origin = loaded.origin.find(key);
    mistakes.add(parse_place(origin == loaded.origin.end() ? "" : origin->second), key, text);
  }
}

void refuse_unbuilt_features(const LoadedProfile& loaded) {
  Mistakes mistakes;
  add_unbuilt_features(loaded, mistakes);
  mistakes.throw_if_any();
}

}  // namespace lora_train
