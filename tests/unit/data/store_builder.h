// Documents for tests, example by example.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lora_train/data/cache/document_store.h"

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

}  // namespace lora_train::data
