// plan_push of lora_train/hub/push.h.
#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/hub/push.h"

namespace lora_train::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCard = "README.md";
constexpr const char* kTemplates = "additional_chat_templates";

bool is_adapter(const fs::path& folder) { return fs::exists(folder / "adapter_config.json"); }

bool is_model(const fs::path& folder) { return fs::exists(folder / "config.json"); }

/// The result of a run, or the folder itself.
fs::path find_result(const fs::path& given) {
  if (!fs::is_directory(given))
    throw FormatError(given.string(), "no such folder; expected an adapter, a model, or the output_dir of a run.");
  if (is_adapter(given) || is_model(given)) return given;
  if (is_adapter(given / "adapter")) return given / "adapter";
  if (is_model(given / "model")) return given / "model";
  throw FormatError(given.string(),
                    "is no adapter (adapter_config.json), no model (config.json) and no run with a result (adapter/ or "
                    "model/).");
}

/// Files of a checkpoint of ours, which a user of the adapter does not need.
bool is_of_checkpoint(std::string_view name) {
  return name == "optimizer.safetensors" || name == "trainer_state.json" || name == "manifest.json" ||
         name == "run.json";
}

/// The card of a result names the folder it lies in, in lines to paste: for readers on the hub that is org/name.
std::string card_for_hub(std::string card, const std::string& name) {
  constexpr std::string_view kBefore = "PeftModel.from_pretrained(base, \"";
  const auto begin = card.find(kBefore);
  if (begin == std::string::npos) return card;
  const auto end = card.find('"', begin + kBefore.size());
  if (end == std::string::npos) return card;
  const std::string folder = card.substr(begin + kBefore.size(), end - begin - kBefore.size());
  if (folder.empty()) return card;
  for (auto at = card.find(folder); at != std::string::npos; at = card.find(folder, at + name.size()))
    card.replace(at, folder.size(), name);
  return card;
}

PushFile file_to_push(const fs::path& file, const std::string& path, const std::string& name) {
  PushFile pushed{.path = path, .file = file, .num_bytes = fs::file_size(file)};
  if (path == kCard) {
    pushed.text = card_for_hub(read_file(file), name);
    pushed.num_bytes = pushed.text->size();
  }
  return pushed;
}

}  // namespace

PushPlan plan_push(const fs::path& given, const std::string& name) {
  PushPlan plan;
  plan.folder = find_result(given);
  for (const std::string& entry : list_folder(plan.folder)) {
    const fs::path path = plan.folder / entry;
    if (fs::is_regular_file(path) && entry.front() != '.' && !is_of_checkpoint(entry)) {
      plan.files.push_back(file_to_push(path, entry, name));
      plan.has_card |= entry == kCard;
    } else if (fs::is_directory(path) && entry == kTemplates) {
      for (const std::string& inner : list_folder(path))
        if (fs::is_regular_file(path / inner))
          plan.files.push_back(file_to_push(path / inner, entry + "/" + inner, name));
    } else {
      plan.skipped.push_back(entry);
    }
  }
  return plan;
}

}  // namespace lora_train::hub
