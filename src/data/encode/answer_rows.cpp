#include "lora_train/data/encode/answer_rows.h"

#include "choice_row.h"
#include "encode_sample.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/data/read/dataset_files.h"
#include "read/row_format.h"
#include "read/row_reader.h"

namespace lora_train::data {
namespace {

std::optional<bool> correct_of(const Json& row, const FieldMap& map) {
  const Json* correct = optional_field(row, map, "correct");
  if (correct == nullptr) return std::nullopt;
  if (!correct->is_boolean()) wrong_type(name_in(map, "correct"), *correct, "true or false");
  return correct->get<bool>();
}

/// The row without its last answer.
Json without_answer(Json row, const FieldMap& map) {
  const auto messages = row.find(name_in(map, "messages"));
  if (messages == row.end() || !messages->is_array()) return row;
  while (!messages->empty() && messages->back().is_object() && messages->back().value("role", "") == "assistant")
    messages->erase(messages->size() - 1);
  return row;
}

class AnswerReader {
 public:
  AnswerReader(const DatasetSpec& spec, const DataContext& context, bool with_choices)
      : spec_(spec),
        options_{context.tokenizer, context.chat_template, LossOn::kAuto, context.vocab_size},
        max_tokens_(context.max_position_embeddings),
        with_choices_(with_choices),
        type_(spec.type) {}

  AnswerRow read(const RawRow& raw, const std::string& source) {
    if (raw.is_bad) throw DataError(raw.where, raw.message);
    try {
      if (type_ == DatasetType::kAuto) type_ = detect_layout(raw.value, spec_.field_map).type;
      check_loss_on(type_, options_);
      EncodedSample sample = encode_sample(parse_row(raw.value, type_, spec_.field_map), options_);
      const auto [begin, end] = answer_span(sample.labels);
      if (begin == end) throw DataError("", "has no answer: no token of the row is trained");
      if (begin == 0) {
        throw DataError(
            "",
            "has an answer and no prompt; a task needs chats, prompt/completion rows, or labels of -100 for "
            "the tokens of the prompt");
      }
      AnswerRow row{source, std::move(sample.ids), begin, end, correct_of(raw.value, spec_.field_map)};
      if (with_choices_ && !row.correct && optional_field(raw.value, spec_.field_map, "choices") != nullptr) {
        const PromptOptions prompts{options_.tokenizer, options_.chat_template, false, {}};
        row.choices =
            read_choice_row(without_answer(raw.value, spec_.field_map), source, prompts, spec_.field_map, max_tokens_);
      }
      return row;
    } catch (const DataError& error) {
      throw DataError(source, error.message());
    }
  }

 private:
  const DatasetSpec& spec_;
  const EncodeOptions options_;
  const std::int64_t max_tokens_;
  const bool with_choices_;
  DatasetType type_;  ///< once known, of all rows
};

}  // namespace

std::pair<std::size_t, std::size_t> answer_span(std::span<const std::int32_t> labels) {
  std::size_t end = labels.size();
  while (end > 0 && labels[end - 1] == kIgnoredLabel) --end;
  std::size_t begin = end;
  while (begin > 0 && labels[begin - 1] != kIgnoredLabel) --begin;
  return {begin, end};
}

std::vector<AnswerRow> read_answer_rows(const DatasetSpec& spec, std::optional<std::int64_t> max_rows,
                                        const DataContext& context, bool with_choices) {
  check_field_map(spec.field_map);
  AnswerReader answers(spec, context, with_choices);
  std::vector<AnswerRow> rows;
  const auto is_enough = [&] { return max_rows && std::ssize(rows) >= *max_rows; };
  for (const auto& path : dataset_files(spec, DatasetUse::kEvaluation)) {
    const auto reader = RowReader::open(path);
    while (!is_enough()) {
      auto block = reader->next();
      if (!block) break;
      throw_if_stop_requested();
      for (const RawRow& raw : parse_rows(std::move(*block))) {
        if (is_enough()) break;
        rows.push_back(answers.read(raw, path.string() + ":" + std::to_string(raw.line)));
      }
    }
  }
  if (rows.empty()) throw DataError(spec.path, "has no rows");
  return rows;
}

}  // namespace lora_train::data
