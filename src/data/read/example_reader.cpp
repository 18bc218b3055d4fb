#include "example_reader.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"

namespace lora_train::data {
namespace {

using Kind = RawExample::Kind;

constexpr std::size_t kBlockBytes = 1 << 20;
constexpr std::size_t kMaxArrayBytes = 4ULL << 30;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kBlank = " \t\r\n";

void refuse_long_line(RawExample& example, const std::string& file) {
  example.refuse(place(file, example.line, example.num_skipped + kMaxExampleBytes + 1),
                 "the line is longer than 64 MiB");
}

void parse_text_line(RawExample& example, const std::string& file, std::string_view text) {
  if (const auto invalid = find_invalid_utf8(text)) {
    return example.refuse(place(file, example.line, example.num_skipped + *invalid + 1),
                          "not valid UTF-8; convert the file to UTF-8");
  }
  example.value = Json{{"text", text}};
}

void parse_json_line(RawExample& example, const std::string& file, std::string_view text) {
  const auto refuse = [&](std::size_t offset, std::string message) {
    example.refuse(place(file, example.line, example.num_skipped + offset + 1), std::move(message));
  };
  // nlohmann would skip it on every line.
  if (text.starts_with(kByteOrderMark)) {
    return refuse(0, "a byte order mark inside the file; it may only start the first line");
  }
  JsonExample parsed = parse_json_example(text);
  example.value = std::move(parsed.value);
  if (!parsed.problem) return;
  std::string message = std::move(parsed.problem->message);
  if (parsed.problem->offset == text.size()) {
    message += example.has_line_end
                   ? "; every line holds one whole object (a pretty-printed file must be one JSON array)"
                   : "; the last line is incomplete: the file looks truncated";
  }
  refuse(parsed.problem->offset, std::move(message));
}

/// Without a byte offset: the text is ours.
void parse_table_row(RawExample& example, std::string_view text) {
  if (text.size() > kMaxExampleBytes) {
    return example.refuse(example.where, "as JSON the example is longer than 64 MiB");
  }
  JsonExample parsed = parse_json_example(text);
  example.value = std::move(parsed.value);
  if (parsed.problem) example.refuse(example.where, std::move(parsed.problem->message));
}

void parse(RawExample& example, const std::string& file, std::string_view text) {
  if (!example.is_bad) example.where = fmt::format("{}:{}", file, example.line);
  if (example.kind == Kind::kParsed) return;
  if (example.kind == Kind::kTableRow) return parse_table_row(example, text);
  if (text.size() > kMaxExampleBytes) return refuse_long_line(example, file);
  if (example.kind == Kind::kText) return parse_text_line(example, file, text);
  if (example.kind == Kind::kJsonLine) return parse_json_line(example, file, text);
  example.value = parse_json_example(text).value;
}

// One line per example: JSON Lines and plain text.
class LineReader : public ExampleReader {
 public:
  LineReader(std::string file, std::unique_ptr<ByteSource> bytes, std::string begin, std::size_t num_skipped, Kind kind)
      : ExampleReader(std::move(file)),
        bytes_(std::move(bytes)),
        pending_(std::move(begin)),
        num_skipped_(num_skipped),
        kind_(kind) {}

 private:
  void fill(ExampleBlock& block) override {
    while (block.examples.empty() && !(is_at_end_ && pending_.empty())) {
      read_more();
      take_lines(block);
    }
  }

  void read_more() {
    if (is_at_end_) return;
    const std::size_t had = pending_.size();
    pending_.resize(had + kBlockBytes);
    const std::size_t got = bytes_->read(pending_.data() + had, kBlockBytes);
    pending_.resize(had + got);
    is_at_end_ = got < kBlockBytes;
  }

  // Moves all complete lines out of pending_; at the end of the file, the remainder is also a line.
  void take_lines(ExampleBlock& block) {
    if (is_in_long_line_ && !skip_long_line()) return;
    const std::size_t last = std::string_view(pending_).substr(num_searched_).rfind('\n');
    if (last == std::string::npos && !is_at_end_) {
      num_searched_ = pending_.size();
      if (pending_.size() > kMaxExampleBytes) {
        block.examples.push_back({.line = line_, .num_skipped = num_skipped_});
        refuse_long_line(block.examples.back(), file());
        is_in_long_line_ = true;
        pending_.clear();
        num_searched_ = 0;
      }
      return;
    }
    const std::size_t size = is_at_end_ ? pending_.size() : num_searched_ + last + 1;
    num_searched_ = 0;
    std::string rest = pending_.substr(size);
    block.text = std::move(pending_);
    block.text.resize(size);
    pending_ = std::move(rest);
    split(block);
  }

  bool skip_long_line() {
    const std::size_t end = pending_.find('\n');
    pending_.erase(0, end == std::string::npos ? end : end + 1);
    if (end == std::string::npos) return false;
    is_in_long_line_ = false;
    end_line();
    return true;
  }

