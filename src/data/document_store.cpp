#include "lora_train/data/document_store.h"

#include <algorithm>
#include <cassert>

namespace lora_train::data {

std::int64_t count_supervised(std::span<const std::int32_t> labels) {
  if (labels.empty()) {
    return 0;
  }
  const auto predicted = labels.subspan(1);
  return std::count_if(predicted.begin(), predicted.end(), [](std::int32_t label) { return label != kIgnoredLabel; });
}

std::string DocumentStore::source(std::size_t i) const {
  return files_[rows_[i].file] + ":" + std::to_string(rows_[i].line);
}

std::int64_t DocumentStore::longest() const {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    longest = std::max(longest, num_tokens(i));
  }
  return longest;
}

std::uint32_t DocumentStore::add_file(std::string path) {
  files_.push_back(std::move(path));
  return static_cast<std::uint32_t>(files_.size() - 1);
}

void DocumentStore::append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels, std::uint32_t file,
                           std::uint64_t line) {
  assert(!ids.empty() && ids.size() == labels.size() && file < files_.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  offsets_.push_back(ids_.size());
  rows_.push_back({line, count_supervised(labels), file});
  total_supervised_ += rows_.back().num_supervised;
}

void DocumentStore::append_from(const DocumentStore& other, std::size_t i, std::size_t num_tokens) {
  const Row& row = other.rows_[i];
  append(other.ids(i).first(num_tokens), other.labels(i).first(num_tokens), row.file, row.line);
}

DocumentStore DocumentStore::subset(std::span<const std::uint32_t> chosen) const {
  DocumentStore out;
  out.files_ = files_;
  for (const std::uint32_t i : chosen) {
    out.append_from(*this, i, ids(i).size());
  }
  return out;
}

}  // namespace lora_train::data
