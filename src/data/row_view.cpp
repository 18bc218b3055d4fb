#include "lora_train/base/error.h"
#include "lora_train/data/prepare.h"
#include "lora_train/tokenizer/text_stream.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "read/row_fields.h"
#include "read/row_reader.h"

namespace lora_train::data {
namespace {

std::vector<std::string> pieces_of(std::span<const std::int32_t> ids, const tokenizer::Tokenizer& tokenizer) {
  constexpr std::size_t kMaxTokensOfACharacter = 8;  // keeps rows that are no text linear
  tokenizer::TextStream stream(tokenizer, {.skip_special = false, .max_held = kMaxTokensOfACharacter});
  std::vector<std::string> pieces;
  for (const std::int32_t id : ids) pieces.push_back(stream.push(id));
  if (!pieces.empty()) pieces.back() += stream.finish();
  return pieces;
}

}  // namespace

void read_texts(const std::string& file, const std::function<void(const std::string&)>& on_text) {
  const auto reader = RowReader::open(file);
  while (auto block = reader->next()) {
    for (const RawRow& row : parse_rows(std::move(*block))) {
      if (row.is_bad) {
        throw DataError(row.where, row.message);
      }
      try {
        on_text(string_of(required(row.value, {}, "text"), "text"));
      } catch (const DataError& error) {
        throw DataError(file + ":" + std::to_string(row.line), error.message());
      }
    }
  }
}

std::vector<RowView> view_rows(const DocumentStore& store, const tokenizer::Tokenizer* tokenizer, std::size_t first,
                               std::size_t count) {
  std::vector<RowView> views;
  for (std::size_t i = first; i < store.size() && views.size() < count; ++i) {
    const auto ids = store.ids(i), labels = store.labels(i);
    RowView view{store.source(i), {ids.begin(), ids.end()}, {labels.begin(), labels.end()}, {}, {}, {}, {}};
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
