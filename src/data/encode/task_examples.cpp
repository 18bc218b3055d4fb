#include "lora_train/data/encode/task_examples.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>

#include "encode_sample.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/data/read/dataset_files.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "read/example_format.h"
#include "read/example_reader.h"

namespace lora_train::data {
namespace {

std::vector<std::string> choices_of(const Json& example, const FieldMap& map) {
  const Json& list = required(example, map, "choices");
  if (!list.is_array()) wrong_type("choices", list, "a list of texts");
  std::vector<std::string> choices;
  for (std::size_t i = 0; i < list.size(); ++i) {
    choices.push_back(string_of(list[i], fmt::format("choices[{}]", i)));
    if (choices.back().empty()) throw DataError("", "choices[{}] is empty", i);
  }
  if (choices.size() < 2) throw DataError("", "choices has {} texts; expected two or more", choices.size());
  return choices;
}

std::size_t checked_index(std::int64_t index, std::size_t num_choices) {
  if (index >= 0 && index < static_cast<std::int64_t>(num_choices)) return static_cast<std::size_t>(index);
  throw DataError("", "answer is {}, but there are {} choices (0 to {})", index, num_choices, num_choices - 1);
}

// An index, a choice, or an index as a string, as in some datasets.
std::size_t answer_of(const Json& example, const FieldMap& map, const std::vector<std::string>& choices) {
  const Json& answer = required(example, map, "answer");
  if (answer.is_number_integer()) return checked_index(answer.get<std::int64_t>(), choices.size());
  if (!answer.is_string()) wrong_type("answer", answer, "the index of a choice, or its text");
  const std::string& text = answer.get_ref<const std::string&>();
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  if (const auto index = whole_number<std::int64_t>(text)) return checked_index(*index, choices.size());
  throw DataError("", "answer \"{}\" is neither one of the choices nor an index", printable(text, 60));
}

class ExampleEncoder {
 public:
  ExampleEncoder(const PromptOptions& options, const FieldMap& map, std::int64_t max_tokens)
      : options_(options), map_(map), max_tokens_(max_tokens) {}

  ChoiceExample encode(const Json& example, std::string source) const {
    ChoiceExample out{std::move(source), {}, 0};
    const std::vector<std::string> choices = choices_of(example, map_);
    out.answer = answer_of(example, map_, choices);
    const auto [prompt, is_chat] = prompt_of(example);
    for (const std::string& choice : choices) out.choices.push_back(encode_choice(prompt, choice, is_chat));
    return out;
  }

 private:
  std::pair<std::string, bool> prompt_of(const Json& example) const {
    const Json* prompt = optional_field(example, map_, "prompt");
    if (prompt != nullptr && prompt->is_string()) return {prompt->get<std::string>(), false};
    if (prompt == nullptr && optional_field(example, map_, "messages") == nullptr) {
      throw DataError(
          "",
          "has neither prompt nor messages; an example with choices is {\"prompt\": ..., \"choices\": [...], "
          "\"answer\": ...}. Map other names with field_map");
    }
    const ChatSample chat = prompt != nullptr ? chat_of_prompt(example, map_) : parse_messages(example, map_);
    return {render_chat_prompt(chat, options_), true};
  }

  Choice encode_choice(const std::string& prompt, const std::string& text, bool is_chat) const {
    const tokenizer::Tokenizer& tokenizer = *options_.tokenizer;
    auto encoding = tokenizer.encode(prompt + text, /*with_offsets=*/true);
    const auto is_of_choice = [&](const tokenizer::ByteRange& range) { return range.second > prompt.size(); };
    const auto first = std::find_if(encoding.offsets.begin(), encoding.offsets.end(), is_of_choice);
    Choice choice{std::move(encoding.ids), static_cast<std::size_t>(first - encoding.offsets.begin()),
                  static_cast<std::int64_t>(count_chars(text))};
    if (!is_chat && add_bos(tokenizer, choice.ids)) ++choice.num_prompt;
    if (choice.num_prompt == 0) throw DataError("", "the prompt is empty: it has no token before the choices");
    const auto num_tokens = static_cast<std::int64_t>(choice.ids.size());
    if (max_tokens_ > 0 && num_tokens > max_tokens_) {
      throw DataError("", "has {} tokens with the choice \"{}\"; at most {} fit. Shorten or remove the example",
                      format_count(num_tokens), printable(text, 60), format_count(max_tokens_));
    }
    return choice;
  }