  void split(ExampleBlock& block) {
    const std::string_view text = block.text;
    for (std::size_t begin = 0; begin < text.size(); end_line()) {
      const std::size_t end = text.find('\n', begin);
      const bool has_line_end = end != std::string_view::npos;
      std::string_view example = text.substr(begin, has_line_end ? end - begin : end);
      while (example.ends_with('\r')) {
        example.remove_suffix(1);
      }
      if (example.find_first_not_of(kBlank) != std::string_view::npos) {
        block.examples.push_back({.kind = kind_,
                                  .line = line_,
                                  .begin = begin,
                                  .size = example.size(),
                                  .num_skipped = num_skipped_,
                                  .has_line_end = has_line_end});
      }
      begin = has_line_end ? end + 1 : text.size();
    }
  }

  void end_line() {
    ++line_;
    num_skipped_ = 0;
  }

  std::unique_ptr<ByteSource> bytes_;
  std::string pending_;
  std::size_t num_searched_ = 0;  // bytes at the begin of pending_ without a line end
  std::size_t num_skipped_;
  Kind kind_;
  std::uint64_t line_ = 1;
  bool is_at_end_ = false;
  bool is_in_long_line_ = false;
};

// Converts growing offsets into lines without counting from the start each time.
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

// One JSON array. The first parse finds the examples and all problems; examples are built later, block by block.
class ArrayReader : public ExampleReader {
 public:
  ArrayReader(const std::string& file, ByteSource& bytes, std::string begin, std::size_t num_skipped)
      : ExampleReader(file), text_(read_all(file, bytes, std::move(begin))), lines_(text_, num_skipped) {
    broken_ = parse_json_array(text_, [&](JsonExample&& example) {
      example.value = nullptr;
      examples_.push_back(std::move(example));
    });
  }

 private:
  void fill(ExampleBlock& block) override {
    for (; next_ < examples_.size() && block.text.size() < kBlockBytes; ++next_) {
      RawExample& example = block.examples.emplace_back(raw_example(examples_[next_], block.text));
      if (example.line == last_line_) example.element = next_ + 1;
      last_line_ = example.line;
    }
    if (block.examples.empty() && broken_) {
      throw DataError(place(file(), lines_.line_of(broken_->offset), lines_.byte_of(broken_->offset)),
                      broken_->message + "; the file is one JSON array, and the rest of it cannot be read");
    }
  }

  static std::string read_all(const std::string& file, ByteSource& bytes, std::string text) {
    for (std::size_t got = kBlockBytes; got == kBlockBytes;) {
      const std::size_t had = text.size();
      if (had > kMaxArrayBytes) {
        throw DataError(
            file, "a JSON array above 4 GiB is too large for memory; convert it to JSON Lines: jq -c '.[]' " + file +
                      " > rows.jsonl");
      }
      text.resize(had + kBlockBytes);
      got = bytes.read(text.data() + had, kBlockBytes);
      text.resize(had + got);
    }
    return text;
  }

  RawExample raw_example(JsonExample& found, std::string& text) {
    RawExample example;
    if (found.problem) {
      example.line = lines_.line_of(found.problem->offset);
      example.refuse(place(file(), example.line, lines_.byte_of(found.problem->offset)),
                     std::move(found.problem->message));
      return example;
    }
    example.kind = Kind::kJsonElement;
    example.line = lines_.line_of(found.offset);
    example.begin = text.size();
    example.size = found.end - found.offset;
    text.append(text_, found.offset, example.size);
    return example;
  }

