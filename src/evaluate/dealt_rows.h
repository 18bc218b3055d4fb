// Rows that are dealt out to the ranks, one after the other.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "lora_train/ranks/communicator.h"

namespace lora_train::evaluate {

/// Those of this rank.
template <typename Row>
std::vector<Row> rows_of_rank(const ranks::Communicator& ranks, std::span<const Row> rows) {
  std::vector<Row> own;
  const auto stride = static_cast<std::size_t>(ranks.world_size());
  for (auto i = static_cast<std::size_t>(ranks.rank()); i < rows.size(); i += stride) own.push_back(rows[i]);
  return own;
}

/// What each rank found out about its rows, in the order of all rows, on every rank. A collective.
template <typename Result>
std::vector<Result> gather_results(ranks::Communicator& ranks, const std::vector<Result>& own, std::size_t num_rows) {
  static_assert(std::is_trivially_copyable_v<Result>);
  if (ranks.world_size() == 1) return own;
  const std::vector<std::string> all =
      ranks.all_gather({reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Result)});
  std::vector<Result> results(num_rows);
  for (std::size_t i = 0; i < num_rows; ++i) {
    std::memcpy(&results[i], all[i % all.size()].data() + i / all.size() * sizeof(Result), sizeof(Result));
  }
  return results;
}

}  // namespace lora_train::evaluate
