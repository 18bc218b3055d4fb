// Examples of tables: CSV, and Parquet and Arrow files.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <vector>

#include "example_reader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/library.h"
#include "lora_train/base/python_packages.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train_build_id.h"
#include "table_rows.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArrowLibraries[] = {"libarrow.so.2400", "libparquet.so.2400"};  // the names include the series
constexpr const char* kInstall = "pip install 'pyarrow==24.*'";

/// Converts with other tools, so it works without our pyarrow.
std::string conversion_of(const fs::path& file) {
  const std::string name = file.string(), target = fs::path(file).replace_extension(".jsonl").filename().string();
  if (file.extension() == ".parquet") {
    return "python3 -c \"import pandas; pandas.read_parquet('" + name + "').to_json('" + target +
           "', orient='records', lines=True)\"";
  }
  return fmt::format("python3 -c \"import datasets; datasets.Dataset.from_file('{}').to_json('{}')\"", name, target);
}

fs::path library_file() { return program_folder() / "lib" / "liblora_train_arrow.so"; }

bool has_arrow(const fs::path& folder) {
  std::error_code error;
  for (const char* name : kArrowLibraries) {
    if (!fs::exists(folder / name, error)) return false;
  }
  return true;
}

/// "libarrow.so.2600" if pyarrow of another series is there; empty if the folder has none.
std::string other_arrow(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("libarrow.so.")) return name;
  }
  return {};
}

/// Accepts a folder with the required libraries; else notes what it has.
bool takes_arrow(const fs::path& folder, const std::string& found_by, std::vector<std::string>& seen) {
  if (folder.empty()) {
    seen.push_back(found_by + ": has no pyarrow");
    return false;
  }
  if (has_arrow(folder)) return true;
  const std::string other = other_arrow(folder);
  seen.push_back(fmt::format("{}: {} in {}", found_by, other.empty() ? "no pyarrow" : other, folder.string()));
  return false;
}

struct FoundArrow {
  fs::path folder;      ///< empty if there is none
  std::string problem;  ///< set if there is none
};

FoundArrow find_arrow() {
  std::error_code error;
  if (!fs::exists(library_file(), error)) {
    return {{}, fmt::format("this build of lora-train cannot read such files (it lacks {})", library_file().string())};
  }
  std::vector<std::string> seen;
  const char* const named = std::getenv("LORA_TRAIN_ARROW");
  if (named != nullptr && *named != '\0') {
    if (takes_arrow(named, "$LORA_TRAIN_ARROW", seen)) return {named, ""};
  } else {
    const fs::path built_with = package_of_build("arrow");
    if (!built_with.empty() && takes_arrow(built_with, "lib/arrow_path", seen)) return {built_with, ""};
    for (const auto& python : python_programs()) {
      const fs::path folder = find_python_package(python, "pyarrow");
      if (takes_arrow(folder, python, seen)) return {folder, ""};
    }
  }
  return {{},
          fmt::format("reading it needs {} from the pyarrow wheel, which was not found ({}). Install it: {}, then run "
                      "lora-train with that Python's environment active, or set LORA_TRAIN_ARROW to its pyarrow folder",
                      kArrowLibraries[0], join(seen, "; "), kInstall)};
}

const FoundArrow& arrow() {
  static const FoundArrow found = find_arrow();
  return found;
}

SharedLibrary open_table_library(const fs::path& file) {
  const SharedLibrary library(file);
  if (library.problem().empty()) return library;
  throw DataError(file.string(), "cannot be loaded: {}. Reinstall pyarrow: {}", library.problem(), kInstall);
}

OpenTable open_all() {
  // Loads them first, by full path: our library then finds them without a search path.
  for (const char* name : kArrowLibraries) open_table_library(arrow().folder / name);
  const SharedLibrary library = open_table_library(library_file());
  const std::string mismatch = library.build_mismatch(LORA_TRAIN_BUILD_ID);
  if (!mismatch.empty()) throw DataError(library_file().string(), mismatch);
  return library.find_if_there("lora_train_open_table");
}

constexpr std::size_t kBytesPerBlock = 1 << 20;

/// Loads the library once. Throws as require_table_library() does, and if loading fails.
OpenTable load_table_library(const fs::path& file) {
  require_table_library(file);
  static const OpenTable open = open_all();
  return open;
}

class TableReader : public ExampleReader {
 public:
  explicit TableReader(const fs::path& path) : ExampleReader(path.string()) {
    const OpenTable open_file = load_table_library(path);
    at_file([&] { examples_.reset(open_file(file().c_str())); });
  }

 private:
  void fill(ExampleBlock& block) override {
    std::vector<std::size_t> ends;
    at_file([&] { examples_->read(block.text, ends, kBytesPerBlock); });
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      block.examples.push_back(
          {.kind = RawExample::Kind::kTableRow, .line = ++num_examples_, .begin = begin, .size = end - begin});
      begin = end;
    }
  }

  /// Adds the file to errors. Problems of a single example are found when its text is parsed.
  void at_file(const std::function<void()>& action) const {
    try {
      action();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw DataError(file(),
                      (num_examples_ > 0 ? fmt::format("after example {}: ", num_examples_) : "") + error.what());
    }
  }

  std::unique_ptr<TableRows> examples_;
  std::uint64_t num_examples_ = 0;
};

constexpr std::size_t kRowsPerBlock = 1024;

struct Record {
  std::vector<std::string> fields;
  std::uint64_t line = 0;
  std::size_t num_bytes = 0;
};

// Turns characters and places into records.
class RecordReader {
 public:
  RecordReader(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin, char separator)
      : file_(std::move(file)), bytes_(std::move(bytes)), buffer_(std::move(begin)), separator_(separator) {}

