// Documents for tests, example by example, and what a ledger says of them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/cache/ledger.h"

namespace lora_train::data {

class StoreBuilder {
 public:
  std::uint32_t add_file(std::string path) {
    files_.push_back(std::move(path));
    return static_cast<std::uint32_t>(files_.size() - 1);
  }
  void append(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels, std::uint32_t file,
              std::uint64_t line, std::span<const float> weights = {}) {
    writer_.append(ids, labels, file, line, weights);
  }
  /// The examples so far, as one table in memory. Once.
  DocumentStore build() {
    DocumentStore store;
    store.add(writer_.finish("{}"), files_);
    return store;
  }

 private:
  std::vector<std::string> files_;
  TokenTableWriter writer_{{}, "test"};
};

inline std::vector<std::string> sources(const DocumentStore& store) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < store.size(); ++i) out.push_back(store.source(i));
  return out;
}

using Entries = std::vector<std::string>;

/// "reason count place", and ", message" where there is one, of each entry.
inline Entries show(const Ledger& ledger) {
  Entries out;
  for (const LedgerEntry& entry : ledger.entries) {
    out.push_back(std::string(name_of(entry.reason)) + " " + std::to_string(entry.count) + " " + entry.first_source);
    if (!entry.first_message.empty()) out.back() += ", " + entry.first_message;
  }
  return out;
}

}  // namespace lora_train::data
