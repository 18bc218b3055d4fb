#include "lora_train/storage/safetensors.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/storage/model_file.h"
#include "safetensors_header.h"

namespace lora_train::storage {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kDownloadAgain = "download or save the file again";

std::uint64_t read_u64_le(const char* bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// Rules 1 to 3. Returns N, the length of the JSON.
std::size_t read_header_length(std::string_view file, const std::string& where) {
  refuse_lfs_pointer(file, where);
  if (file.size() < 8) {
    throw FormatError(where, "the file has " + std::to_string(file.size()) +
                                 " bytes; a safetensors file starts with 8 " +
                                 "bytes of header length: " + kDownloadAgain);
  }
  const std::uint64_t length = read_u64_le(file.data());
  if (length > kMaxHeaderBytes) {
    throw FormatError(
        where, "the header length is " + std::to_string(length) + " bytes; at most " + std::to_string(kMaxHeaderBytes) +
                   " are allowed, so this is no safetensors file or a " + "damaged one: " + kDownloadAgain);
  }
  if (length > file.size() - 8) {
    throw FormatError(where, "the header should have " + std::to_string(length) + " bytes but only " +
                                 std::to_string(file.size() - 8) + " follow: the file is truncated, " + kDownloadAgain);
  }
  return length;
}

[[noreturn]] void reject(const std::string& where, const TensorEntry& entry, const std::string& what) {
  throw FormatError(where + ": " + entry.name, what + ": the file is damaged, " + kDownloadAgain);
}

/// Rules 7 to 9.
void check_size(const std::string& where, const TensorEntry& entry) {
  std::uint64_t bits = static_cast<std::uint64_t>(dtype_bits(entry.dtype));
  std::uint64_t count = 1;
  for (const std::int64_t size : entry.shape) {
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(size), &count)) {
      reject(where, entry, "the number of elements of " + describe(entry) + " does not fit 64 bits");
    }
  }
  if (__builtin_mul_overflow(count, bits, &bits)) {
    reject(where, entry, "the number of bits of " + describe(entry) + " does not fit 64 bits");
  }
  if (bits % 8 != 0) {
    reject(where, entry, describe(entry) + " has " + std::to_string(bits) + " bits, which is no whole number of bytes");
  }
  if (entry.end - entry.begin != bits / 8) {
    reject(where, entry,
           "data_offsets span " + std::to_string(entry.end - entry.begin) + " bytes but " + describe(entry) +
               " takes " + std::to_string(bits / 8));
  }
}

/// Rules 6 to 10 on entries sorted by offset.
void check_layout(const std::string& where, const std::vector<TensorEntry>& tensors, std::size_t data_bytes) {
  std::size_t expected = 0;
  for (const auto& entry : tensors) {
    if (entry.begin != expected || entry.end < entry.begin) {
      reject(where, entry,
             "data_offsets are [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                 "] but must begin at " + std::to_string(expected) +
                 ", where the previous tensor ends (no overlap, no gap)");
    }
    check_size(where, entry);
    expected = entry.end;
  }
  if (expected > data_bytes) {
    throw FormatError(where, "the tensors take " + std::to_string(expected) + " bytes but only " +
                                 std::to_string(data_bytes) + " follow the header: the file is truncated, " +
                                 kDownloadAgain);
  }
  if (expected < data_bytes) {
    throw FormatError(where, std::to_string(data_bytes - expected) + " bytes follow the last tensor; the file must " +
                                 "end with it: " + kDownloadAgain);
  }
}

std::vector<std::uint32_t> sort_by_name(const std::string& where, const std::vector<TensorEntry>& tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return tensors[a].name < tensors[b].name; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (tensors[order[i]].name == tensors[order[i - 1]].name) {
      reject(where, tensors[order[i]], "the name appears twice in the header; each tensor may be listed once");
    }
  }
  return order;
}

MappedFile map_file(const std::filesystem::path& path) {
  require_regular_file(path);
  return MappedFile(path);
}

}  // namespace

std::int64_t TensorEntry::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string describe(const TensorEntry& entry) {
  std::string text = std::string(dtype_name(entry.dtype)) + " [";
  for (std::size_t i = 0; i < entry.shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(entry.shape[i]);
  return text + "]";
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : SafetensorsFile(map_file(file)) {}

SafetensorsFile::SafetensorsFile(MappedFile file) : file_(std::move(file)) {
  const std::string where = file_.path().string();
  const std::size_t length = read_header_length(file_.bytes(), where);
  auto header = parse_safetensors_header(file_.bytes().substr(8, length), where);
  file_.release(0, 8 + length);
  data_offset_ = 8 + length;
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  std::sort(tensors_.begin(), tensors_.end(),
            [](const auto& a, const auto& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  by_name_ = sort_by_name(where, tensors_);  // first: a repeated name would else be reported as a gap
  check_layout(where, tensors_, file_.size() - data_offset_);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](std::uint32_t index, std::string_view key) { return tensors_[index].name < key; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

std::string_view SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_.bytes().substr(data_offset_ + entry.begin, entry.num_bytes());
}

void SafetensorsFile::release(const TensorEntry& entry) const {
  file_.release(data_offset_ + entry.begin, entry.num_bytes());
}

}  // namespace lora_train::storage
