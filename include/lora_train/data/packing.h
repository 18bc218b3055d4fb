// Packing: which documents share a row. Documents in a row stay isolated from each other (attention and positions).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lora_train::data {

/// Documents that one row of at most max_seq_len tokens holds, in order; indices into the DocumentStore.
struct Row {
  std::vector<std::uint32_t> documents;
};

/// How rows are filled. The one place where a method is chosen.
enum class PackingMethod {
  kNone,     ///< one document a row
  kNextFit,  ///< in order: a document that does not fit into the open row opens the next
};

/// Packs `order` (document indices) into rows. lengths[d] = tokens of document d, each in [1, max_seq_len].
/// A document is in exactly one row, never split; no row holds more than max_seq_len tokens.
std::vector<Row> pack(std::span<const std::uint32_t> order, std::span<const std::int64_t> lengths,
                      std::int64_t max_seq_len, PackingMethod method);

}  // namespace lora_train::data