  const PromptOptions& options_;
  const FieldMap& map_;
  std::int64_t max_tokens_;
};

/// Calls use() for the first max_examples examples of the files (all if unset), with the index of the file.
void use_examples(const std::vector<std::string>& files, std::optional<std::int64_t> max_examples,
                  const std::function<void(const Json& value, const RawExample& raw, std::size_t file)>& use) {
  std::int64_t count = 0;
  for (std::size_t file = 0; file < files.size() && count < max_examples.value_or(INT64_MAX); ++file) {
    for_each_example(files[file], [&](RawExample&& raw) {
      use_example(raw, [&](const Json& value) { use(value, raw, file); });
      return ++count < max_examples.value_or(INT64_MAX);
    });
  }
}

std::optional<bool> correct_of(const Json& example, const FieldMap& map) {
  const Json* correct = optional_field(example, map, "correct");
  if (correct == nullptr) return std::nullopt;
  if (!correct->is_boolean()) wrong_type(name_in(map, "correct"), *correct, "true or false");
  return correct->get<bool>();
}

/// The example without its last answer.
Json without_answer(Json example, const FieldMap& map) {
  const auto messages = example.find(name_in(map, "messages"));
  if (messages == example.end() || !messages->is_array()) return example;
  while (!messages->empty() && messages->back().is_object() && messages->back().value("role", "") == "assistant")
    messages->erase(messages->size() - 1);
  return example;
}

}  // namespace

ChoiceSet read_choice_set(const DatasetSpec& spec, std::optional<std::int64_t> max_examples,
                          const PromptOptions& prompts, std::int64_t max_tokens) {
  check_field_map(spec.field_map);
  const ExampleEncoder encoder(prompts, spec.field_map, max_tokens);
  const std::vector<std::string> files = dataset_files(spec, DatasetUse::kEvaluation);
  ChoiceSet set;
  TokenTableWriter writer({}, "choices");
  use_examples(files, max_examples, [&](const Json& value, const RawExample& raw, std::size_t file) {
    const ChoiceExample& example = set.examples.emplace_back(encoder.encode(value, raw.where));
    const Choice& right = example.choices[example.answer];
    std::vector<std::int32_t> labels = right.ids;
    std::fill_n(labels.begin(), right.num_prompt, kIgnoredLabel);
    writer.append(right.ids, labels, static_cast<std::uint32_t>(file), raw.line);
  });
  set.right.store.add(writer.finish("{}"), files);
  set.right.ledger.total = set.right.ledger.kept = std::ssize(set.examples);
  return set;
}

std::vector<ChoiceSet> read_choice_sets(const DataSection& section, const PromptOptions& prompts,
                                        std::int64_t max_tokens) {
  const std::int64_t limit =
      section.max_seq_len ? std::min(*section.max_seq_len, max_tokens > 0 ? max_tokens : INT64_MAX) : max_tokens;
  std::vector<ChoiceSet> sets;
  for (const DatasetSpec& spec : section.eval_datasets) {
    sets.push_back(read_choice_set(spec, section.eval_max_samples, prompts, limit));
    sets.back().right.name = spec.name.empty() ? dataset_name(spec.path) : spec.name;
    const auto is_same = [&](const ChoiceSet& other) { return other.right.name == sets.back().right.name; };
    const auto num_same = std::count_if(sets.begin(), sets.end() - 1, is_same);
    if (num_same > 0) sets.back().right.name += fmt::format("-{}", num_same + 1);
  }
  return sets;
}

std::pair<std::size_t, std::size_t> answer_span(std::span<const std::int32_t> labels) {
  std::size_t end = labels.size();
  while (end > 0 && labels[end - 1] == kIgnoredLabel) --end;
  std::size_t begin = end;
  while (begin > 0 && labels[begin - 1] != kIgnoredLabel) --begin;
  return {begin, end};
}

std::vector<AnswerExample> read_answer_examples(const DatasetSpec& spec, std::optional<std::int64_t> max_examples,
                                                const DataContext& context, bool with_choices, Thinking thinking) {
  check_field_map(spec.field_map);
  const EncodeOptions options{.tokenizer = context.tokenizer,
                              .chat_template = context.chat_template,
                              .vocab_size = context.vocab_size,
                              .thinking = thinking,
                              .null_fields = spec.null_fields};
  const PromptOptions prompts{context.tokenizer, context.chat_template, false, {}, thinking};
  const ExampleEncoder encoder(prompts, spec.field_map, context.max_position_embeddings);
  DatasetType type = spec.type;  // of all examples, once known
  std::vector<AnswerExample> examples;
  const auto read = [&](const Json& value, const RawExample& raw, std::size_t) {
    if (type == DatasetType::kAuto) type = detect_layout(value, spec.field_map).type;
    check_loss_on(type, options);
    EncodedSample sample = encode_sample(parse_example(value, type, spec.field_map), options);
    if (sample.documents.size() > 1) throw DataError("", "is packed already; a task needs one example per document");
    const auto [begin, end] = answer_span(sample.labels);
    if (begin == end) throw DataError("", "has no answer: no token of the example is trained");
    if (begin == 0) {
      throw DataError("",
                      "has an answer but no prompt; a task needs chats, prompt/completion examples, or labels of -100 "
                      "for the tokens of the prompt");
    }
    AnswerExample& example = examples.emplace_back(
        AnswerExample{raw.where, std::move(sample.ids), begin, end, correct_of(value, spec.field_map)});
    if (with_choices && !example.correct && optional_field(value, spec.field_map, "choices") != nullptr)
      example.choices = encoder.encode(without_answer(value, spec.field_map), raw.where);
  };
  use_examples(dataset_files(spec, DatasetUse::kEvaluation), max_examples, read);
  return examples;
}

bool ConfidenceTokens::has(std::int32_t id) const { return std::ranges::count(ids, id) > 0; }

std::vector<std::int32_t> ConfidenceTokens::without(std::span<const std::int32_t> ids_of_text) const {
  std::vector<std::int32_t> rest;
  std::ranges::copy_if(ids_of_text, std::back_inserter(rest), [&](std::int32_t id) { return !has(id); });
  return rest;
}

ConfidenceTokens confidence_tokens(const TaskSection& section, const tokenizer::Tokenizer& tokenizer) {
  ConfidenceTokens tokens;
  for (const auto& [name, probability] : section.confidence_tokens) {
    const std::vector<std::int32_t> ids = tokenizer.encode(name).ids;
    if (ids.size() != 1) {
      throw ConfigError("confidence_tokens",
                        "\"{}\" is {} tokens in this tokenizer, expected one. List it in add_tokens, or choose texts "
                        "that are one token.",
                        name, ids.size());
    }
    tokens.names.push_back(name);
    tokens.ids.push_back(ids.front());
    tokens.probabilities.push_back(probability);
  }
  return tokens;
}

std::size_t find_confidence(std::span<const std::int32_t> ids, std::size_t begin, std::size_t end,
                            const ConfidenceTokens& tokens, const std::string& source) {
  std::size_t place = end, count = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (!tokens.has(ids[i])) continue;
    place = i;
    ++count;
  }
  if (count == 1) return place;
  throw DataError(source, "has {} confidence token in its last answer; expected one of {}",
                  count == 0 ? "no" : "more than one", join(tokens.names));
}

}  // namespace lora_train::data
