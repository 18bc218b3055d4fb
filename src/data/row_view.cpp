#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"
#include "lora_train/data/prepare.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "row_fields.h"
#include "row_reader.h"

namespace lora_train::data {
namespace {

// Decodes from the last clean cut, so that tokens which share a character, or whose spelling depends on what stands
// before them, come out as they do in the whole text. Looking back one piece keeps it linear.
std::vector<std::string> pieces_of(std::span<const std::int32_t> ids, const tokenizer::Tokenizer& tokenizer) {
  constexpr std::size_t kMostTokensOfACharacter = 8;
  std::vector<std::string> pieces(ids.size());
  std::size_t context = 0, begin = 0;  // [context, begin) is already written, [begin, i] not yet
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::string before = tokenizer.decode(ids.subspan(context, begin - context));
    const std::string with = tokenizer.decode(ids.subspan(context, i + 1 - context));
    const bool is_partial =
        with.ends_with(kReplacementChar) && i + 1 - begin < kMostTokensOfACharacter && i + 1 < ids.size();
    if (!is_partial) {
      pieces[i] = with.substr(std::min(before.size(), with.size()));
      context = begin;
      begin = i + 1;
    }
  }
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
    RowView view{store.source(i), {ids.begin(), ids.end()}, {labels.begin(), labels.end()}, {}, {}, {}};
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