  // False at the end of the file.
  bool read(Record& record) {
    skip_blank_lines();
    if (peek() == kEnd) return false;
    record = {{}, line_, 0};
    for (bool has_more = true; has_more;) {
      has_more = read_field(record);
    }
    return true;
  }

 private:
  static constexpr int kEnd = -1;

  int peek() {
    if (at_ == buffer_.size()) {
      buffer_.resize(kBytesPerBlock);
      buffer_.resize(bytes_->read(buffer_.data(), buffer_.size()));
      at_ = 0;
    }
    return buffer_.empty() ? kEnd : static_cast<unsigned char>(buffer_[at_]);
  }

  int take() {
    const int c = peek();
    if (c != kEnd) {
      ++at_;
      ++byte_;
      if (c == '\n') {
        ++line_;
        byte_ = 0;
      }
    }
    return c;
  }

  void skip_blank_lines() {
    while (peek() == '\n' || peek() == '\r') {
      take();
    }
  }

  void limit(std::uint64_t line, std::size_t num_bytes) const {
    if (num_bytes > kMaxExampleBytes) {
      throw DataError(place(file_, line, 1),
                      "the record is longer than 64 MiB: probably a quote is opened here and never closed");
    }
  }

  // Reads a field and its terminator; false if that ends the record.
  bool read_field(Record& record) {
    std::string field;
    if (peek() == '"') {
      read_quoted(record, field);
    }
    int c = take();
    for (; c != kEnd && c != '\n' && c != separator_; c = take()) {
      if (c == '\r' && (peek() == '\n' || peek() == kEnd)) continue;
      field += static_cast<char>(c);
      limit(record.line, record.num_bytes + field.size());
    }
    record.num_bytes += field.size() + 1;
    limit(record.line, record.num_bytes);
    record.fields.push_back(std::move(field));
    return c == separator_;
  }

  void read_quoted(const Record& record, std::string& field) {
    const std::uint64_t line = line_;
    const std::size_t byte = byte_ + 1;
    take();
    for (;;) {
      const int c = take();
      if (c == kEnd) throw DataError(place(file_, line, byte), "the quote that opens here is never closed");
      if (c == '"' && peek() != '"') return;
      if (c == '"') {
        take();
      }
      field += static_cast<char>(c);
      limit(record.line, record.num_bytes + field.size());
    }
  }

  std::string file_;
  std::unique_ptr<ByteSource> bytes_;
  std::string buffer_;
  std::size_t at_ = 0;
  char separator_;
  std::uint64_t line_ = 1;
  std::size_t byte_ = 0;
};

class CsvReader : public ExampleReader {
 public:
  CsvReader(const std::string& file, std::unique_ptr<ByteSource> bytes, std::string begin, char separator)
      : ExampleReader(file), records_(file, std::move(bytes), std::move(begin), separator) {
    read_header();
  }

 private:
  void fill(ExampleBlock& block) override {
    Record record;
    for (std::size_t size = 0; block.examples.size() < kRowsPerBlock && size < kBytesPerBlock;
         size += record.num_bytes) {
      if (!records_.read(record)) return;
      block.examples.push_back(example_of(record));
    }
  }

  void read_header() {
    Record record;
    if (!records_.read(record)) return;
    columns_ = std::move(record.fields);
    if (columns_.size() == 1 && columns_.front().find(';') != std::string::npos) {
      throw DataError(
          place(file(), record.line, 1),
          "the columns are separated by semicolons, expected commas (.csv) or tabs (.tsv); convert the file: "
          "python3 -c \"import pandas; pandas.read_csv('{}', sep=';').to_csv('rows.csv', index=False)\"",
          file());
    }
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      // As pandas names its index, and Excel's columns without a title.
      if (columns_[i].empty()) columns_[i] = fmt::format("Unnamed: {}", i);
      const bool is_double = std::count(columns_.begin(), columns_.end(), columns_[i]) > 1;
      if (is_double || find_invalid_utf8(columns_[i])) {
        throw DataError(place(file(), record.line, 1),
                        "column {} of the header {}; the first record names the columns, each once", i + 1,
                        is_double ? "has a name that occurs twice" : "is not valid UTF-8");
      }
    }
  }

  RawExample example_of(const Record& record) const {
    RawExample example{.line = record.line};
    const auto bad = [&](std::string message) {
      example.value = nullptr;
      example.refuse(place(file(), record.line, 1), std::move(message));
      return example;
    };
    if (record.fields.size() != columns_.size()) {
      return bad(
          fmt::format("the record has {} fields, the header {}; a field with a separator, quote or line end must "
                      "be quoted",
                      record.fields.size(), columns_.size()));
    }
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (find_invalid_utf8(record.fields[i])) {
        return bad(fmt::format("field \"{}\" is not valid UTF-8; convert the file to UTF-8 (in Excel: CSV UTF-8)",
                               columns_[i]));
      }
      example.value[columns_[i]] = record.fields[i];
    }
    return example;
  }

  RecordReader records_;
  std::vector<std::string> columns_;
};

}  // namespace

bool is_table(const fs::path& file) {
  const std::string extension = file.extension().string();
  return extension == ".parquet" || extension == ".arrow" || extension == ".feather";
}

void require_table_library(const fs::path& file) {
  if (arrow().folder.empty()) {
    throw DataError(file.string(), "{}. Or convert it: {}", arrow().problem, conversion_of(file));
  }
}

std::unique_ptr<ExampleReader> open_table(const std::filesystem::path& file) {
  return std::make_unique<TableReader>(file);
}

std::unique_ptr<ExampleReader> open_csv(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin,
                                        char separator) {
  return std::make_unique<CsvReader>(file, std::move(bytes), std::move(begin), separator);
}

}  // namespace lora_train::data
