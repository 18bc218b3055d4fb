#include "needed_files.h"

#include <algorithm>

#include "lora_train/base/text.h"

namespace lora_train::hub {
namespace {

bool has_ending(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_in_root(std::string_view path) { return path.find('/') == std::string_view::npos; }

bool is_weights(std::string_view path) { return is_in_root(path) && path.ends_with(".safetensors"); }

bool is_foreign_weights(std::string_view path) {
  return has_ending(path, {".bin", ".pth", ".pt", ".gguf", ".onnx", ".h5", ".msgpack", ".ckpt"});
}

/// The same weights once more, in Mistral's own layout.
bool is_second_copy(std::string_view path) { return path.starts_with("consolidated"); }

bool is_text_file(std::string_view path) {
  if (path.starts_with("additional_chat_templates/")) return path.ends_with(".jinja");
  if (!is_in_root(path)) return false;
  if (path.ends_with(".index.json")) return path.ends_with(".safetensors.index.json");
  const std::string name = lower_case(std::string(path));
  return has_ending(path, {".json", ".jinja", ".model", ".tiktoken"}) || path == "merges.txt" || path == "vocab.txt" ||
         name.starts_with("readme") || name.starts_with("license") || name.starts_with("notice");
}

}  // namespace

NeededFiles needed_files(const std::vector<RepositoryFile>& files, const std::string& repository) {
  const bool has_first_copy = std::ranges::any_of(
      files, [](const RepositoryFile& file) { return is_weights(file.path) && !is_second_copy(file.path); });
  NeededFiles result;
  bool has_weights = false;
  for (const RepositoryFile& file : files) {
    const bool is_copy = has_first_copy && is_second_copy(file.path);
    const bool is_needed = !is_copy && (is_weights(file.path) || is_text_file(file.path));
    has_weights |= is_needed && is_weights(file.path);
    (is_needed ? result.needed : result.skipped).push_back(file);
  }
  const auto foreign =
      std::ranges::find_if(files, [](const RepositoryFile& file) { return is_foreign_weights(file.path); });
  if (!has_weights && foreign != files.end())
    throw FormatError(repository, "has no .safetensors files, the only weights that lora-train reads, but " +
                                      foreign->path + ". Nothing was downloaded; --all downloads every file.");
  return result;
}

}  // namespace lora_train::hub
