#include "csv_reader.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"

namespace lora_train::data {
namespace {

constexpr std::size_t kReadBytes = 1 << 20;
constexpr std::size_t kRowsPerBlock = 1024;
constexpr std::size_t kBytesPerBlock = 1 << 20;

struct Record {
  std::vector<std::string> fields;
  std::uint64_t line = 0;
  std::size_t num_bytes = 0;
};

// Characters and places to records.
class RecordReader {
 public:
  RecordReader(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin, char separator)
      : file_(std::move(file)), bytes_(std::move(bytes)), buffer_(std::move(begin)), separator_(separator) {}

  // False at the end of the file.
  bool read(Record& record) {
    skip_blank_lines();
    if (peek() == kEnd) {
      return false;
    }
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
      buffer_.resize(kReadBytes);
      buffer_.resize(bytes_->read(buffer_.data(), kReadBytes));
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
    if (num_bytes > kMaxRowBytes) {
      throw DataError(place(file_, line, 1),
                      "the record is longer than 64 MiB: probably a quote is opened here and never closed");
    }
  }

  // Takes a field and what ends it; false when that is the end of the record.
  bool read_field(Record& record) {
    std::string field;
    if (peek() == '"') {
      read_quoted(record, field);
    }
    int c = take();
    for (; c != kEnd && c != '\n' && c != separator_; c = take()) {
      if (c == '\r' && (peek() == '\n' || peek() == kEnd)) {
        continue;
      }
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
      if (c == kEnd) {
        throw DataError(place(file_, line, byte), "the quote that opens here is never closed");
      }
      if (c == '"' && peek() != '"') {
        return;
      }
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

class CsvReader : public RowReader {
 public:
  CsvReader(const std::string& file, std::unique_ptr<ByteSource> bytes, std::string begin, char separator)
      : file_(file), records_(file, std::move(bytes), std::move(begin), separator) {
    read_header();
  }

  std::optional<RowBlock> next() override {
    RowBlock block;
    block.file = file_;
    Record record;
    for (std::size_t size = 0; block.pieces.size() < kRowsPerBlock && size < kBytesPerBlock; size += record.num_bytes) {
      if (!records_.read(record)) {
        break;
      }
      RowBlock::Piece piece{.kind = RowBlock::Kind::kParsed, .line = record.line};
      piece.row = row_of(record);
      block.pieces.push_back(std::move(piece));
    }
    return block.pieces.empty() ? std::nullopt : std::optional(std::move(block));
  }

 private:
  void read_header() {
    Record record;
    if (!records_.read(record)) {
      return;
    }
    columns_ = std::move(record.fields);
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const bool is_double = std::count(columns_.begin(), columns_.end(), columns_[i]) > 1;
      if (columns_[i].empty() || is_double || find_invalid_utf8(columns_[i])) {
        throw DataError(place(file_, record.line, 1), "column " + std::to_string(i + 1) + " of the header " +
                                                          (columns_[i].empty() ? "has no name"
                                                           : is_double         ? "has a name that occurs twice"
                                                                               : "is not valid UTF-8") +
                                                          "; the first record names the columns, each once");
      }
    }
  }

  RawRow row_of(const Record& record) const {
    const auto bad = [&](std::string message) {
      return RawRow{nullptr, record.line, true, place(file_, record.line, 1), std::move(message)};
    };
    if (record.fields.size() != columns_.size()) {
      return bad("the record has " + std::to_string(record.fields.size()) + " fields, the header " +
                 std::to_string(columns_.size()) + "; a field with a separator, quote or line end must be quoted");
    }
    RawRow row{Json::object(), record.line, false, {}, {}};
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (find_invalid_utf8(record.fields[i])) {
        return bad("field \"" + columns_[i] + "\" is not valid UTF-8; convert the file to UTF-8");
      }
      row.value[columns_[i]] = record.fields[i];
    }
    return row;
  }

  std::string file_;
  RecordReader records_;
  std::vector<std::string> columns_;
};

}  // namespace

std::unique_ptr<RowReader> open_csv(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin,
                                    char separator) {
  return std::make_unique<CsvReader>(file, std::move(bytes), std::move(begin), separator);
}

}  // namespace lora_train::data
