#include "lora_train/data/cache/document_store.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <numeric>

#include "lora_train/base/hash.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"

namespace lora_train::data {

std::int64_t count_supervised(std::span<const std::int32_t> labels) {
  if (labels.empty()) {
    return 0;
  }
  const auto predicted = labels.subspan(1);
  return std::count_if(predicted.begin(), predicted.end(), [](std::int32_t label) { return label != kIgnoredLabel; });
}

double DocumentStore::weight_sum(std::size_t i) const {
  const auto of_tokens = weights(i);
  if (of_tokens.empty()) {
    return static_cast<double>(num_supervised(i));
  }
  return std::accumulate(of_tokens.begin() + 1, of_tokens.end(), 0.0);
}

bool DocumentStore::has_weights() const {
  return std::any_of(sources_->begin(), sources_->end(), [](const Source& source) { return source.has_weights; });
}

std::int64_t DocumentStore::soft_width() const {
  std::int64_t width = 0;
  for (const Source& source : *sources_) width = std::max(width, source.soft_width);
  return width;
}

std::string DocumentStore::source(std::size_t i) const {
  const TokenRow found = row(i);
  const std::uint64_t element = found.line >> 32;
  return (*sources_)[documents_[i].table].files[found.file] + ":" + std::to_string(found.line & 0xffffffffU) +
         (element > 0 ? ", element " + std::to_string(element) : "");
}

std::int64_t DocumentStore::total_tokens() const {
  return std::accumulate(documents_.begin(), documents_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Document& document) { return sum + document.num_tokens; });
}

std::int64_t DocumentStore::total_supervised() const {
  return std::accumulate(documents_.begin(), documents_.end(), std::int64_t{0},
                         [](std::int64_t sum, const Document& document) { return sum + document.num_supervised; });
}

std::int64_t DocumentStore::longest() const {
  std::int64_t longest = 0;
  for (const Document& document : documents_) {
    longest = std::max<std::int64_t>(longest, document.num_tokens);
  }
  return longest;
}

void DocumentStore::add(std::shared_ptr<const TokenTable> table, std::vector<std::string> files) {
  auto sources = std::make_shared<std::vector<Source>>(*sources_);
  assert(sources->size() < (1U << 16));
  documents_.reserve(documents_.size() + static_cast<std::size_t>(table->num_rows()));
  // 48 and 16 bits, as the header says.
  constexpr std::uint64_t kPositionMask = (1ULL << 48) - 1;
  const auto index = static_cast<std::uint16_t>(sources->size());
  std::uint64_t position = 0;
  bool has_weights = false;
  std::int64_t soft_width = 0;
  StopPoll stop_poll;
  for (std::int64_t i = 0; i < table->num_rows(); ++i) {
    stop_poll();
    const TokenRow found = table->row(position);
    documents_.push_back(
        {position & kPositionMask, index, static_cast<std::uint32_t>(found.ids.size()), found.num_supervised});
    has_weights = has_weights || !found.weights.empty();
    soft_width = std::max(soft_width, found.soft.width);
    position = TokenTable::next(position, found);
  }
  sources->push_back({std::move(table), std::move(files), has_weights, soft_width});
  sources_ = std::move(sources);
}

DocumentStore DocumentStore::empty_copy() const {
  DocumentStore out;
  out.sources_ = sources_;
  return out;
}

void DocumentStore::append_from(const DocumentStore& other, std::size_t i, std::size_t num_tokens) {
  assert(sources_ == other.sources_ && num_tokens >= 1 && num_tokens <= other.documents_[i].num_tokens);
  Document document = other.documents_[i];
  if (num_tokens < document.num_tokens) {
    document.num_tokens = static_cast<std::uint32_t>(num_tokens);
    document.num_supervised = static_cast<std::uint32_t>(count_supervised(other.labels(i).first(num_tokens)));
  }
  documents_.push_back(document);
}

DocumentStore DocumentStore::subset(std::span<const std::uint32_t> chosen) const {
  DocumentStore out = empty_copy();
  out.documents_.reserve(chosen.size());
  for (const std::uint32_t i : chosen) {
    out.documents_.push_back(documents_[i]);
  }
  return out;
}

std::string documents_hash(const DocumentStore& store) {
  Hasher hasher;
  for (std::size_t i = 0; i < store.size(); ++i) {
    const std::array values{store.content_hash(i), static_cast<std::uint64_t>(store.num_tokens(i))};
    hasher.update({reinterpret_cast<const char*>(values.data()), sizeof values});
  }
  return hasher.hex();
}

std::string name_rows(const DocumentStore& store, std::span<const std::uint32_t> documents) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> rows;
  for (const std::uint32_t document : documents.first(std::min(kShown, documents.size()))) {
    rows.push_back(store.source(document));
  }
  return join(rows) + (documents.size() > kShown ? ", ..." : "");
}

}  // namespace lora_train::data
