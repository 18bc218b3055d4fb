#include "row_reader.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "byte_source.h"
#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"
#include "table_library.h"

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

/// The first record names the columns; every further one is a row {"column": "text", ...}. Blank lines are skipped.
/// `begin` is what was already read of `bytes`. Throws DataError for a header without names or with a name twice; a
/// record with more or fewer fields is a bad row.
std::unique_ptr<RowReader> open_csv(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin,
                                    char separator) {
  return std::make_unique<CsvReader>(file, std::move(bytes), std::move(begin), separator);
}

using Kind = RowBlock::Kind;

constexpr std::size_t kBlockBytes = 1 << 20;
constexpr std::size_t kMaxArrayBytes = 4ULL << 30;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kBlank = " \t\r\n";

RawRow bad_row(const std::string& file, std::uint64_t line, std::size_t byte, std::string message) {
  return {nullptr, line, true, place(file, line, byte), std::move(message)};
}

RowBlock::Piece ready(RawRow&& row) {
  RowBlock::Piece piece{.kind = Kind::kParsed, .line = row.line};
  piece.row = std::move(row);
  return piece;
}

RawRow too_long(const std::string& file, std::uint64_t line, std::size_t num_skipped) {
  return bad_row(file, line, num_skipped + kMaxRowBytes + 1, "the line is longer than 64 MiB");
}

RawRow parse_text_line(const std::string& file, const RowBlock::Piece& piece, std::string_view text) {
  if (const auto invalid = find_invalid_utf8(text)) {
    return bad_row(file, piece.line, piece.num_skipped + *invalid + 1, "not valid UTF-8; convert the file to UTF-8");
  }
  return {Json{{"text", text}}, piece.line, false, {}, {}};
}

RawRow parse_json_line(const std::string& file, const RowBlock::Piece& piece, std::string_view text) {
  if (text.starts_with(kByteOrderMark)) {  // nlohmann would skip it on every line
    return bad_row(file, piece.line, piece.num_skipped + 1,
                   "a byte order mark inside the file; it may only start the first line");
  }
  JsonRow row = parse_json_row(text);
  if (!row.problem) {
    return {std::move(row.value), piece.line, false, {}, {}};
  }
  std::string message = std::move(row.problem->message);
  if (row.problem->offset == text.size()) {
    message += piece.has_line_end ? "; every line holds one whole object (a pretty-printed file must be one JSON array)"
                                  : "; the last line is incomplete: the file looks truncated";
  }
  return bad_row(file, piece.line, piece.num_skipped + row.problem->offset + 1, std::move(message));
}

/// Without a byte: the text is ours.
RawRow parse_table_row(const std::string& file, const RowBlock::Piece& piece, std::string_view text) {
  const std::string where = file + ":" + std::to_string(piece.line);
  if (text.size() > kMaxRowBytes) return {nullptr, piece.line, true, where, "as JSON the row is longer than 64 MiB"};
  JsonRow row = parse_json_row(text);
  if (!row.problem) return {std::move(row.value), piece.line, false, {}, {}};
  return {nullptr, piece.line, true, where, std::move(row.problem->message)};
}

RawRow parse_piece(const std::string& file, RowBlock::Piece& piece, std::string_view text) {
  if (piece.kind == Kind::kParsed) {
    return std::move(piece.row);
  }
  if (piece.kind == Kind::kTableRow) {
    return parse_table_row(file, piece, text);
  }
  if (text.size() > kMaxRowBytes) {
    return too_long(file, piece.line, piece.num_skipped);
  }
  if (piece.kind == Kind::kText) {
    return parse_text_line(file, piece, text);
  }
  if (piece.kind == Kind::kJsonLine) {
    return parse_json_line(file, piece, text);
  }
  return {parse_json_row(text).value, piece.line, false, {}, {}};
}

// One line a row: JSON Lines and plain text.
class LineReader : public RowReader {
 public:
  LineReader(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin, std::size_t num_skipped, Kind kind)
      : file_(std::move(file)),
        bytes_(std::move(bytes)),
        pending_(std::move(begin)),
        num_skipped_(num_skipped),
        kind_(kind) {}

  std::optional<RowBlock> next() override {
    RowBlock block;
    block.file = file_;
    while (block.pieces.empty()) {
      if (is_at_end_ && pending_.empty()) {
        return std::nullopt;
      }
      fill();
      take_lines(block);
    }
    return block;
  }

