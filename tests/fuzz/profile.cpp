// Profiles, YAML or JSON: what loads is the same profile when it is written and loaded again.
#include "fuzz/refusal.h"
#include "lora_train/config/load.h"

namespace {

using namespace lora_train;  // NOLINT: the names under test

LoadedProfile load(const std::filesystem::path& file) {
  ProfileSources sources;
  sources.profiles = {file.string()};
  sources.environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "HOME") return "/home/somebody";
    if (name == "ODD") return "a \"b\" ${HOME} {seed}: #";
    return std::nullopt;
  };
  return load_profile(sources);
}

void expect_same(const Profile& one, const fuzz::InputFile& copy, const std::string& text) {
  copy.write_beside(copy.path().filename().string(), text);
  try {
    const Profile other = load(copy.path()).profile;
    fuzz::require(to_yaml(other) == to_yaml(one), "another profile:\n" + to_yaml(one) + "becomes\n" + to_yaml(other));
    fuzz::require(profile_hash(other) == profile_hash(one) && diff_profiles(one, other).empty(), "another hash");
  } catch (const Error& error) {
    fuzz::fail("a written profile is refused: " + std::string(error.what()) + "\n" + text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::InputFile file("profile.yaml"), copy("copy.yaml");
  file.write(data, size);
  fuzz::accepts([&] {
    const LoadedProfile loaded = load(file.path());
    expect_same(loaded.profile, copy, to_yaml(loaded.profile));
    expect_same(loaded.profile, copy, to_yaml(loaded));
    const std::string json = to_json(loaded.profile);  // for programs: has "${" as it is, which a profile would replace
    if (json.find("${") == std::string::npos) expect_same(loaded.profile, copy, json);
  });
  return 0;
}
