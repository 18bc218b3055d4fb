#include "lora_train/storage/model_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/run_marker.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFlag = "--output-dir";
constexpr std::size_t kMaxMarkerBytes = 1 << 20;

bool is_licence(const std::string& name) {
  constexpr std::array<const char*, 4> kStarts = {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY"};
  return std::any_of(kStarts.begin(), kStarts.end(), [&](const char* start) { return name.starts_with(start); });
}

bool is_companion(const std::string& name) {
  constexpr std::array<const char*, 5> kEnds = {".json", ".txt", ".jinja", ".model", ".tiktoken"};
  if (name.starts_with(".") || name.ends_with(".index.json")) return false;
  return is_licence(name) ||
         std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return name.ends_with(end); });
}

/// The path without links, "." and a trailing slash. Its last part need not exist.
fs::path full_path(const fs::path& requested) {
  fs::path path = fs::weakly_canonical(fs::absolute(requested));
  return path.has_filename() ? path : path.parent_path();
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto [at, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return at == folder.end();
}

const char* name_of(OutputKind kind) { return kind == OutputKind::kModel ? "model" : "adapter"; }

/// The content of kOutputMarker. Without `files`, the output is not finished: everything in the folder is the
/// program's.
struct OutputMarker {
  std::string holds;
  std::optional<std::vector<std::string>> files;
};

std::optional<OutputMarker> read_output_marker(const fs::path& folder) {
  const fs::path file = folder / kOutputMarker;
  if (path_kind(file) != PathKind::kFile) return std::nullopt;
  try {
    const json object = json::parse(read_start(file, kMaxMarkerBytes));
    if (object.at("made_by") != kMadeBy) return std::nullopt;
    OutputMarker marker{object.at("holds").get<std::string>(), std::nullopt};
    if (object.contains("files")) marker.files = object["files"].get<std::vector<std::string>>();
    return marker;
  } catch (const json::exception&) {
    return std::nullopt;  // someone else's
  }
}

void write_output_marker(const fs::path& folder, const OutputMarker& marker) {
  nlohmann::ordered_json object = {{"made_by", kMadeBy}, {"version", 1}, {"holds", marker.holds}};
  if (marker.files) object["files"] = *marker.files;
  write_file_atomic(folder / kOutputMarker, object.dump(2) + "\n");
}

std::vector<std::string> marked_entries(const fs::path& folder) {
  const auto marker = read_output_marker(folder);
  if (!marker) return {};
  if (!marker->files) return list_folder(folder);
  return own_files(folder, [&](const std::string& name) {
    return name == kOutputMarker || std::ranges::count(*marker->files, name) > 0;
  });
}

/// Refuses to overwrite anything but an output of that kind with nothing else in it.
void check_overwritten(const fs::path& folder, OutputKind kind) {
  const std::string way = ". --overwrite replaces only a " + std::string(name_of(kind)) +
                          " that this program wrote, with nothing else in it: delete the folder yourself, or choose "
                          "another one";
  const auto marker = read_output_marker(folder);
  if (!marker) {
    throw ConfigError(folder.string(), "was not written by lora-train, or by an older version (it has no {}){}",
                      kOutputMarker, way);
  }
  if (marker->holds != name_of(kind)) throw ConfigError(folder.string(), "holds a lora-train {}{}", marker->holds, way);
  const std::vector<std::string> ours = marked_entries(folder);
  for (const auto& name : list_folder(folder)) {
    if (std::ranges::count(ours, name) > 0) continue;
    throw ConfigError(folder.string(), "holds \"{}\", which lora-train did not write{}", name, way);
  }
}

void refuse_full(const fs::path& folder) {
  if (!fs::exists(folder) || fs::is_empty(folder)) return;
  throw ConfigError(folder.string(), "the output folder is not empty: choose another one, or pass --overwrite");
}

fs::path checked_target(const fs::path& requested, OutputKind kind, const std::vector<fs::path>& inputs,
                        bool overwrite) {
  const fs::path folder = full_path(requested);
  for (const auto& input : inputs) {
    if (is_inside(full_path(input), folder)) {
      throw ConfigError(kFlag, "{}{} what this command reads; choose another folder", folder.string(),
                        full_path(input) == folder ? " is" : " holds");
    }
  }
  if (fs::is_symlink(folder)) {  // full_path has followed every other one
    throw ConfigError(folder.string(), "is a link that leads nowhere; a folder was expected");
  }
  if (fs::exists(folder) && !fs::is_directory(folder)) {
    throw ConfigError(folder.string(), "is a file; a folder was expected");
  }
  if (!overwrite) refuse_full(folder);
  if (fs::exists(folder) && !fs::is_empty(folder)) check_overwritten(folder, kind);
  make_folders(folder.parent_path());
  return folder;
}

[[noreturn]] void refuse_busy(const fs::path& target) {
  throw ConfigError(target.string(), "another command is writing this folder now: wait for it, or choose another one");
}

}  // namespace

