// Files that a profile names and that are not there.
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

bool has_pattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

bool matches_something(const std::string& pattern) {
  glob_t found{};
  const bool has_match = ::glob(pattern.c_str(), 0, nullptr, &found) == 0 && found.gl_pathc > 0;
  ::globfree(&found);
  return has_match;
}

// "org/name" or "org/name@revision" is looked up in the Hugging Face cache by whoever loads the model.
bool looks_like_path(const std::string& model) {
  if (model.starts_with('/') || model.starts_with('.')) return true;
  const auto slashes = std::count(model.begin(), model.end(), '/');
  return slashes != 1 || model.ends_with('/');
}

class Search {
 public:
  explicit Search(const LoadedProfile& loaded) : loaded_(loaded) {}

  void need(const std::string& key, const std::string& label, const std::string& path, const std::string& expected) {
    std::error_code code;
    if (fs::exists(path, code) || (has_pattern(path) && matches_something(path))) return;
    const auto origin = loaded_.origin.find(key);
    const std::string where =
        origin == loaded_.origin.end() || origin->second == "default" ? "" : origin->second + ": ";
    lines.push_back(where + label + ": no " + (has_pattern(path) ? "file matches" : "such file or folder") + " \"" +
                    path + "\". Expected " + expected + "; relative paths start in " + fs::current_path().string() +
                    ".");
  }

  std::vector<std::string> lines;

 private:
  const LoadedProfile& loaded_;
};

}  // namespace

std::vector<std::string> missing_files(const LoadedProfile& loaded) {
  const Profile& profile = loaded.profile;
  Search search(loaded);
  std::error_code code;
  if (!profile.model.path.empty() && looks_like_path(profile.model.path)) {
    search.need("model", "model", profile.model.path, "a Hugging Face folder");
  }
  if (profile.model.chat_template != "tokenizer") {
    search.need("chat_template", "chat_template", profile.model.chat_template, "tokenizer, or a .jinja file");
  }
  if (!profile.adapter.init_adapter.empty())
    search.need("init_adapter", "init_adapter", profile.adapter.init_adapter, "a PEFT folder");
  const auto need_data = [&](const std::string& key, const std::vector<DatasetSpec>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      search.need(key, key + "[" + std::to_string(i) + "].path", list[i].path, "a file, a folder or a glob");
    }
  };
  need_data("datasets", profile.data.datasets);
  need_data("eval_datasets", profile.data.eval_datasets);
  const std::string& resume = profile.run.resume_from_checkpoint;
  // One of the run itself may be gone when the same command comes again: train knows what to do.
  const bool is_of_the_run =
      std::filesystem::path(resume).parent_path() == std::filesystem::path(profile.run.output_dir);
  if (resume != "auto" && resume != "none" && !is_of_the_run) {
    search.need("resume_from_checkpoint", "resume_from_checkpoint", resume, "auto, none or a checkpoint folder");
  }
  return search.lines;
}

void refuse_missing_files(const LoadedProfile& loaded) {
  const std::vector<std::string> lines = missing_files(loaded);
  if (!lines.empty()) throw ConfigError("", join(lines, "\n"));
}

}  // namespace lora_train
