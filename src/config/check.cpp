#include "lora_train/config/check.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <functional>

namespace lora_train {
namespace {

struct Unbuilt {
  std::string key;
  std::string what;  ///< the value that is not built; empty = any
  std::string advice;
  std::function<bool(const Profile&)> is_requested;

  std::string text() const { return fmt::format("{}{}not built yet. {}", what, what.empty() ? "" : " is ", advice); }
};

/// Settings that a profile may have but no code implements yet.
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

void add_unbuilt_features(const LoadedProfile& loaded, Findings& findings) {
  for (const auto& [key, text] : unbuilt_features(loaded.profile)) {
    const auto origin = loaded.origin.find(key);
    findings.mistake(parse_place(origin == loaded.origin.end() ? "" : origin->second), key, text);
  }
}

void refuse_unbuilt_features(const LoadedProfile& loaded) {
  Findings findings;
  add_unbuilt_features(loaded, findings);
  findings.throw_mistakes();
}

std::vector<ShippedProfile> shipped_profiles(const std::filesystem::path& folder) {
  std::vector<ShippedProfile> profiles;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    if (entry.path().extension() != ".yaml") continue;
    ShippedProfile profile{entry.path().stem().string(), entry.path(), ""};
    std::string line;
    std::ifstream file(entry.path());
    if (std::getline(file, line) && line.starts_with("# ")) profile.summary = line.substr(2);
    profiles.push_back(std::move(profile));
  }
  std::sort(profiles.begin(), profiles.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return profiles;
}

}  // namespace lora_train
