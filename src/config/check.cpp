#include "lora_train/config/check.h"

#include <algorithm>
#include <fstream>

namespace lora_train {

std::vector<UnbuiltFeature> unbuilt_features(const Profile& profile) {
  const BasePrecision base = profile.model.base_precision;
  const Precision precision = profile.model.precision;
  const bool is_other = (base == BasePrecision::kBf16 && precision == Precision::kFp32) ||
                        (base == BasePrecision::kFp32 && precision == Precision::kBf16);
  if (!is_other) return {};
  return {
      {"base_precision", "one other than precision is not built yet. Leave base_precision out; it follows precision."}};
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
