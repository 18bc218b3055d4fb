// The rows of a Parquet or Arrow file, as a RowReader gives them.
#pragma once

#include <filesystem>
#include <memory>

#include "row_reader.h"

namespace lora_train::data {

/// `line` of a row is its number in the file, from 1. Throws DataError where the file cannot be read: no library
/// (table_library.h), damage, a column type that JSON has no value for.
std::unique_ptr<RowReader> open_table(const std::filesystem::path& file);

}  // namespace lora_train::data
