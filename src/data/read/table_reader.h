// Examples of tables: CSV, and Parquet and Arrow files, through liblora_train_arrow.so and the pyarrow wheel's Arrow
// libraries that it needs.
#pragma once

#include <filesystem>
#include <memory>

#include "example_reader.h"
#include "table_rows.h"

namespace lora_train::data {

/// True if a file with this name is a table: .parquet, .arrow or .feather.
bool is_table(const std::filesystem::path& file);

/// Throws DataError (where = file) unless tables can be read: the library is built, and pyarrow of the right series is
/// in $LORA_TRAIN_ARROW (its folder; exclusive if set), in the folder that the build found, or in the environment of
/// python3. The message has the commands to install it and to convert `file`. Loads nothing.
void require_table_library(const std::filesystem::path& file);

/// `line` of an example is its number in the file, from 1. Throws DataError if the file cannot be read: no library
/// (require_table_library), damage, a column type without a JSON value.
std::unique_ptr<ExampleReader> open_table(const std::filesystem::path& file);

/// The first record names the columns; every further record is an example {"column": "text", ...}. Skips blank lines.
/// `begin` is the part of `bytes` already read. Throws DataError for a header with missing or duplicate names; a record
/// with more or fewer fields is a bad example.
std::unique_ptr<ExampleReader> open_csv(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin,
                                        char separator);

}  // namespace lora_train::data
