#include "lora_train/storage/resolve_model.h"

#include "lora_train/base/error.h"
#include "lora_train/storage/hub_cache.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

/// Whether we read files of this kind; we touch no others in the folder.
bool is_read(const fs::path& file) {
  const fs::path kind = file.extension();
  return kind == ".json" || kind == ".jinja" || kind == ".model" || kind == ".safetensors";
}

/// Reading a pipe or a device in place of a tokenizer or template would never end.
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

  const fs::path snapshot = find_in_hub_cache(*id, HubKind::kModel);
  if (snapshot.empty()) {
    throw FormatError(path_or_id, "no such folder, and " + not_in_hub_cache(*id, HubKind::kModel));
  }
  return {snapshot, id->organisation + "/" + id->name};
}

}  // namespace lora_train::storage
