// Holding rows out of the training data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lora_train::data {

/// Row numbers, both ascending, so that both parts keep the order of the files.
struct Split {
  std::vector<std::uint32_t> train, held_out;
};

/// Chooses rows by Philox numbers of the seed: the same rows on every machine. val_set_size below 1 is a share (rounded
/// up), from 1 a count. Throws DataError (where = "val_set_size") if no row would be left to train on.
Split split_rows(std::size_t num_rows, double val_set_size, std::uint64_t seed);

}  // namespace lora_train::data