HeldFolder::HeldFolder(const fs::path& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
  if (!folder_.is_open()) return;
  is_held_ = ::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0;
  is_busy_ = !is_held_ && errno == EWOULDBLOCK;
}

OutputFolder::OutputFolder(const fs::path& requested, OutputKind kind, const std::vector<fs::path>& inputs,
                           bool overwrite)
    : kind_(kind),
      overwrite_(overwrite),
      target_(checked_target(requested, kind, inputs, overwrite)),
      held_target_(target_) {
  if (held_target_.is_busy()) refuse_busy(target_);
  folder_.emplace(target_, marked_entries);
  held_temporary_.emplace(folder_->temporary());
  write_output_marker(folder_->temporary(), {name_of(kind_), std::nullopt});
  delete_leftovers();
}

void OutputFolder::delete_leftovers() const {
  for (const auto& name : list_folder(target_.parent_path())) {
    const fs::path path = target_.parent_path() / name;
    if (name_of_temporary_folder(name) != target_.filename() || path == folder_->temporary()) continue;
    if (path_kind(path) != PathKind::kFolder || !read_output_marker(path)) continue;
    const HeldFolder left(path);
    if (left.is_busy()) refuse_busy(target_);
    if (left.is_held()) {
      discard_folder(path, target_, marked_entries);
    } else {
      log_warning(path.string() +
                  ": another command may still write to it, as this file system has no locks; if none does, delete it");
    }
  }
}

void OutputFolder::write(const std::vector<FileToWrite>& files) { folder_->write(files); }

void OutputFolder::take_files_of(const fs::path& output) {
  for (const auto& name : marked_entries(output)) {
    if (name == kOutputMarker) continue;
    rename_path(output / name, folder_->temporary() / name);
    taken_.push_back(name);
  }
  remove_tree(output);
}

void OutputFolder::commit(const std::function<void(const fs::path& folder)>& check) {
  if (!overwrite_) refuse_full(target_);  // it may have been filled meanwhile
  std::vector<std::string> names = taken_;
  for (const auto& [name, file] : folder_->files()) names.push_back(name);
  write_output_marker(folder_->temporary(), {name_of(kind_), names});
  folder_->commit();
  if (!check) return;
  try {
    check(target_);
  } catch (...) {
    folder_->take_back();
    throw;
  }
}

std::vector<std::string> companion_files(const fs::path& folder) {
  std::vector<std::string> names = list_folder(folder);
  std::erase_if(names, [&](const auto& name) { return !is_companion(name) || !fs::is_regular_file(folder / name); });
  return names;
}

FileToWrite copy_of(const fs::path& file) {
  require_regular_file(file);
  return {file.filename().string(), read_file(file)};
}

void add_tool_template(const std::string& tool_use, std::vector<FileToWrite>& files) {
  constexpr const char *kConfig = "tokenizer_config.json", *kTemplate = "chat_template.jinja";
  if (std::ranges::count(files, kConfig, &FileToWrite::name) == 0) files.push_back({kConfig, "{}"});
  std::string& text = std::ranges::find(files, kConfig, &FileToWrite::name)->text;
  auto config = nlohmann::ordered_json::parse(text);
  nlohmann::ordered_json& chats = config["chat_template"];
  const auto of_chats = std::ranges::find(files, kTemplate, &FileToWrite::name);
  if (of_chats != files.end()) chats = of_chats->text;
  chats = {{{"name", "default"}, {"template", chats}}, {{"name", "tool_use"}, {"template", tool_use}}};
  text = config.dump(2) + "\n";
  std::erase_if(files, [](const FileToWrite& file) { return file.name == kTemplate; });
}

void copy_tool_template(const fs::path& folder, std::vector<FileToWrite>& files) {
  if (fs::exists(tool_template_file(folder))) add_tool_template(read_file(tool_template_file(folder)), files);
}

fs::path tool_template_file(const fs::path& folder) { return folder / "additional_chat_templates" / "tool_use.jinja"; }

}  // namespace lora_train::storage
