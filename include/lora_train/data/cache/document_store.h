// Tokenised rows as the training loop reads them: documents that point into token tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lora_train/data/cache/ledger.h"
#include "lora_train/data/cache/token_table.h"

namespace lora_train::data {

/// A label that is not trained (Hugging Face's ignore index).
inline constexpr std::int32_t kIgnoredLabel = -100;

/// Number of labels that count in the loss: other than -100, at positions >= 1 (nothing predicts position 0).
std::int64_t count_supervised(std::span<const std::int32_t> labels);

/// Documents (one row of a dataset each) in the order of the files. The tokens stay in the tables, which copies share;
/// a document may be a row's head. Memory: 16 bytes a document. Threads: any number may read while none changes it.
class DocumentStore {
 public:
  std::size_t size() const { return documents_.size(); }
  bool empty() const { return documents_.empty(); }

  /// Token ids of document i, 0 <= i < size(). Valid as long as a store with its table exists.
  std::span<const std::int32_t> ids(std::size_t i) const { return row(i).ids.first(documents_[i].num_tokens); }
  /// Labels of document i in Hugging Face's convention: as long as ids, not shifted, -100 = not trained.
  std::span<const std::int32_t> labels(std::size_t i) const { return row(i).labels.first(documents_[i].num_tokens); }
  /// Weights of document i in the loss, as long as ids; empty: all 1.
  std::span<const float> weights(std::size_t i) const {
    return has_weights(i) ? first_weights(row(i), documents_[i].num_tokens) : std::span<const float>();
  }
  /// Soft labels of document i; of width 0 where it has none.
  SoftLabels soft_labels(std::size_t i) const { return row(i).soft.first(documents_[i].num_supervised); }
  /// The largest width of any row of its tables; 0: none has soft labels.
  std::int64_t soft_width() const;
  std::int64_t num_tokens(std::size_t i) const { return documents_[i].num_tokens; }
  /// Labels other than -100 at positions >= 1.
  std::int64_t num_supervised(std::size_t i) const { return documents_[i].num_supervised; }
  /// The sum of their weights: what document i adds to the denominator of the loss. num_supervised(i) without weights.
  double weight_sum(std::size_t i) const;
  /// Whether any row of its tables has weights.
  bool has_weights() const;
  /// Hash of the whole row's ids, labels and weights: equal rows have equal ones.
  std::uint64_t content_hash(std::size_t i) const { return row(i).content_hash; }
  /// Which table document i is in, in the order in which they were added. Tables never interleave.
  std::size_t table(std::size_t i) const { return documents_[i].table; }
  /// "file:line" of document i. In a JSON array the line is the one on which the row begins.
  std::string source(std::size_t i) const;

  /// Sums over all documents.
  std::int64_t total_tokens() const;
  std::int64_t total_supervised() const;
  /// Tokens of the longest document, 0 when empty.
  std::int64_t longest() const;

  /// Adds all rows of a table, in its order. files[k] is what TokenRow::file k stands for. At most 65,536 tables of
  /// 2 TiB each.
  void add(std::shared_ptr<const TokenTable> table, std::vector<std::string> files);
  /// An empty store on the same tables, which append_from() then fills.
  DocumentStore empty_copy() const;
  /// Adds the first num_tokens tokens of document i of `other`, which is on the same tables.
  void append_from(const DocumentStore& other, std::size_t i, std::size_t num_tokens);
  /// The documents of `chosen`, in that order.
  DocumentStore subset(std::span<const std::uint32_t> chosen) const;

 private:
  struct Document {
    std::uint64_t position : 48;  // in the table
    std::uint64_t table : 16;
    std::uint32_t num_tokens;
    std::uint32_t num_supervised;
  };
  struct Source {
    std::shared_ptr<const TokenTable> table;
    std::vector<std::string> files;
    bool has_weights = false;
    std::int64_t soft_width = 0;  // the largest
  };
  // Asks no row of a table without weights.
  bool has_weights(std::size_t i) const { return (*sources_)[documents_[i].table].has_weights; }
  static std::span<const float> first_weights(const TokenRow& row, std::size_t count) {
    return row.weights.first(row.weights.empty() ? 0 : count);
  }
  TokenRow row(std::size_t i) const { return (*sources_)[documents_[i].table].table->row(documents_[i].position); }

  std::vector<Document> documents_;
  std::shared_ptr<const std::vector<Source>> sources_ = std::make_shared<const std::vector<Source>>();
};

struct NamedStore {
  std::string name;  ///< "validation" for a held-out split, else the dataset's name
  DocumentStore store;
  Ledger ledger;  ///< of its files; of a split: total = kept
};

/// 32 hexadecimal digits, equal for equal ids, labels and weights in the same order.
std::string documents_hash(const DocumentStore& store);

/// The first five of these documents as "file:line, file:line, ...", for messages.
std::string name_rows(const DocumentStore& store, std::span<const std::uint32_t> documents);

}  // namespace lora_train::data
