// Tokenised rows in flat buffers: what preparing data makes and what the training loop reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lora_train::data {

/// A label that is not trained (Hugging Face's ignore index).
inline constexpr std::int32_t kIgnoredLabel = -100;

/// Labels that a loss counts: other than -100 at positions >= 1 (position 0 has nothing that predicts it).
std::int64_t count_supervised(std::span<const std::int32_t> labels);

/// Documents (one row of a dataset each) in the order of the files. Memory: 8 bytes a token and 32 a document.
/// Threads: any number may read while none appends.
class DocumentStore {
 public:
  std::size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }

  /// Token ids of document i, 0 <= i < size(). Valid until the next append.
  std::span<const std::int32_t> ids(std::size_t i) const { return slice(ids_, i); }
  /// Labels of document i in Hugging Face's convention: as long as ids, not shifted, -100 = not trained.
  std::span<const std::int32_t> labels(std::size_t i) const { return slice(labels_, i); }
  std::int64_t num_tokens(std::size_t i) const { return static_cast<std::int64_t>(offsets_[i + 1] - offsets_[i]); }
  /// Labels other than -100 at positions >= 1: what document i adds to the denominator of the loss.
  std::int64_t num_supervised(std::size_t i) const { return rows_[i].num_supervised; }
  /// "file:line" of document i. In a JSON array the line is the one on which the row begins.
  std::string source(std::size_t i) const;

  /// Sums over all documents.
  std::int64_t total_tokens() const { return static_cast<std::int64_t>(ids_.size()); }
  std::int64_t total_supervised() const { return total_supervised_; }
  /// Tokens of the longest document, 0 when empty.
  std::int64_t longest() const;

  /// Makes a file known; returns the index that append() takes.
  std::uint32_t add_file(std::string path);
  const std::vector<std::string>& files() const { return files_; }
  /// Copies a document in. ids and labels have the same length, at least 1. `file` from add_file, `line` from 1.
  void append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels, std::uint32_t file,
              std::uint64_t line);
  /// Copies the first num_tokens tokens of other's document i. Both stores know the same files in the same order.
  void append_from(const DocumentStore& other, std::size_t i, std::size_t num_tokens);
  /// The documents of `chosen`, in that order, with all files.
  DocumentStore subset(std::span<const std::uint32_t> chosen) const;

 private:
  struct Row {
    std::uint64_t line;
    std::int64_t num_supervised;
    std::uint32_t file;
  };
  std::span<const std::int32_t> slice(const std::vector<std::int32_t>& flat, std::size_t i) const {
    return std::span(flat).subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }

  std::vector<std::int32_t> ids_, labels_;
  std::vector<std::size_t> offsets_{0};
  std::vector<Row> rows_;
  std::vector<std::string> files_;
  std::int64_t total_supervised_ = 0;
};

}  // namespace lora_train::data
