// Rows of one dataset file, with their places.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "json_rows.h"

namespace lora_train::data {

/// A row, or what is wrong with its text.
struct RawRow {
  Json value;              ///< an object
  std::uint64_t line = 0;  ///< from 1; in a JSON array the line on which the row begins
  bool is_bad = false;     ///< then value is null
  std::string where;       ///< "file:line:byte", byte from 1 within the line; only when is_bad
  std::string message;
};

/// Reads `file`: JSON Lines, or one JSON array of objects when its first character is [. Blank lines are skipped, CRLF
/// is a line end, a byte order mark may open the file. on_row returns false to stop early.
/// A malformed line is handed over as a bad row and reading goes on. Throws DataError for what makes the rest of the
/// file unreadable (a broken array, UTF-16) and for an empty file, IoError when it cannot be read.
/// Returns the hash of the file's bytes (32 hexadecimal digits).
std::string read_rows(const std::filesystem::path& file, const std::function<bool(RawRow&&)>& on_row);

}  // namespace lora_train::data
