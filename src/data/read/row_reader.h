// The rows of one dataset file, with their places, in blocks that can be parsed by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "json_rows.h"

namespace lora_train::data {

/// "file:line:byte", both from 1.
inline std::string place(const std::string& file, std::uint64_t line, std::size_t byte) {
  return file + ":" + std::to_string(line) + ":" + std::to_string(byte);
}

/// Before a message about an element of a JSON array that is not alone on its line: "element 17: "; "" for 0.
inline std::string element_prefix(std::size_t element) {
  return element > 0 ? "element " + std::to_string(element) + ": " : "";
}

/// A row, or what is wrong with its text.
struct RawRow {
  Json value;              ///< an object
  std::uint64_t line = 0;  ///< from 1; where a row has several lines the one on which it begins
  bool is_bad = false;     ///< then value is null
  std::string where;       ///< "file:line:byte", byte from 1 within the line; only when is_bad
  std::string message;
  std::size_t element = 0;  ///< of a JSON array, from 1, where an earlier one is on the same line; else 0
};

/// Consecutive rows as in the file, not parsed yet (or already bad).
struct RowBlock {
  enum class Kind { kJsonLine, kJsonElement, kTableRow, kText, kParsed };
  struct Piece {
    Kind kind = Kind::kJsonLine;
    std::uint64_t line = 0;
    std::size_t begin = 0, size = 0;  ///< of `text`
    std::size_t num_skipped = 0;      ///< bytes of the line before the piece (a byte order mark)
    bool has_line_end = true;
    std::size_t element = 0;  ///< RawRow::element
    RawRow row = {};          ///< kParsed: the row itself
  };
  std::string file;
  std::string text;
  std::vector<Piece> pieces;
};

/// Parses the rows of a block, each for itself: a bad one does not hide the next.
std::vector<RawRow> parse_rows(RowBlock&& block);

/// Reads a file from its start, unpacking gzip and zstd:
///   .csv, .tsv   the first record names the columns; every value is a string
///   .txt         one row {"text": line} per line
///   .parquet, .arrow, .feather  rows of a table (table_reader.h), never packed; `line` is the row's number
///   others       JSON Lines, or one JSON array of objects when the first character is [
/// (.gz and .zst at the end of the name do not count.) Blank lines are skipped, CRLF is a line end, a byte order mark
/// may open the file. Memory is a few MiB, whatever the size of the file; a JSON array is held whole.
/// Not thread-safe; blocks may be parsed anywhere.
class RowReader {
 public:
  /// Throws IoError if the file cannot be opened.
  static std::unique_ptr<RowReader> open(const std::filesystem::path& file);
  virtual ~RowReader() = default;

  /// The next rows, at least one; nullopt at the end. Throws DataError for what makes the rest of the file unreadable
  /// (a broken array, an open quote, damaged packing, UTF-16) and for a file without rows, IoError.
  virtual std::optional<RowBlock> next() = 0;
};

/// A stream of bytes. Not thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `buffer` and returns how many bytes came: fewer than `size` only at the end.
  /// Throws IoError, and DataError (where = file) for packed data that is damaged or ends early.
  virtual std::size_t read(char* buffer, std::size_t size) = 0;
};

}  // namespace lora_train::data
