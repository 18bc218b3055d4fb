// The examples of one dataset file, with their places, in blocks that can be parsed by several threads. Tables (CSV,
// Parquet, Arrow) are read by table_reader.cpp, with liblora_train_arrow.so and the Arrow libraries of the pyarrow
// wheel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "json_examples.h"
#include "lora_train/base/error.h"

namespace lora_train::data {

/// "file:line:byte", both from 1.
inline std::string place(const std::string& file, std::uint64_t line, std::size_t byte) {
  return file + ":" + std::to_string(line) + ":" + std::to_string(byte);
}

/// Prefix for a message about an array element that shares its line: "element 17: "; "" for 0.
inline std::string element_prefix(std::size_t element) {
  return element > 0 ? "element " + std::to_string(element) + ": " : "";
}

/// An example of a file: first its place in the text of its block, then its value or the problem in its text.
struct RawExample {
  enum class Kind { kJsonLine, kJsonElement, kTableRow, kText, kParsed };
  Kind kind = Kind::kParsed;
  std::uint64_t line = 0;           ///< from 1; for an example over several lines, the first
  std::size_t begin = 0, size = 0;  ///< in ExampleBlock::text
  std::size_t num_skipped = 0;      ///< bytes of the line before it (a byte order mark)
  bool has_line_end = true;
  std::size_t element = 0;  ///< index in a JSON array, from 1, if an earlier element is on the same line; else 0
  Json value = {};          ///< an object; null if it is bad or not yet parsed
  bool is_bad = false;
  std::string where = {};    ///< "file:line"; of a bad example "file:line:byte", byte from 1 within the line
  std::string message = {};  ///< only if is_bad

  void refuse(std::string place, std::string problem) {
    kind = Kind::kParsed;
    is_bad = true;
    where = std::move(place);
    message = std::move(problem);
  }
};

/// Consecutive examples of a file, not yet parsed (or already bad).
struct ExampleBlock {
  std::string file;
  std::string text;
  std::vector<RawExample> examples;
};

/// Parses the examples of a block independently: a bad example does not hide the next.
std::vector<RawExample> parse_examples(ExampleBlock&& block);

/// Reads a file from its start, decompressing gzip and zstd:
///   .csv, .tsv: the first record names the columns; every value is a string
///   .txt: one example {"text": line} per line
///   .parquet, .arrow, .feather: examples of a table, never compressed; `line` is the example's number
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
  std::optional<ExampleBlock> next();

 protected:
  explicit ExampleReader(std::string file) : file_(std::move(file)) {}
  const std::string& file() const { return file_; }

 private:
  /// Adds the next examples to an empty block; none at the end.
  virtual void fill(ExampleBlock& block) = 0;

  const std::string file_;
  bool has_examples_ = false;
};

/// Calls visit with the examples of a file, in order, until it returns false. Throws as ExampleReader does, and
/// StopError on a stop request.
void for_each_example(const std::filesystem::path& file, const std::function<bool(RawExample&&)>& visit);

/// Calls use(); to a problem of an example that it throws, adds the place of the example.
template <class Use>
auto at_place(const std::string& where, const Use& use, const std::string& prefix = "") {
  try {
    return use();
  } catch (const DataError& error) {
    const std::string inner = error.where().empty() ? "" : " (" + error.where() + ")";
    throw DataError(where, prefix + error.message() + inner);
  }
}

/// The same for use(example.value); throws the problem of a bad example.
template <class Use>
auto use_example(const RawExample& example, const Use& use) {
  if (example.is_bad) throw DataError(example.where, example.message);
  return at_place(
      example.where, [&] { return use(example.value); }, element_prefix(example.element));
}

/// A stream of bytes. Not thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `buffer` and returns the number of bytes read, fewer than `size` only at the end. Throws IoError, and
  /// DataError (where = file) for compressed data that is damaged or ends early.
  virtual std::size_t read(char* buffer, std::size_t size) = 0;
};

/// The name without .gz or .zst, whose extension tells the kind of the file.
inline std::filesystem::path unpacked(const std::filesystem::path& file) {
  return file.extension() == ".gz" || file.extension() == ".zst" ? file.parent_path() / file.stem() : file;
}

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
/// `begin` is the part of `bytes` already read. A column without a name is "Unnamed: 0" (its index), as in pandas. Throws
/// DataError for a header with duplicate names or another separator; a record with more or fewer fields is a bad
/// example.
std::unique_ptr<ExampleReader> open_csv(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin,
                                        char separator);

}  // namespace lora_train::data
