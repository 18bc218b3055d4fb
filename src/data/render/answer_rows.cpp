#include "lora_train/data/answer_rows.h"

#include "encode_sample.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/data/dataset_files.h"
#include "read/row_fields.h"
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

class AnswerReader {
 public:
  AnswerReader(const DatasetSpec& spec, const DataContext& context)
      : spec_(spec),
        options_{context.tokenizer, context.chat_template, LossOn::kAuto, context.vocab_size},
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
      return {source, std::move(sample.ids), begin, end, correct_of(raw.value, spec_.field_map)};
    } catch (const DataError& error) {
      throw DataError(source, error.message());
    }
  }

 private:
  const DatasetSpec& spec_;
  const EncodeOptions options_;
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
                                        const DataContext& context) {
  check_field_map(spec.field_map);
  AnswerReader answers(spec, context);
  std::vector<AnswerRow> rows;
  const auto is_enough = [&] { return max_rows && std::ssize(rows) >= *max_rows; };
  for (const auto& path : dataset_files(spec.path)) {
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
