// Shared by commands that let a model answer: the sampling flags (or generation_config.json), the length of answers,
// and the settings that affect them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "command_line.h"
#include "lora_train/config/sampling.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/generate/prompt.h"
#include "lora_train/teach/generation_file.h"
#include "open_model.h"

namespace lora_train::cli {

/// The largest --max-new-tokens.
inline constexpr std::int64_t kMaxNewTokens = 2147483647;

class SamplingFlags {
 public:
  /// Parsing refuses flags that are out of range (config/sampling.h).
  explicit SamplingFlags(CommandParser& parser);
  SamplingFlags(const SamplingFlags&) = delete;
  SamplingFlags& operator=(const SamplingFlags&) = delete;

  /// A given flag wins, then with --generation-config the model's file, then greedy. Throws ConfigError for a flag that
  /// has no effect without a temperature, and, with --generation-config, if the file is missing or asks for something
  /// unsupported (penalties, beams); FormatError for a malformed one and for values out of range.
  SamplingOptions options(const CommandParser& parser, const std::filesystem::path& model_folder) const;

 private:
  std::optional<double> temperature_, top_p_, min_p_;
  std::optional<std::int64_t> top_k_;
  std::uint64_t seed_ = 42;
  bool use_generation_config_ = false;
};

/// Refuses a text that is not UTF-8.
void check_text(const CommandParser& parser, const char* flag, const std::string& text);
/// The values of --stop; also refuses an empty one.
void check_stop_strings(const CommandParser& parser, const std::vector<std::string>& texts);

/// Prompts for the model; index and id are their places. An answer may have max_new_tokens tokens, or fewer, with a
/// warning, if the context leaves fewer. Throws DataError for a prompt that leaves none.
std::vector<generate::Prompt> prompts_to_ask(const std::vector<data::Prompt>& given, const lora::ModelFiles& files,
                                             const SamplingOptions& sampling, std::int64_t max_new_tokens);

/// The model's settings that affect the answers; "model" comes first. `adapter` as given.
teach::GenerationSettings model_settings(const ModelSection& section, const std::string& adapter,
                                         const lora::ModelFiles& files, bool is_raw);

}  // namespace lora_train::cli
