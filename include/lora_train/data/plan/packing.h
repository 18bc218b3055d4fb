// Packing: which documents share a row. Documents in a row stay isolated from each other (attention and positions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lora_train/base/philox.h"

namespace lora_train::data {

/// Rows one after another, each with the documents that it holds (indices into the DocumentStore). 4 bytes a document
/// and 4 a row.
class Rows {
 public:
  std::size_t size() const { return begins_.size() - 1; }
  /// Documents of row r, 0 <= r < size(), in order. Valid until the next add.
  std::span<const std::uint32_t> operator[](std::size_t r) const {
    return std::span(documents_).subspan(begins_[r], begins_[r + 1] - begins_[r]);
  }
  std::size_t num_documents() const { return documents_.size(); }

  void reserve(std::size_t num_documents) { documents_.reserve(num_documents); }
  void add(std::span<const std::uint32_t> documents);

 private:
  std::vector<std::uint32_t> documents_, begins_{0};
};

/// Documents that first-fit-decreasing looks at together. Documents of 50, 200 and 1,500 tokens on average fill rows of
/// 4,096 to 99.5, 99.9 and 99.9%; windows of 2,048 to 98.1, 99.5 and 99.8%, and larger ones gain little more and cost
/// more a document (bench/data_bench, packing_efficiency).
inline constexpr std::size_t kPackingWindow = 8192;

/// Rows of one document each, in order.
Rows one_document_a_row(std::span<const std::uint32_t> order);

/// In order: a document that does not fit into the open row opens the next. For data whose order is to be kept.
/// lengths[d] = tokens of document d, each in [1, max_seq_len]; the same below.
Rows pack_next_fit(std::span<const std::uint32_t> order, std::span<const std::uint32_t> lengths,
                   std::int64_t max_seq_len);

/// First-fit-decreasing inside windows of the order: the order is cut into windows of at most `window` documents, as
/// equal as they go; in a window documents are taken longest first (ties in order), each into the first row with room;
/// then the rows of the window are shuffled by `key`, so that what is in a row says nothing about when it is trained.
/// A document is in exactly one row for each time it occurs in the order, and never split; no row holds more than
/// max_seq_len tokens. O(log window) a document.
Rows pack_first_fit_decreasing(std::span<const std::uint32_t> order, std::span<const std::uint32_t> lengths,
                               std::int64_t max_seq_len, PhiloxKey key, std::size_t window = kPackingWindow);

}  // namespace lora_train::data
