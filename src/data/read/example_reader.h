// The examples of one dataset file, with their places, in blocks that can be parsed by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "json_examples.h"

namespace lora_train::data {

/// "file:line:byte", both from 1.
inline std::string place(const std::string& file, std::uint64_t line, std::size_t byte) {
  return file + ":" + std::to_string(line) + ":" + std::to_string(byte);
}

/// Prefix for a message about an array element that shares its line: "element 17: "; "" for 0.
inline std::string element_prefix(std::size_t element) {
  return element > 0 ? "element " + std::to_string(element) + ": " : "";
}

/// An example, or the problem in its text.
struct RawExample {
  Json value;              ///< an object
  std::uint64_t line = 0;  ///< from 1; for an example over several lines, the first
  bool is_bad = false;     ///< then value is null
  std::string where;       ///< "file:line:byte", byte from 1 within the line; only if is_bad
  std::string message;
  std::size_t element = 0;  ///< index in a JSON array, from 1, if an earlier element is on the same line; else 0
};

/// Consecutive examples of a file, not yet parsed (or already bad).
struct ExampleBlock {
  enum class Kind { kJsonLine, kJsonElement, kTableRow, kText, kParsed };
  struct Piece {
    Kind kind = Kind::kJsonLine;
    std::uint64_t line = 0;
    std::size_t begin = 0, size = 0;  ///< in `text`
    std::size_t num_skipped = 0;      ///< bytes of the line before the piece (a byte order mark)
    bool has_line_end = true;
    std::size_t element = 0;  ///< RawExample::element
    RawExample example = {};  ///< kParsed: the example itself
  };
  std::string file;
  std::string text;
  std::vector<Piece> pieces;
};

/// Parses the examples of a block independently: a bad example does not hide the next.
std::vector<RawExample> parse_examples(ExampleBlock&& block);

/// Reads a file from its start, decompressing gzip and zstd:
///   .csv, .tsv: the first record names the columns; every value is a string
///   .txt: one example {"text": line} per line
///   .parquet, .arrow, .feather: examples of a table (table_reader.h), never compressed; `line` is the example's number
///   others: JSON Lines, or one JSON array of objects if the first character is [
/// (A suffix .gz or .zst is ignored.) Skips blank lines, accepts CRLF, and allows a byte order mark at the start.
/// Memory is a few MiB for any file size, except that a JSON array is held whole. Not thread-safe, but blocks may be
/// parsed anywhere.
class ExampleReader {
 public:
  /// Throws IoError if the file cannot be opened.
  static std::unique_ptr<ExampleReader> open(const std::filesystem::path& file);
  virtual ~ExampleReader() = default;

  /// The next examples, at least one; nullopt at the end. Throws DataError if the rest of the file is unreadable (a
  /// broken array, an open quote, damaged compression, UTF-16) and for a file without examples; IoError.
  virtual std::optional<ExampleBlock> next() = 0;
};

/// A stream of bytes. Not thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `buffer` and returns the number of bytes read, fewer than `size` only at the end. Throws IoError, and
  /// DataError (where = file) for compressed data that is damaged or ends early.
  virtual std::size_t read(char* buffer, std::size_t size) = 0;
};

}  // namespace lora_train::data
