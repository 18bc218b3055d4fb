#include "lora_train/data/first_examples.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "document_checks.h"
#include "encode/encode_sample.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/data/prepare.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "read/example_format.h"
#include "read/example_reader.h"

namespace lora_train::data {
namespace {

constexpr std::int64_t kMostExamples = 20;

bool is_short_line(const std::string& text) {
  constexpr std::size_t kMostChars = 80;
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
  return !is_blank(text) && count_chars(text) <= kMostChars && std::ranges::none_of(text, is_control);
}

std::optional<ShortPrompt> short_prompt_of(const Sample& sample) {
  if (const auto* text = std::get_if<TextSample>(&sample); text != nullptr && is_short_line(text->prompt))
    return ShortPrompt{text->prompt, /*is_raw=*/true};
  const auto* chat = std::get_if<ChatSample>(&sample);
  if (chat == nullptr || chat->messages.size() != 2 || !chat->tools_json.empty()) return std::nullopt;
  const tokenizer::Message& question = chat->messages.front();
  if (question.role != "user" || !is_short_line(question.content)) return std::nullopt;
  return ShortPrompt{question.content, /*is_raw=*/false};
}

std::vector<std::string> pieces_of(std::span<const std::int32_t> ids, const tokenizer::Tokenizer& tokenizer) {
  constexpr std::size_t kMaxTokensOfACharacter = 8;  // keeps non-text examples linear
  tokenizer::TextStream stream(tokenizer, {.skip_special = false, .max_held = kMaxTokensOfACharacter});
  std::vector<std::string> pieces;
  for (const std::int32_t id : ids) pieces.push_back(stream.push(id));
  if (!pieces.empty()) pieces.back() += stream.finish();
  return pieces;
}

bool is_json_file(const std::filesystem::path& file) {
  const std::string ending = lower_case(file.extension().string());
  std::error_code code;
  return (ending == ".jsonl" || ending == ".json" || ending == ".ndjson") &&
         std::filesystem::is_regular_file(file, code);
}

/// Stops when on_block returns false or the file cannot be read; the run will report the problem.
void look_at_blocks(const std::filesystem::path& file, const std::function<bool(ExampleBlock&&)>& on_block) {
  if (!is_json_file(file)) return;
  try {
    const auto reader = ExampleReader::open(file);
    for (auto block = reader->next(); block && on_block(std::move(*block));) block = reader->next();
  } catch (const DataError&) {
  } catch (const IoError&) {
  }
}

/// The good examples among the first ones.
std::vector<Json> first_examples_of(const std::filesystem::path& file, std::size_t most_examples) {
  std::vector<Json> examples;
  std::size_t num_read = 0;
  look_at_blocks(file, [&](ExampleBlock&& block) {
    if (block.examples.size() > most_examples - num_read) block.examples.resize(most_examples - num_read);
    num_read += block.examples.size();
    for (RawExample& example : parse_examples(std::move(block))) {
      if (!example.is_bad) examples.push_back(std::move(example.value));
    }
    return num_read < most_examples;
  });
  return examples;
}

}  // namespace

FirstExamples look_at_first_examples(const DatasetSpec& spec, const FirstExamplesOptions& options) {
  check_field_map(spec.field_map);
  FirstExamples found{.type = spec.type, .reason = "type: " + to_string(spec.type)};
  const EncodeOptions encode{.tokenizer = options.tokenizer,
                             .chat_template = options.chat_template,
                             .loss_on = options.loss_on,
                             .thinking = options.thinking,
                             .null_fields = spec.null_fields};
  const auto look_at = [&](const Json& value) {
    if (found.type == DatasetType::kAuto) {
      Detection layout = detect_layout(value, spec.field_map);
      found.type = layout.type;
      found.reason = std::move(layout.reason);
    }
    if (spec.type == DatasetType::kAuto) check_same_layout(value, found.type, spec.field_map);
    const Sample sample = parse_example(value, found.type, spec.field_map);
    if (!options.is_model_known) return;
    check_loss_on(found.type, encode);
    encode_sample(sample, encode);
  };
  std::optional<DataError> first_error;
  bool has_good_example = false;
  for_each_example(dataset_files(spec, options.use).front(), [&](RawExample&& example) {
    ++found.num_examples;
    try {
      use_example(example, look_at);
      has_good_example = true;
    } catch (const DataError& error) {
      if (options.on_bad_row == OnBadRow::kError) throw;
      if (!first_error) first_error = error;
    }
    return found.num_examples < kMostExamples;
  });
  if (!has_good_example && first_error) throw DataError(*first_error);
  if (options.is_model_known && is_chat(found.type))
    found.warnings = audit_stop_token(*options.tokenizer, *options.chat_template, {}).warnings;
  return found;
}

std::optional<ShortPrompt> first_short_prompt(const DatasetSpec& spec, DatasetUse use) {
  std::optional<ShortPrompt> prompt;
  try {
    DatasetType type = spec.type;
    std::int64_t num_examples = 0;
    for_each_example(dataset_files(spec, use).front(), [&](RawExample&& example) {
      if (!example.is_bad) {
        if (type == DatasetType::kAuto) type = detect_layout(example.value, spec.field_map).type;
        prompt = short_prompt_of(parse_example(example.value, type, spec.field_map));
      }
      return !prompt && ++num_examples < kMostExamples;
    });
  } catch (const Error&) {  // training has already reported bad examples
  }
  return prompt;
}

std::vector<std::string> example_keys(const std::filesystem::path& file, std::size_t most_examples) {
  std::vector<std::string> keys;
  for (const Json& example : first_examples_of(file, most_examples)) {
    for (const auto& field : example.items()) {
      if (std::ranges::count(keys, field.key()) == 0) keys.push_back(field.key());
    }
  }
  return keys;
}

bool has_string(const std::filesystem::path& file, const std::string& text) {
  const std::string quoted = '"' + text + '"';
  bool is_found = false;
  look_at_blocks(file, [&](ExampleBlock&& block) {
    is_found = block.text.find(quoted) != std::string::npos;
    return !is_found;
  });
  return is_found;
}

std::optional<std::size_t> count_examples(const std::filesystem::path& file) {
  if (!is_json_file(file)) return std::nullopt;
  std::size_t count = 0;
  look_at_blocks(file, [&](ExampleBlock&& block) {
    count += block.examples.size();
    return true;
  });
  return count;
}

void read_texts(const std::string& file, const std::function<void(const std::string&)>& on_text) {
  for_each_example(file, [&](RawExample&& example) {
    use_example(example, [&](const Json& value) { on_text(string_of(required(value, {}, "text"), "text")); });
    return true;
  });
}

std::vector<ExampleView> view_examples(const DocumentStore& store, const tokenizer::Tokenizer* tokenizer,
                                       std::size_t first, std::size_t count) {
  std::vector<ExampleView> views;
  for (std::size_t i = first; i < store.size() && views.size() < count; ++i) {
    const auto ids = store.ids(i), labels = store.labels(i);
    ExampleView view{store.source(i), {ids.begin(), ids.end()}, {labels.begin(), labels.end()}, {}, {}, {}, {}};
    view.weights.assign(store.weights(i).begin(), store.weights(i).end());
    if (tokenizer != nullptr) {
      view.pieces = pieces_of(ids, *tokenizer);
      view.text = tokenizer->decode(ids);
      for (const std::int32_t id : ids) {
        view.is_special.push_back(tokenizer->is_special(id));
      }
    }
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace lora_train::data
