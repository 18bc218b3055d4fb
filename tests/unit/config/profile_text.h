// Loads profiles from text, with an environment of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/config/load.h"
#include "support/temporary_folder.h"

namespace lora_train::testing_support {

class ProfileText {
 public:
  /// Writes a file beside the others; the result is its path.
  std::string write(const std::string& name, const std::string& text) const {
    const auto path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }

  /// Loads "profile.yaml" with this text and these settings.
  LoadedProfile load(const std::string& text, const std::vector<std::string>& settings = {}) const {
    return load_files({write("profile.yaml", text)}, settings);
  }

  Profile profile(const std::string& text, const std::vector<std::string>& settings = {}) const {
    return load(text, settings).profile;
  }

  LoadedProfile load_files(const std::vector<std::string>& files, const std::vector<std::string>& settings = {}) const {
    ProfileSources sources;
    sources.profiles = files;
    sources.shipped = {folder_ / "shipped"};
    sources.needs_model = sources.needs_datasets = false;
    sources.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = environment.find(name);
      return found == environment.end() ? std::nullopt : std::optional(found->second);
    };
    for (const auto& setting : settings) sources.overrides.push_back(parse_override(setting));
    return load_profile(sources);
  }

  /// what() of the ConfigError that loading throws, with the folder's name taken out; empty when it throws none.
  std::string error(const std::string& text, const std::vector<std::string>& settings = {}) const {
    return error_of([&] { load(text, settings); });
  }
  std::string error_of_files(const std::vector<std::string>& files,
                             const std::vector<std::string>& settings = {}) const {
    return error_of([&] { load_files(files, settings); });
  }

  template <class Action>
  std::string error_of(Action action) const {
    try {
      action();
    } catch (const ConfigError& error) {
      std::string text = error.what();
      const std::string prefix = folder_.path().string() + "/";
      for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix)) {
        text.erase(at, prefix.size());
      }
      return text;
    }
    return {};
  }

  const std::filesystem::path& folder() const { return folder_.path(); }

  std::map<std::string, std::string> environment;

 private:
  TemporaryFolder folder_;
};

/// A profile, how its error begins, and a part of it.
struct Mistake {
  std::string text, start, part = {};
};

inline void expect_mistake(const std::string& error, const std::string& start, const std::string& part = "") {
  EXPECT_TRUE(error.starts_with(start)) << error.substr(0, 300) << "\ndoes not start with " << start;
  EXPECT_NE(error.find(part), std::string::npos) << part << " is not in " << error.substr(0, 1000);
  EXPECT_LT(error.size(), 10'000U);
}

inline void expect_mistakes(const std::vector<Mistake>& cases) {
  const ProfileText files;
  for (const auto& [text, start, part] : cases) {
    SCOPED_TRACE(text.substr(0, 100));
    expect_mistake(files.error(text), start, part);
  }
}

/// That there is just one note or warning, and it holds `part`.
inline void expect_one(const std::vector<std::string>& said, const std::string& part) {
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find(part), std::string::npos) << said[0];
}

}  // namespace lora_train::testing_support
