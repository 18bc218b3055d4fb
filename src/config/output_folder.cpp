#include "output_folder.h"

#include <algorithm>
#include <filesystem>

#include "lora_train/base/text.h"
#include "lora_train/config/keys/field.h"

namespace lora_train {
namespace {

std::string folder_text(const Field& field, const Profile& profile) {
  const Value value = field.write(profile);
  if (value.is_null()) return "none";
  std::string text = value.text;
  if (text.starts_with('/') || text.starts_with('.')) {
    std::filesystem::path path(text);
    text = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  }
  std::replace(text.begin(), text.end(), '/', '-');
  return text;
}

}  // namespace

void expand_output_dir(Profile& profile, const Place& place, Findings& findings) {
  const std::string given = profile.run.output_dir;
  std::string out;
  std::size_t at = 0;
  for (std::size_t open = given.find('{'); open != std::string::npos; open = given.find('{', at)) {
    const std::size_t close = given.find('}', open);
    if (close == std::string::npos) {
      findings.mistake(place, "output_dir", "\"" + given.substr(open) + "\" has no closing brace. Expected {key}.");
      return;
    }
    const std::string key = given.substr(open + 1, close - open - 1);
    const Field* field = key == "output_dir" ? nullptr : find_field(key);
    if (!field || !field->is_scalar) {
      const std::string near = nearest_name(key, field_names());
      findings.mistake(place, "output_dir",
                       "{" + key + "} " + (field ? "is a list or a map" : "is not a key") +
                           ". Expected a key with a single value, such as {learning_rate}." +
                           (field || near.empty() ? "" : " Did you mean {" + near + "}?"));
      return;
    }
    const std::string text = folder_text(*field, profile);
    if (text.find_first_of("{}") != std::string::npos) {  // a written profile is expanded again when it is read
      findings.mistake(place, "output_dir", "{" + key + "} is \"" + text + "\"; a folder name cannot contain a brace.");
      return;
    }
    if (text == "." || text == ".." || text == "~") {
      findings.mistake(place, "output_dir", "{" + key + "} is \"" + text + "\", which leads to another folder.");
      return;
    }
    out += given.substr(at, open - at) + text;
    at = close + 1;
  }
  profile.run.output_dir = out + given.substr(at);
}

}  // namespace lora_train