 private:
  void fill() {
    if (is_at_end_) {
      return;
    }
    const std::size_t had = pending_.size();
    pending_.resize(had + kBlockBytes);
    const std::size_t got = bytes_->read(pending_.data() + had, kBlockBytes);
    pending_.resize(had + got);
    is_at_end_ = got < kBlockBytes;
  }

  // Moves all whole lines out of pending_; at the end of the file what is left is a line too.
  void take_lines(RowBlock& block) {
    if (is_in_long_line_ && !skip_long_line()) {
      return;
    }
    const std::size_t last = pending_.rfind('\n');
    if (last == std::string::npos && !is_at_end_) {
      if (pending_.size() > kMaxRowBytes) {
        block.pieces.push_back(ready(too_long(file_, line_, num_skipped_)));
        is_in_long_line_ = true;
        pending_.clear();
      }
      return;
    }
    const std::size_t size = is_at_end_ ? pending_.size() : last + 1;
    std::string rest = pending_.substr(size);
    block.text = std::move(pending_);
    block.text.resize(size);
    pending_ = std::move(rest);
    split(block);
  }

  bool skip_long_line() {
    const std::size_t end = pending_.find('\n');
    pending_.erase(0, end == std::string::npos ? end : end + 1);
    if (end == std::string::npos) {
      return false;
    }
    is_in_long_line_ = false;
    end_line();
    return true;
  }

  void split(RowBlock& block) {
    const std::string_view text = block.text;
    for (std::size_t begin = 0; begin < text.size(); end_line()) {
      const std::size_t end = text.find('\n', begin);
      const bool has_line_end = end != std::string_view::npos;
      std::string_view row = text.substr(begin, has_line_end ? end - begin : end);
      while (row.ends_with('\r')) {
        row.remove_suffix(1);
      }
      if (row.find_first_not_of(kBlank) != std::string_view::npos) {
        block.pieces.push_back({.kind = kind_,
                                .line = line_,
                                .begin = begin,
                                .size = row.size(),
                                .num_skipped = num_skipped_,
                                .has_line_end = has_line_end,
                                .element = 0,
                                .row = {}});
      }
      begin = has_line_end ? end + 1 : text.size();
    }
  }

  void end_line() {
    ++line_;
    num_skipped_ = 0;
  }

  std::string file_;
  std::unique_ptr<ByteSource> bytes_;
  std::string pending_;
  std::size_t num_skipped_;
  Kind kind_;
  std::uint64_t line_ = 1;
  bool is_at_end_ = false;
  bool is_in_long_line_ = false;
};

// Turns growing offsets into lines without counting from the start each time.
class LineCounter {
 public:
  LineCounter(std::string_view text, std::size_t num_skipped) : text_(text), num_skipped_(num_skipped) {}

  std::uint64_t line_of(std::size_t offset) {
    offset = std::min(offset, text_.size());
    if (offset < at_) {
      at_ = line_begin_ = 0;
      line_ = 1;
    }
    const std::string_view passed = text_.substr(at_, offset - at_);
    line_ += static_cast<std::uint64_t>(std::count(passed.begin(), passed.end(), '\n'));
    if (const std::size_t end = passed.rfind('\n'); end != std::string_view::npos) {
      line_begin_ = at_ + end + 1;
    }
    at_ = offset;
    return line_;
  }
  std::size_t byte_of(std::size_t offset) {
    line_of(offset);
    return line_ == 1 ? num_skipped_ + offset + 1 : offset - line_begin_ + 1;
  }

 private:
  std::string_view text_;
  std::size_t num_skipped_;
  std::size_t at_ = 0, line_begin_ = 0;
  std::uint64_t line_ = 1;
};

// One JSON array. Its first parse finds the rows and everything that is wrong; rows are built later, block by block.
class ArrayReader : public RowReader {
 public:
  ArrayReader(std::string file, ByteSource& bytes, std::string begin, std::size_t num_skipped)
      : file_(std::move(file)), text_(std::move(begin)), lines_(text_, num_skipped) {
    read_all(bytes);
    lines_ = LineCounter(text_, num_skipped);
    broken_ = parse_json_array(text_, [&](JsonRow&& row) {
      row.value = nullptr;
      rows_.push_back(std::move(row));
      return true;
    });
  }

