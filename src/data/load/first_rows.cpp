#include "lora_train/data/first_rows.h"

#include <optional>

#include "lora_train/base/error.h"
#include "read/row_format.h"
#include "read/row_reader.h"
#include "render/encode_sample.h"
#include "render/stop_token_audit.h"

namespace lora_train::data {
namespace {

constexpr std::int64_t kMostRows = 20;

/// Throws DataError for what is wrong with the row, with its place.
void look_at(const RawRow& row, const std::string& file, const DatasetSpec& spec, const FirstRowsOptions& options,
             FirstRows& found) {
  if (row.is_bad) throw DataError(row.where, row.message);
  try {
    if (found.type == DatasetType::kAuto) {
      Detection detection = detect_layout(row.value, spec.field_map);
      found.type = detection.type;
      found.reason = std::move(detection.reason);
    }
    if (spec.type == DatasetType::kAuto) check_same_layout(row.value, found.type, spec.field_map);
    const Sample sample = parse_row(row.value, found.type, spec.field_map);
    if (!options.is_model_known) return;
    const EncodeOptions encode{options.tokenizer, options.chat_template, options.loss_on};
    check_loss_on(found.type, encode);
    encode_sample(sample, encode);
  } catch (const DataError& error) {
    throw DataError(file + ":" + std::to_string(row.line), element_prefix(row.element) + error.message());
  }
}

}  // namespace

FirstRows look_at_first_rows(const DatasetSpec& spec, const FirstRowsOptions& options) {
  check_field_map(spec.field_map);
  const std::filesystem::path file = dataset_files(spec, options.use).front();
  FirstRows found{.type = spec.type, .reason = "type: " + to_string(spec.type)};
  std::optional<DataError> first_error;
  bool has_good_row = false;
  const auto reader = RowReader::open(file);
  for (auto block = reader->next(); block && found.num_rows < kMostRows; block = reader->next()) {
    for (const RawRow& row : parse_rows(std::move(*block))) {
      if (found.num_rows == kMostRows) break;
      ++found.num_rows;
      try {
        look_at(row, file.string(), spec, options, found);
        has_good_row = true;
      } catch (const DataError& error) {
        if (options.on_bad_row == OnBadRow::kError) throw;
        if (!first_error) first_error = error;
      }
    }
  }
  if (!has_good_row && first_error) throw DataError(*first_error);
  if (options.is_model_known && is_chat(found.type))
    found.warnings = audit_stop_token(*options.tokenizer, *options.chat_template, {}).warnings;
  return found;
}

}  // namespace lora_train::data
