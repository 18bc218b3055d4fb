#include "byte_source.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::data {
namespace {

constexpr std::size_t kBlock = 256 << 10;
constexpr std::string_view kGzipMark = "\x1F\x8B";
constexpr std::string_view kZstdMark = "\x28\xB5\x2F\xFD";

[[noreturn]] void fail(const FileReader& file, const std::string& what) {
  throw DataError(file.path().string(), what + "; the file is damaged or its download was cut off: fetch it again");
}

// A file whose first block was already looked at.
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

class GzipSource : public ByteSource {
 public:
  explicit GzipSource(PlainSource packed) : packed_(std::move(packed)) {
    constexpr int kGzipWindow = 15 + 16;
    if (::inflateInit2(&stream_, kGzipWindow) != Z_OK) {
      throw IoError(packed_.file().path().string(), "zlib cannot start: out of memory");
    }
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  std::size_t read(char* buffer, std::size_t size) override {
    throw_if_stop_requested();
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = static_cast<uInt>(size);
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0 && !refill()) {
        if (!is_between_members_) {
          fail(packed_.file(), "the gzip data ends early");
        }
        break;
      }
      step();
    }
    return size - stream_.avail_out;
  }

 private:
  bool refill() {
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(packed_.read(input_.data(), input_.size()));
    return stream_.avail_in > 0;
  }

  // Files that were packed piece by piece are several members, one behind the other.
  void step() {
    is_between_members_ = false;
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      is_between_members_ = true;
      ::inflateReset(&stream_);
    } else if (code != Z_OK) {
      fail(packed_.file(),
           std::string("the gzip data is wrong (") + (stream_.msg != nullptr ? stream_.msg : "zlib") + ")");
    }
  }

  PlainSource packed_;
  std::string input_ = std::string(kBlock, '\0');
  z_stream stream_{};
  bool is_between_members_ = false;
};

class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(PlainSource packed)
      : packed_(std::move(packed)), stream_(::ZSTD_createDStream(), ::ZSTD_freeDStream) {
    if (stream_ == nullptr) {
      throw IoError(packed_.file().path().string(), "zstd cannot start: out of memory");
    }
  }

  std::size_t read(char* buffer, std::size_t size) override {
    throw_if_stop_requested();
    ZSTD_outBuffer out{buffer, size, 0};
    while (out.pos < out.size) {
      if (in_.pos == in_.size && !refill()) {
        // What zstd holds back comes without new input; only then is the end known.
        const std::size_t before = out.pos;
        if (is_between_frames_) {
          break;
        }
        step(out);
        if (out.pos == before && !is_between_frames_) {
          fail(packed_.file(), "the zstd data ends early");
        }
        continue;
      }
      step(out);
    }
    return out.pos;
  }

 private:
  bool refill() {
    in_ = {input_.data(), packed_.read(input_.data(), input_.size()), 0};
    return in_.size > 0;
  }

  void step(ZSTD_outBuffer& out) {
    const std::size_t code = ::ZSTD_decompressStream(stream_.get(), &out, &in_);
    if (::ZSTD_isError(code) != 0) {
      fail(packed_.file(), std::string("the zstd data is wrong (") + ::ZSTD_getErrorName(code) + ")");
    }
    is_between_frames_ = code == 0;
  }

  PlainSource packed_;
  std::string input_ = std::string(kBlock, '\0');
  ZSTD_inBuffer in_{nullptr, 0, 0};
  std::unique_ptr<ZSTD_DStream, decltype(&::ZSTD_freeDStream)> stream_;
  bool is_between_frames_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path) {
  auto file = std::make_unique<FileReader>(path);
  std::string begin(kZstdMark.size(), '\0');
  begin.resize(file->read(begin.data(), begin.size()));
  const bool is_gzip = begin.starts_with(kGzipMark), is_zstd = begin.starts_with(kZstdMark);
  PlainSource bytes(std::move(file), std::move(begin));
  if (is_gzip) {
    return std::make_unique<GzipSource>(std::move(bytes));
  }
  if (is_zstd) {
    return std::make_unique<ZstdSource>(std::move(bytes));
  }
  return std::make_unique<PlainSource>(std::move(bytes));
}

}  // namespace lora_train::data