  std::string text_;
  LineCounter lines_;
  std::vector<JsonExample> examples_;
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

std::unique_ptr<ExampleReader> open_kind(const std::filesystem::path& path, std::unique_ptr<ByteSource> bytes) {
  const std::string file = path.string(), ending = unpacked(path).extension().string();
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

constexpr std::size_t kPackedBytes = 256 << 10;
constexpr std::string_view kGzipMark = "\x1F\x8B";
constexpr std::string_view kZstdMark = "\x28\xB5\x2F\xFD";

// A file whose first block was already read.
class PlainSource : public ByteSource {
 public:
  PlainSource(std::unique_ptr<FileReader> file, std::string begin) : file_(std::move(file)), begin_(std::move(begin)) {}

  std::size_t read(char* buffer, std::size_t size) override {
    throw_if_stop_requested();
    const std::size_t from_begin = std::min(size, begin_.size() - taken_);
    std::memcpy(buffer, begin_.data() + taken_, from_begin);
    taken_ += from_begin;
    return from_begin + (size > from_begin ? file_->read(buffer + from_begin, size - from_begin) : 0);
  }
  const FileReader& file() const { return *file_; }

 private:
  std::unique_ptr<FileReader> file_;
  std::string begin_;
  std::size_t taken_ = 0;
};

// Unpacks a file, which may consist of several packed pieces (gzip members, zstd frames), one after the other.
class PackedSource : public ByteSource {
 public:
  PackedSource(PlainSource packed, const char* format) : packed_(std::move(packed)), format_(format) {}

  std::size_t read(char* buffer, std::size_t size) override {
    throw_if_stop_requested();
    std::size_t num_read = 0;
    while (num_read < size) {
      if (in_.empty()) in_ = {input_.data(), packed_.read(input_.data(), input_.size())};
      const bool is_at_end = in_.empty();
      if (is_at_end && is_between_pieces_) break;
      const std::size_t got = unpack(buffer + num_read, size - num_read);
      num_read += got;
      // At the end of the file, the decoder may still hold output.
      if (is_at_end && got == 0 && !is_between_pieces_) fail("ends early");
    }
    return num_read;
  }

 protected:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(packed_.file().path().string(),
                    "the {} data {}; the file is damaged or its download was cut off: fetch it again", format_, what);
  }

  std::string_view in_;  ///< packed bytes not yet consumed
  bool is_between_pieces_ = false;

 private:
  /// Consumes in_ and returns the number of bytes written to `out`; with an empty in_, what the decoder still holds.
  virtual std::size_t unpack(char* out, std::size_t size) = 0;

  PlainSource packed_;
  const char* format_;
  std::string input_ = std::string(kPackedBytes, '\0');
};

class GzipSource : public PackedSource {
 public:
  explicit GzipSource(PlainSource packed) : PackedSource(std::move(packed), "gzip") {
    constexpr int kGzipWindow = 15 + 16;
    if (::inflateInit2(&stream_, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

 private:
  std::size_t unpack(char* out, std::size_t size) override {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in_.data()));
    stream_.avail_in = static_cast<uInt>(in_.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(size);
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    in_.remove_prefix(in_.size() - stream_.avail_in);
    is_between_pieces_ = code == Z_STREAM_END;
    if (is_between_pieces_) {
      ::inflateReset(&stream_);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {  // the latter: no input
      fail(fmt::format("is corrupt ({})", stream_.msg != nullptr ? stream_.msg : "zlib"));
    }
    return size - stream_.avail_out;
  }

  z_stream stream_{};
};

class ZstdSource : public PackedSource {
 public:
  explicit ZstdSource(PlainSource packed) : PackedSource(std::move(packed), "zstd") {
    if (stream_ == nullptr) throw std::bad_alloc();
  }

 private:
  std::size_t unpack(char* out, std::size_t size) override {
    ZSTD_outBuffer unpacked{out, size, 0};
    ZSTD_inBuffer packed{in_.data(), in_.size(), 0};
    const std::size_t code = ::ZSTD_decompressStream(stream_.get(), &unpacked, &packed);
    if (::ZSTD_isError(code) != 0) fail(fmt::format("is corrupt ({})", ::ZSTD_getErrorName(code)));
    in_.remove_prefix(packed.pos);
    is_between_pieces_ = code == 0;
    return unpacked.pos;
  }

  std::unique_ptr<ZSTD_DStream, decltype(&::ZSTD_freeDStream)> stream_{::ZSTD_createDStream(), ::ZSTD_freeDStream};
};

/// Opens `file`; detects gzip and zstd by their first bytes, whatever the file's name.
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path) {
  auto file = std::make_unique<FileReader>(path);
  std::string begin(kZstdMark.size(), '\0');
  begin.resize(file->read(begin.data(), begin.size()));
  const bool is_gzip = begin.starts_with(kGzipMark), is_zstd = begin.starts_with(kZstdMark);
  PlainSource bytes(std::move(file), std::move(begin));
  if (is_gzip) return std::make_unique<GzipSource>(std::move(bytes));
  if (is_zstd) return std::make_unique<ZstdSource>(std::move(bytes));
  return std::make_unique<PlainSource>(std::move(bytes));
}

}  // namespace

std::vector<RawExample> parse_examples(ExampleBlock&& block) {
  for (RawExample& example : block.examples) {
    parse(example, block.file, std::string_view(block.text).substr(example.begin, example.size));
  }
  return std::move(block.examples);
}

void for_each_example(const std::filesystem::path& file, const std::function<bool(RawExample&&)>& visit) {
  const auto reader = ExampleReader::open(file);
  while (auto block = reader->next()) {
    throw_if_stop_requested();
    for (RawExample& example : parse_examples(std::move(*block))) {
      if (!visit(std::move(example))) return;
    }
  }
}

std::unique_ptr<ExampleReader> ExampleReader::open(const std::filesystem::path& file) {
  return is_table(file) ? open_table(file) : open_kind(file, open_bytes(file));
}

std::optional<ExampleBlock> ExampleReader::next() {
  ExampleBlock block{.file = file_, .text = {}, .examples = {}};
  fill(block);
  if (block.examples.empty()) {
    if (!has_examples_) throw DataError(file_, "the file has no examples");
    return std::nullopt;
  }
  has_examples_ = true;
  return block;
}

}  // namespace lora_train::data
