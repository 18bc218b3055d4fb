// Inspects the examples of a dataset before anything is tokenised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/data/read/dataset_files.h"

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

struct FirstExamplesOptions {
  DatasetUse use = DatasetUse::kTraining;
  OnBadRow on_bad_row = OnBadRow::kError;
  /// As in EncodeOptions; null if there is none.
  const tokenizer::Tokenizer* tokenizer = nullptr;
  const tokenizer::ChatTemplate* chat_template = nullptr;
  LossOn loss_on = LossOn::kAuto;
  Thinking thinking = Thinking::kTemplate;
  bool is_model_known = true;  ///< false: the model is not on this machine, so examples are only parsed
};

struct FirstExamples {
  DatasetType type = DatasetType::kAuto;   ///< layout of the examples
  std::string reason;                      ///< for the log: "the first example has messages"
  std::int64_t num_examples = 0;           ///< examples read
  std::vector<std::string> warnings = {};  ///< chats only: doubts that the model can learn to stop with this template
};

/// Reads up to 20 examples of the first file as training would, through template and tokenizer. Throws what training
/// would: DataError for a bad example, unless bad examples are dropped and another example can be read; and whatever
/// check_loss_on(), dataset_files() and the file throw.
FirstExamples look_at_first_examples(const DatasetSpec& spec, const FirstExamplesOptions& options);

/// A prompt to try on a run's result from the command line.
struct ShortPrompt {
  std::string text;
  bool is_raw = false;  ///< from prompt/completion examples, which do not use the chat template
};

/// The first one-line prompt of at most 80 characters among the first 20 examples; in a chat, the question must be
/// alone with its answer. nullopt if there is none or the examples cannot be read.
std::optional<ShortPrompt> first_short_prompt(const DatasetSpec& spec, DatasetUse use);

// These read a file of JSON examples (.jsonl, .ndjson, .json; not compressed). They never throw: unreadable data count
// as missing.

/// Key names of the first examples, each once.
std::vector<std::string> example_keys(const std::filesystem::path& file, std::size_t most_examples = 1000);

/// True if the string `text`, in quotes, occurs anywhere in the examples.
bool has_string(const std::filesystem::path& file, const std::string& text);

/// nullopt if the file is missing or of another kind.
std::optional<std::size_t> count_examples(const std::filesystem::path& file);

}  // namespace lora_train::data
