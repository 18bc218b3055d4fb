// What liblora_train_arrow.so gives the program: the rows of a Parquet or Arrow file as JSON text. No Arrow header is
// needed to use it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lora_train::data {

/// An open file. Not thread-safe.
class TableRows {
 public:
  virtual ~TableRows() = default;

  /// Appends the next rows to `text`, one JSON object each, until it has `enough` bytes, and the place where each ends to
  /// `ends`. No row at the end of the file. Memory: one batch of rows, decoded.
  /// Throws std::runtime_error with what is wrong with the file.
  virtual void read(std::string& text, std::vector<std::size_t>& ends, std::size_t enough) = 0;
};

/// Opens a file; its first bytes tell the format. A column becomes what datasets' to_json makes of it:
///   null, booleans, numbers     the same (float: the shortest text that reads back; not finite: null)
///   strings, dictionaries       text; so are binary values, whose bytes must be UTF-8 as a JSON file's
///   date, timestamp, duration   milliseconds (since 1970), an integer
///   time, decimal               text, "12:30:00", "1.20"
///   list, struct, map           array, object, array of [key, value]
/// Throws std::runtime_error: damaged files, other types.
using OpenTable = TableRows* (*)(const char* file);

}  // namespace lora_train::data

/// The library's one function, besides lora_train_build_id().
extern "C" lora_train::data::TableRows* lora_train_open_table(const char* file);
