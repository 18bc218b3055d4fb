#include "lora_train/storage/run_names.h"

#include <algorithm>

#include "lora_train/base/text.h"

namespace lora_train::storage {
namespace {

constexpr const char* kCheckpointFiles[] = {kManifestFile,  kStateFile,     kProfileFile,
                                            kOptimizerFile, kBaseModelFile, kAdapterConfigFile,
                                            kWeightsFile,   kAdapterFile,   kTrainedWithFile};
constexpr const char* kResultFiles[] = {kAdapterConfigFile, kAdapterFile, kBaseModelFile,  kCardFile,
                                        kConfigFile,        kWeightsFile, kGenerationFile, kTrainedWithFile};

bool is_one_of(std::string_view name, const auto& names) { return std::ranges::count(names, name) > 0; }

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{}", kCheckpointPrefix, step); }

std::optional<std::int64_t> checkpoint_step(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kCheckpointPrefix)) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(kCheckpointPrefix.size());
  return digits.starts_with('-') ? std::nullopt : whole_number<std::int64_t>(digits);
}

bool is_run_name(std::string_view name) {
  return name == kMarkerFile || name == kTensorBoardFolder || name == kAdapterFolder || name == kModelFolder ||
         checkpoint_step(name) || is_one_of(name, kReportFiles);
}

bool is_checkpoint_file(std::string_view name) { return is_one_of(name, kCheckpointFiles); }

bool is_result_file(std::string_view name) {
  return is_one_of(name, kResultFiles) || is_one_of(name, kProcessorFiles) || is_tokenizer_file(name);
}

bool is_tokenizer_file(std::string_view name) { return is_one_of(name, kTokenizerFiles); }

bool holds_tokenizer(const std::filesystem::path& folder) {
  std::error_code code;
  return std::ranges::any_of(kVocabularyFiles,
                             [&](const char* name) { return std::filesystem::exists(folder / name, code); });
}

bool holds_adapter(const std::filesystem::path& folder) {
  std::error_code code;
  return std::filesystem::exists(folder / kAdapterConfigFile, code);
}

}  // namespace lora_train::storage