  std::optional<RowBlock> next() override {
    RowBlock block;
    block.file = file_;
    for (; next_ < rows_.size() && block.text.size() < kBlockBytes; ++next_) {
      RowBlock::Piece piece = piece_of(rows_[next_], block.text);
      if (piece.line == last_line_) piece.element = next_ + 1;
      last_line_ = piece.line;
      block.pieces.push_back(std::move(piece));
    }
    if (!block.pieces.empty()) {
      return block;
    }
    if (broken_) {
      throw DataError(place(file_, lines_.line_of(broken_->offset), lines_.byte_of(broken_->offset)),
                      broken_->message + "; the file is read as one JSON array, and the rest of it cannot be read");
    }
    return std::nullopt;
  }

 private:
  void read_all(ByteSource& bytes) {
    for (std::size_t got = kBlockBytes; got == kBlockBytes;) {
      const std::size_t had = text_.size();
      if (had > kMaxArrayBytes) {
        throw DataError(
            file_, "a JSON array of more than 4 GiB is not held in memory; make it JSON Lines: jq -c '.[]' " + file_ +
                       " > rows.jsonl");
      }
      text_.resize(had + kBlockBytes);
      got = bytes.read(text_.data() + had, kBlockBytes);
      text_.resize(had + got);
    }
  }

  RowBlock::Piece piece_of(JsonRow& row, std::string& text) {
    if (row.problem) {
      return ready(bad_row(file_, lines_.line_of(row.problem->offset), lines_.byte_of(row.problem->offset),
                           std::move(row.problem->message)));
    }
    RowBlock::Piece piece{.kind = Kind::kJsonElement, .line = lines_.line_of(row.offset)};
    piece.begin = text.size();
    piece.size = row.end - row.offset;
    text.append(text_, row.offset, piece.size);
    return piece;
  }

  std::string file_;
  std::string text_;
  LineCounter lines_;
  std::vector<JsonRow> rows_;
  std::optional<JsonProblem> broken_;
  std::size_t next_ = 0;
  std::uint64_t last_line_ = 0;
};

void refuse_foreign(const std::string& file, std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw DataError(place(file, 1, 1), "UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  if (text.starts_with("PAR1")) {
    throw DataError(place(file, 1, 1), "a Parquet file; give it a name that ends in .parquet");
  }
}

// Says so when the file ends without having given a row.
class NonEmpty : public RowReader {
 public:
  NonEmpty(std::string file, std::unique_ptr<RowReader> rows) : file_(std::move(file)), rows_(std::move(rows)) {}
  std::optional<RowBlock> next() override {
    auto block = rows_->next();
    if (!block && !has_rows_) {
      throw DataError(file_, "the file has no row");
    }
    has_rows_ = true;
    return block;
  }

 private:
  std::string file_;
  std::unique_ptr<RowReader> rows_;
  bool has_rows_ = false;
};

// The ending that tells the kind: ".csv" of "a.csv.gz".
std::string kind_of_name(std::filesystem::path file) {
  if (file.extension() == ".gz" || file.extension() == ".zst") {
    file = file.stem();
  }
  return file.extension().string();
}

std::unique_ptr<RowReader> open_kind(const std::filesystem::path& path, std::unique_ptr<ByteSource> bytes) {
  const std::string file = path.string(), ending = kind_of_name(path);
  std::string begin(kBlockBytes, '\0');
  begin.resize(bytes->read(begin.data(), begin.size()));
  refuse_foreign(file, begin);
  const std::size_t num_skipped = begin.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  begin.erase(0, num_skipped);
  if (ending == ".csv" || ending == ".tsv") {
    return open_csv(file, std::move(bytes), std::move(begin), ending == ".csv" ? ',' : '\t');
  }
  const std::size_t first = begin.find_first_not_of(kBlank);
  if (ending != ".txt" && first != std::string::npos && begin[first] == '[') {
    return std::make_unique<ArrayReader>(file, *bytes, std::move(begin), num_skipped);
  }
  return std::make_unique<LineReader>(file, std::move(bytes), std::move(begin), num_skipped,
                                      ending == ".txt" ? Kind::kText : Kind::kJsonLine);
}

}  // namespace

std::vector<RawRow> parse_rows(RowBlock&& block) {
  std::vector<RawRow> rows;
  rows.reserve(block.pieces.size());
  for (RowBlock::Piece& piece : block.pieces) {
    rows.push_back(parse_piece(block.file, piece, std::string_view(block.text).substr(piece.begin, piece.size)));
    rows.back().element = piece.element;
  }
  return rows;
}

std::unique_ptr<RowReader> RowReader::open(const std::filesystem::path& file) {
  return std::make_unique<NonEmpty>(file.string(),
                                    is_table(file) ? open_table(file) : open_kind(file, open_bytes(file)));
}

}  // namespace lora_train::data
