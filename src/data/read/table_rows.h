// The interface of liblora_train_arrow.so: the rows of a Parquet or Arrow file as JSON text. Using it requires no Arrow
// headers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lora_train::data {

/// An open file. Not thread-safe.
class TableRows {
 public:
  virtual ~TableRows() = default;

  /// Appends the next rows to `text`, one JSON object each, until it has `enough` bytes, and the end of each to `ends`.
  /// Appends no row at the end of the file. Memory: one decoded batch of rows. Throws std::runtime_error for a problem
  /// with the file.
  virtual void read(std::string& text, std::vector<std::size_t>& ends, std::size_t enough) = 0;
};

/// Opens a file; its first bytes determine the format. Columns are converted as by datasets' to_json:
///   null, booleans, numbers     the same (float: the shortest text that reads back; not finite: null)
///   strings, dictionaries       text; also binary values that are UTF-8, else {"bytes": their number}
///   date, timestamp, duration   milliseconds (since 1970), an integer
///   time, decimal               text, "12:30:00", "1.20"
///   list, struct, map           array, object, array of [key, value]
/// Throws std::runtime_error for damaged files and other types.
using OpenTable = TableRows* (*)(const char* file);

}  // namespace lora_train::data

/// The library's only function, apart from lora_train_build_id().
extern "C" lora_train::data::TableRows* lora_train_open_table(const char* file);
