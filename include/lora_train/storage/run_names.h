// Names of everything in a run's folder (output_dir). docs/formats.md says what each holds.
//
//   .lora-train.lock      run.json, profile.yaml, run.log, metrics.jsonl, eval_losses.jsonl, eval_answers.jsonl,
//                         summary.json, report.html, curves.png
//   tensorboard/          events.out.tfevents.*
//   checkpoint-<step>/    manifest.json, trainer_state.json, profile.yaml, lora_train.json, optimizer.safetensors, and
//                         the tensors of adapter/ or model/ at that step
//   adapter/              adapter_config.json, adapter_model.safetensors, base_model.json, lora_train.json, README.md,
//                         tokenizer files
//   model/                config.json, generation_config.json, model.safetensors, lora_train.json, README.md, tokenizer
//                         files
//   .lora-train-replaced/ a run that --overwrite replaces, until the new one has saved something
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lora_train::storage {

inline constexpr const char* kLockFile = ".lora-train.lock";  ///< locked by the process that trains in the folder
inline constexpr const char* kMarkerFile = "run.json";
inline constexpr const char* kProfileFile = "profile.yaml";
inline constexpr const char* kLogFile = "run.log";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kDocumentLossesFile = "eval_losses.jsonl";
inline constexpr const char* kEvalAnswersFile = "eval_answers.jsonl";
inline constexpr const char* kSummaryFile = "summary.json";
inline constexpr const char* kPageFile = "report.html";
inline constexpr const char* kCurvesFile = "curves.png";
/// The files that a run writes next to its marker.
inline constexpr const char* kReportFiles[] = {kProfileFile, kLogFile,     kMetricsFile,        kPageFile,
                                               kCurvesFile,  kSummaryFile, kDocumentLossesFile, kEvalAnswersFile};

inline constexpr const char* kTensorBoardFolder = "tensorboard";
inline constexpr const char* kEventFilePrefix = "events.out.tfevents.";
inline constexpr const char* kReplacedFolder = ".lora-train-replaced";

inline constexpr std::string_view kCheckpointPrefix = "checkpoint-";
/// checkpoint-<step>.
std::string checkpoint_name(std::int64_t step);
/// The step in the last part of a path; nothing for other names.
std::optional<std::int64_t> checkpoint_step(const std::filesystem::path& folder);

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kStateFile = "trainer_state.json";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";

inline constexpr const char* kAdapterFolder = "adapter";
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
inline constexpr const char* kBaseModelFile = "base_model.json";
inline constexpr const char* kTrainedWithFile = "lora_train.json";
inline constexpr const char* kCardFile = "README.md";

inline constexpr const char* kModelFolder = "model";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kGenerationFile = "generation_config.json";

/// The tokenizer files of a Hugging Face folder, which are copied along with a model.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer.model", "tekken.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json",      "merges.txt",  "chat_template.jinja"};

/// Those of them that hold a whole vocabulary: one of them makes a folder a tokenizer's.
inline constexpr const char* kVocabularyFiles[] = {kTokenizerFiles[0], kTokenizerFiles[1], kTokenizerFiles[2]};

/// What a class with towers needs beside its weights to read images and audio.
inline constexpr const char* kProcessorFiles[] = {"preprocessor_config.json", "processor_config.json",
                                                  "video_preprocessor_config.json"};

/// True if a run writes a file or folder of this name in its folder. The lock and the replaced run are not the run's.
bool is_run_name(std::string_view name);
/// The same for its checkpoints.
bool is_checkpoint_file(std::string_view name);
/// The same for adapter/ and model/.
bool is_result_file(std::string_view name);
/// True for the name of one of kTokenizerFiles.
bool is_tokenizer_file(std::string_view name);

/// True if the folder exists and holds one of kVocabularyFiles.
bool holds_tokenizer(const std::filesystem::path& folder);
/// The same for adapter_config.json.
bool holds_adapter(const std::filesystem::path& folder);

}  // namespace lora_train::storage
