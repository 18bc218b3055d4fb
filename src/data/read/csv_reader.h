// CSV and TSV by RFC 4180: quoted fields may hold separators, doubled quotes and line ends.
#pragma once

#include <memory>
#include <string>

#include "byte_source.h"
#include "row_reader.h"

namespace lora_train::data {

/// The first record names the columns; every further one is a row {"column": "text", ...}. Blank lines are skipped.
/// `begin` is what was already read of `bytes`. Throws DataError for a header without names or with a name twice; a
/// record with more or fewer fields is a bad row.
std::unique_ptr<RowReader> open_csv(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin,
                                    char separator);

}  // namespace lora_train::data
