// Tokenised examples for the training loop: documents that point into token tables. A table holds the examples of one
// dataset in one flat file or buffer; it is written once, then only read.
//
// Layout of a table, little-endian: 8 bytes LTOKENS4; records, one per example, each {u64 line, u64 content_hash, u32
// num_tokens, u32 num_supervised, u32 file, u16 has_weights, u16 soft_width, i32 ids[num_tokens], i32
// labels[num_tokens]}, if has_weights is 1 {f32 weights[num_tokens], 4 zero bytes if num_tokens is odd}, and {i32
// soft_ids[num_supervised][soft_width], f32 soft_log_probs[num_supervised][soft_width]}; then metadata (JSON); then a
// footer with sizes, the key and hashes of body and footer. The first example can be written before anything else is
// known, and memory does not grow while a table is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/data/cache/ledger.h"

namespace lora_train::data {

/// For each trained token, in order: `width` tokens of the teacher at that position, with their log-probabilities.
struct SoftLabels {
  static constexpr std::int32_t kNone = -1;  ///< pads positions with fewer tokens

  std::int64_t width = 0;  ///< 0: the example has none
  std::span<const std::int32_t> ids = {};
  std::span<const float> log_probs = {};

  /// The labels of the first num_supervised trained tokens.
  SoftLabels first(std::size_t num_supervised) const {
    const std::size_t count = num_supervised * static_cast<std::size_t>(width);
    return {width, ids.first(count), log_probs.first(count)};
  }
};

class TableLock;

/// True if this program wrote the file: a complete, damaged or unfinished table. False if it cannot be read.
bool is_token_table(const std::filesystem::path& file);

/// One example. Spans point into the table.
struct StoredExample {
  std::uint64_t line = 0;          ///< from 1; the upper half: RawExample::element
  std::uint64_t content_hash = 0;  ///< hash of ids, labels, weights and soft labels
  std::uint32_t file = 0;          ///< index into the files that the metadata names
  std::uint32_t num_supervised = 0;
  std::span<const std::int32_t> ids, labels;
  std::span<const float> weights = {};  ///< loss weights, 0 where the label is -100; empty: all 1
  SoftLabels soft = {};
};

/// A finished table. Any number of threads may read it.
class TokenTable {
 public:
  /// Checks the sizes and hashes of a table, and that it was written for `key`. Keeps `lock`. Throws FormatError (where
  /// = file) if the table is incomplete or has another key, StopError on a stop request.
  TokenTable(MappedFile file, const std::string& key, std::shared_ptr<const void> lock = nullptr);

  std::int64_t num_examples() const { return num_examples_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::string_view bytes() const { return file_.bytes(); }
  /// The JSON object passed to TokenTableWriter::finish().
  std::string_view metadata() const { return metadata_; }
  /// The file it is mapped from; empty for a table in memory.
  const std::filesystem::path& path() const { return file_.path(); }

  /// Examples are found by position, in units of 8 bytes: the first is at 0, the one after `example` at
  /// next(position, example).
  StoredExample example(std::uint64_t position) const;
  static std::uint64_t next(std::uint64_t position, const StoredExample& example) {
    return position + 4 + example.ids.size() + (example.weights.size() + 1) / 2 + example.soft.ids.size();
  }

 private:
  MappedFile file_;
  std::shared_ptr<const void> lock_;
  std::string_view metadata_;
  std::int64_t num_examples_ = 0, num_tokens_ = 0;
};

/// Writes a table example by example. Memory use does not grow when the table goes to a file. Not thread-safe.
class TokenTableWriter {
 public:
  /// Writes to `file`, which appears complete in finish() or not at all. An empty path writes to memory.
  TokenTableWriter(const std::filesystem::path& file, std::string key);

