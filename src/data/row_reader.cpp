#include "row_reader.h"

#include <algorithm>
#include <string_view>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"

namespace lora_train::data {
namespace {

using OnRow = std::function<bool(RawRow&&)>;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kBlank = " \t\r\n";

std::string place(const std::string& file, std::uint64_t line, std::size_t byte) {
  return file + ":" + std::to_string(line) + ":" + std::to_string(byte);
}

RawRow bad_row(const std::string& file, std::uint64_t line, std::size_t byte, std::string message) {
  return {nullptr, line, true, place(file, line, byte), std::move(message)};
}

// num_skipped: bytes of the line before `text` (the byte order mark).
RawRow parse_line(const std::string& file, std::uint64_t line, std::string_view text, std::size_t num_skipped,
                  bool has_line_end) {
  if (text.size() > kMaxRowBytes) {
    return bad_row(file, line, num_skipped + kMaxRowBytes + 1, "the line is longer than 64 MiB");
  }
  if (text.starts_with(kByteOrderMark)) {  // nlohmann would skip it on every line
    return bad_row(file, line, num_skipped + 1, "a byte order mark inside the file; it may only open the first line");
  }
  JsonRow row = parse_json_row(text);
  if (!row.problem) {
    return {std::move(row.value), line, false, {}, {}};
  }
  std::string message = std::move(row.problem->message);
  if (row.problem->offset == text.size()) {
    message += has_line_end ? "; every line holds one whole object (a pretty-printed file must be one JSON array)"
                            : "; the last line has no end: the file looks truncated";
  }
  return bad_row(file, line, num_skipped + row.problem->offset + 1, std::move(message));
}

void read_lines(const std::string& file, std::string_view text, std::size_t num_skipped, const OnRow& on_row) {
  for (std::uint64_t line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    const bool has_line_end = end != std::string_view::npos;
    std::string_view row = text.substr(0, end);
    text.remove_prefix(has_line_end ? end + 1 : text.size());
    while (row.ends_with('\r')) {
      row.remove_suffix(1);
    }
    if (row.find_first_not_of(kBlank) != std::string_view::npos &&
        !on_row(parse_line(file, line, row, num_skipped, has_line_end))) {
      return;
    }
    num_skipped = 0;
  }
}

// Turns growing offsets into lines without counting from the start each time.
class LineCounter {
 public:
  LineCounter(std::string_view text, std::size_t num_skipped) : text_(text), num_skipped_(num_skipped) {}

  std::uint64_t line_of(std::size_t offset) {
    offset = std::min(offset, text_.size());
    if (offset < at_) {
      at_ = 0;
      line_ = 1;
    }
    line_ += static_cast<std::uint64_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                                   text_.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
    at_ = offset;
    return line_;
  }
  std::size_t byte_of(std::size_t offset) const {
    const std::size_t end = offset == 0 ? std::string_view::npos : text_.rfind('\n', offset - 1);
    return end == std::string_view::npos ? num_skipped_ + offset + 1 : offset - end;
  }

 private:
  std::string_view text_;
  std::size_t num_skipped_;
  std::size_t at_ = 0;
  std::uint64_t line_ = 1;
};

void read_array(const std::string& file, std::string_view text, std::size_t num_skipped, const OnRow& on_row) {
  LineCounter lines(text, num_skipped);
  const auto problem = parse_json_array(text, [&](JsonRow&& row) {
    if (!row.problem) {
      return on_row({std::move(row.value), lines.line_of(row.offset), false, {}, {}});
    }
    return on_row(bad_row(file, lines.line_of(row.problem->offset), lines.byte_of(row.problem->offset),
                          std::move(row.problem->message)));
  });
  if (problem) {
    throw DataError(place(file, lines.line_of(problem->offset), lines.byte_of(problem->offset)),
                    problem->message + "; the file is read as one JSON array, and the rest of it cannot be read");
  }
}

void refuse_foreign(const std::string& file, std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw DataError(place(file, 1, 1), "UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  if (text.starts_with("\x1F\x8B") || text.starts_with("\x28\xB5\x2F\xFD")) {
    throw DataError(place(file, 1, 1), "the file is packed (gzip or zstd), which is not built yet; unpack it first");
  }
  if (text.find_first_not_of(kBlank) == std::string_view::npos) {
    throw DataError(file, "the file has no row");
  }
}

}  // namespace

std::string read_rows(const std::filesystem::path& file, const OnRow& on_row) {
  // Not mapped: a dataset that another program shortens meanwhile would end a mapped read in SIGBUS.
  const std::string bytes = read_file(file);
  std::string_view text = bytes;
  const std::size_t num_skipped = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  text.remove_prefix(num_skipped);
  refuse_foreign(file.string(), text);
  const std::string fingerprint = hash128_hex(bytes);
  const bool is_array = text[text.find_first_not_of(kBlank)] == '[';
  (is_array ? read_array : read_lines)(file.string(), text, num_skipped, on_row);
  return fingerprint;
}

}  // namespace lora_train::data
