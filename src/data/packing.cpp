#include "lora_train/data/packing.h"

#include <cassert>

namespace lora_train::data {
namespace {

std::vector<Row> one_document_a_row(std::span<const std::uint32_t> order) {
  std::vector<Row> rows;
  rows.reserve(order.size());
  for (const std::uint32_t document : order) {
    rows.push_back({{document}});
  }
  return rows;
}

std::vector<Row> next_fit(std::span<const std::uint32_t> order, std::span<const std::int64_t> lengths,
                          std::int64_t max_seq_len) {
  std::vector<Row> rows;
  std::int64_t room = 0;
  for (const std::uint32_t document : order) {
    assert(lengths[document] >= 1 && lengths[document] <= max_seq_len);
    if (lengths[document] > room) {
      rows.emplace_back();
      room = max_seq_len;
    }
    rows.back().documents.push_back(document);
    room -= lengths[document];
  }
  return rows;
}

}  // namespace

std::vector<Row> pack(std::span<const std::uint32_t> order, std::span<const std::int64_t> lengths,
                      std::int64_t max_seq_len, PackingMethod method) {
  return method == PackingMethod::kNone ? one_document_a_row(order) : next_fit(order, lengths, max_seq_len);
}

}  // namespace lora_train::data
