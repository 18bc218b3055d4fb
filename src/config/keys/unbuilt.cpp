// What profiles may say that no code does yet. An issue that builds one of these deletes its line.
#include "unbuilt.h"

#include <algorithm>
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

const std::vector<std::string>& unbuilt_key_names() {
  static const std::vector<std::string> names = {};
  return names;
}

bool is_unbuilt_key(const std::string& name) {
  const auto& names = unbuilt_key_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<UnbuiltFeature> unbuilt_features(const Profile& profile) {
  std::vector<UnbuiltFeature> features;
  for (const auto& entry : unbuilt_table()) {
    if (entry.is_requested(profile)) features.push_back({entry.key, entry.text()});
  }
  return features;
}

std::vector<UnbuiltFeature> unbuilt_features(const LoadedProfile& loaded) {
  std::vector<UnbuiltFeature> features = unbuilt_features(loaded.profile);
  for (const auto& [key, place] : loaded.unbuilt_keys) features.push_back({key, "not built yet. Remove it."});
  return features;
}

void add_unbuilt_features(const LoadedProfile& loaded, Mistakes& mistakes) {
  for (const auto& [key, text] : unbuilt_features(loaded)) {
    const auto place = loaded.unbuilt_keys.find(key);
    const auto origin = loaded.origin.find(key);
    const std::string where = origin == loaded.origin.end() ? "" : origin->second;
    mistakes.add(place == loaded.unbuilt_keys.end() ? parse_place(where) : place->second, key, text);
  }
}

void refuse_unbuilt_features(const LoadedProfile& loaded) {
  Mistakes mistakes;
  add_unbuilt_features(loaded, mistakes);
  mistakes.throw_if_any();
}

}  // namespace lora_train
