#include "lora_train/lora/adapter_tensors.h"

#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::lora {
namespace {

/// '; adapter_config.json names the base model "org/name"', or nothing if it names none.
std::string base_in_words(const std::filesystem::path& folder) {
  try {
    const std::string name = read_adapter_config(folder).base_model_name_or_path;
    return name.empty() ? "" : fmt::format("; adapter_config.json names the base model \"{}\"", name);
  } catch (const Error&) {
    return "";
  }
}

/// After a resize, PEFT saves the whole embedding and head with the trained rows, and the rows of a tied head again.
/// Only the rows were trained.
bool is_saved_after_resize(const storage::WeightFiles& file, const std::string& name) {
  if (file.find(kSavedEmbedding) == nullptr) return false;
  const std::string head = "base_model.model.lm_head.";
  return name == kSavedEmbedding || name == head + "weight" || name == head + "token_adapter.base_layer.weight" ||
         name == model::kHeadRows;
}

void check_tensor(const storage::WeightFiles& file, const model::Parameter& expected,
                  const std::filesystem::path& folder) {
  const storage::TensorEntry* entry = file.find(expected.name);
  const std::string where = entry != nullptr
                                ? file.where(*entry)
                                : fmt::format("{}: {}", file.files().front().path().string(), expected.name);
  if (entry == nullptr) {
    const bool is_of_rows = expected.name == model::kEmbeddingRows || expected.name == model::kHeadRows;
    throw FormatError(where, std::string("is missing, but adapter_config.json ") +
                                 (is_of_rows ? "has trainable_token_indices" : "targets this linear") +
                                 base_in_words(folder));
  }
  if (entry->shape != expected.shape) {
    throw FormatError(where, "is {}, expected shape {}; the adapter belongs to another model or rank{}",
                      storage::describe(*entry), storage::show_shape(expected.shape), base_in_words(folder));
  }
  if (!storage::is_weight_dtype(entry->dtype)) {
    throw FormatError(where, "is {}; expected F32, F16 or BF16: save the adapter again", storage::describe(*entry));
  }
}

}  // namespace

storage::WeightFiles open_adapter_file(const std::filesystem::path& folder) {
  const auto path = folder / storage::kAdapterFile;
  if (!std::filesystem::exists(path)) {
    throw FormatError(path.string(), "is missing; expected a PEFT adapter folder with adapter_config.json and " +
                                         std::string(storage::kAdapterFile) +
                                         " (.bin adapters are not supported: save with safetensors)");
  }
  storage::WeightFiles file({storage::SafetensorsFile(path)});
  file.rename(model::text_class_name);
  return file;
}

storage::WeightFiles open_adapter_tensors(const std::filesystem::path& folder,
                                          const std::vector<model::Parameter>& expected) {
  storage::WeightFiles file = open_adapter_file(folder);
  std::set<std::string> names;
  for (const auto& tensor : expected) {
    names.insert(tensor.name);
    check_tensor(file, tensor, folder);
  }
  for (const auto& [name, entry] : file.entries()) {
    if (!names.contains(name) && !is_saved_after_resize(file, name)) {
      throw FormatError(file.where(entry),
                        "is not a LoRA tensor that adapter_config.json describes for this model; it would be ignored" +
                            base_in_words(folder));
    }
  }
  if (file.find(kSavedEmbedding) != nullptr) {
    log_info(file.files().front().path().string() + ": also holds the whole embedding, as PEFT saves it after a " +
             "resize; only its trained rows are used");
  }
  return file;
}

void refuse_non_finite(const storage::WeightFiles& file, const storage::TensorEntry& entry) {
  throw FormatError(file.where(entry), "holds NaN or infinity");
}

}  // namespace lora_train::lora
