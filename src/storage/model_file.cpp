#include "lora_train/storage/model_file.h"

#include <system_error>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/hub_cache.h"

namespace lora_train::storage {

void require_regular_file(const std::filesystem::path& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return;
  throw FormatError(path.string(), std::filesystem::is_directory(status)
                                       ? "is a folder; a regular file was expected"
                                       : "is a pipe, a socket or a device; a regular file was expected");
}

void refuse_lfs_pointer(std::string_view content, const std::string& path) {
  if (!content.starts_with("version https://git-lfs.github")) return;
  throw FormatError(path, "this is a Git LFS pointer, not the file it stands for: run `git lfs pull` in its folder");
}

std::string read_model_file(const std::filesystem::path& path) {
  require_regular_file(path);
  std::string bytes = read_file(path);
  refuse_lfs_pointer(bytes, path.string());
  return bytes;
}

std::string read_model_text(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMaxBytes = 100'000'000;  // as the header of a safetensors file
  require_regular_file(path);
  std::error_code code;
  const std::uintmax_t size = std::filesystem::file_size(path, code);
  if (!code && size > kMaxBytes) {
    throw FormatError(path.string(), "has {} bytes; at most {} were expected: download or save the file again", size,
                      kMaxBytes);
  }
  std::string text = read_file(path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw FormatError(path.string(), "the file is empty: download or save it again");
  }
  refuse_lfs_pointer(text, path.string());
  return text;
}

namespace {

namespace fs = std::filesystem;

/// True if we read files of this kind; we touch no others in the folder.
bool is_read(const fs::path& file) {
  const fs::path kind = file.extension();
  return kind == ".json" || kind == ".jinja" || kind == ".model" || kind == ".safetensors";
}

/// Reading a pipe or a device instead of a tokenizer or template would never end.
void refuse_pipes(const fs::path& folder) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (is_read(entry.path()) && !entry.is_directory(code)) require_regular_file(entry.path());
  }
}

}  // namespace

ResolvedModel resolve_model(const std::string& path_or_id) {
  const fs::path path = path_or_id;
  if (fs::is_directory(path)) {
    refuse_pipes(path);
    return {path, ""};
  }
  if (fs::exists(path)) {
    throw FormatError(path_or_id,
                      "is a file; expected the folder of a Hugging Face model (config.json, weights, tokenizer)");
  }
  const auto id = parse_hub_id(path_or_id);
  if (!id)
    throw FormatError(path_or_id, "no such folder, and not a Hugging Face Hub name of the form org/name[@revision]");

  const fs::path snapshot = find_in_hub_cache(*id);
  if (snapshot.empty()) {
    throw FormatError(path_or_id, "no such folder, and " + not_in_hub_cache(*id));
  }
  return {snapshot, id->full_name()};
}

}  // namespace lora_train::storage