  /// ids and labels have the same length, at least 1; weights have it too or are empty. Throws IoError (disk full).
  void append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels, std::uint32_t file,
              std::uint64_t line, std::span<const float> weights = {}, const SoftLabels& soft = {});
  std::int64_t num_examples() const { return num_examples_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_supervised() const { return num_supervised_; }

  /// Finishes the table and opens it. The writer cannot be used afterwards.
  std::shared_ptr<const TokenTable> finish(std::string_view metadata);

 private:
  void write(std::string_view bytes);
  void flush();

  std::filesystem::path path_;
  std::string key_;
  std::unique_ptr<AtomicFileWriter> file_;
  std::shared_ptr<TableLock> lock_;  // on the temporary file, so that the cache does not sweep it
  std::string buffer_;               // data not yet in the file; in memory mode, all data
  Hasher hasher_;
  std::uint64_t num_bytes_ = 0;  // written so far
  std::int64_t num_examples_ = 0, num_tokens_ = 0, num_supervised_ = 0;
};

/// The label of an untrained token (Hugging Face's ignore index).
inline constexpr std::int32_t kIgnoredLabel = -100;

/// Number of labels in the loss: those other than -100 at positions >= 1 (nothing predicts position 0).
std::int64_t count_supervised(std::span<const std::int32_t> labels);

/// Documents (one dataset example each) in file order. Copies share the tables that hold the tokens; a document may be
/// the head of an example. Takes 16 bytes per document. Any number of threads may read while none changes it.
class DocumentStore {
 public:
  std::size_t size() const { return documents_.size(); }
  bool empty() const { return documents_.empty(); }

  /// Token ids of document i, 0 <= i < size(). Valid while a store with its table exists.
  std::span<const std::int32_t> ids(std::size_t i) const { return example(i).ids.first(documents_[i].num_tokens); }
  /// Labels of document i in Hugging Face's convention: one per id, not shifted, -100 = not trained.
  std::span<const std::int32_t> labels(std::size_t i) const {
    return example(i).labels.first(documents_[i].num_tokens);
  }
  /// Loss weights of document i, one per id; empty: all 1.
  std::span<const float> weights(std::size_t i) const {
    if (!has_weights(i)) return {};
    const std::span<const float> all = example(i).weights;
    return all.first(all.empty() ? 0 : documents_[i].num_tokens);
  }
  /// Soft labels of document i; width 0 if it has none.
  SoftLabels soft_labels(std::size_t i) const { return example(i).soft.first(documents_[i].num_supervised); }
  /// The largest soft-label width in its tables; 0 if no example has soft labels.
  std::int64_t soft_width() const;
  std::int64_t num_tokens(std::size_t i) const { return documents_[i].num_tokens; }
  /// Labels other than -100 at positions >= 1.
  std::int64_t num_supervised(std::size_t i) const { return documents_[i].num_supervised; }
  /// Sum of the weights of those labels: document i's share of the loss denominator. Without weights,
  /// num_supervised(i).
  double weight_sum(std::size_t i) const;
  /// True if any example of its tables has weights.
  bool has_weights() const;
  /// Hash of the whole example's ids, labels and weights: equal examples have equal hashes.
  std::uint64_t content_hash(std::size_t i) const { return example(i).content_hash; }
  /// Index of document i's table, in the order the tables were added. Tables never interleave.
  std::size_t table(std::size_t i) const { return documents_[i].table; }
  /// "file:line" of document i. For a JSON array, the line where the example begins.
  std::string source(std::size_t i) const;

  /// Token count of all documents.
  std::int64_t total_tokens() const;
  std::int64_t total_supervised() const;
  /// Token count of the longest document; 0 if the store is empty.
  std::int64_t longest() const;

  /// Adds all examples of a table, in its order. StoredExample::file k refers to files[k]. At most 65,536 tables of 2
  /// TiB each.
  void add(std::shared_ptr<const TokenTable> table, std::vector<std::string> files);
  /// An empty store on the same tables, for append_from() to fill.
  DocumentStore empty_copy() const;
  /// Appends the first num_tokens tokens of document i of `other`, which must be on the same tables.
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
    std::int64_t soft_width = 0;  // the largest in the table
  };
  // Does not read examples of tables without weights.
  bool has_weights(std::size_t i) const { return (*sources_)[documents_[i].table].has_weights; }
  StoredExample example(std::size_t i) const {
    return (*sources_)[documents_[i].table].table->example(documents_[i].position);
  }

  std::vector<Document> documents_;
  std::shared_ptr<const std::vector<Source>> sources_ = std::make_shared<const std::vector<Source>>();
};

struct NamedStore {
  std::string name;  ///< "validation" for a held-out split, else the dataset's name
  DocumentStore store;
  Ledger ledger;  ///< ledger of its files; for a split: total = kept
};

/// 32 hexadecimal digits, equal for equal ids, labels and weights in the same order.
std::string documents_hash(const DocumentStore& store);

/// The first five of these documents as "file:line, file:line, ...", for messages.
std::string name_examples(const DocumentStore& store, std::span<const std::uint32_t> documents);

}  // namespace lora_train::data
