#include "lora_train/storage/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::storage {
namespace {

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of the header; offsets not checked
  std::map<std::string, std::string> metadata;
};

constexpr const char* kDamaged = "the file is damaged or was not written as safetensors: download or save it again";

/// The depth to which the reference reader follows skipped values.
constexpr int kMaxDepth = 127;

constexpr const char* kFields[] = {"dtype", "shape", "data_offsets"};

bool is_field(const std::string& key) {
  return std::find(std::begin(kFields), std::end(kFields), key) != std::end(kFields);
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  std::string out = "\"";
  for (const char c : text.substr(0, kLongest)) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += '?';
    } else {
      out += c;
    }
  }
  return out + (text.size() > kLongest ? "...\"" : "\"");
}

/// Follows the events of the parser through {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {...}}.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(SafetensorsHeader& header, std::string file) : header_(header), file_(std::move(file)) {}

  bool key(string_t& name) override {
    if (state_ == State::kSkip) return true;
    key_ = name;
    if (state_ == State::kMetadata) {
      if (header_.metadata.count(name) != 0) reject("__metadata__ holds the key " + in_quotes(name) + " twice");
    } else if (state_ == State::kTensor && is_field(name) && !fields_.insert(name).second) {
      reject(fmt::format("the key \"{}\" appears twice in the entry", name));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kSkip) return descend();
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop && key_ == "__metadata__") {
      if (has_metadata_) reject("__metadata__ appears twice in the header; one is allowed");
      has_metadata_ = true;
      state_ = State::kMetadata;
    } else if (state_ == State::kTop) {
      begin_tensor();
    } else {
      value("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::kSkip) return ascend();
    if (state_ == State::kTensor) {
      for (const char* field : kFields) {
        if (fields_.contains(field)) continue;
        reject(fmt::format("the entry has no \"{}\"; dtype, shape and data_offsets are needed", field));
      }
      state_ = State::kTop;
    } else if (state_ == State::kMetadata) {
      state_ = State::kTop;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::kSkip) return descend();
    if (state_ == State::kTensor && key_ == "shape") {
      state_ = State::kShape;
    } else if (state_ == State::kTensor && key_ == "data_offsets") {
      state_ = State::kOffsets;
    } else {
      value("an array");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::kSkip) return ascend();
    if (state_ == State::kOffsets && num_offsets_ != 2) {
      reject(fmt::format("data_offsets holds {} numbers; [begin, end] was expected", num_offsets_));
    }
    state_ = State::kTensor;
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == State::kMetadata) {
      header_.metadata.emplace(key_, text);
      return true;
    }
    if (state_ != State::kTensor || key_ != "dtype") return value("a string");
    const auto dtype = parse_dtype(text);
    if (!dtype) reject(fmt::format("unknown dtype {}; F32, F16 and BF16 are what models use", in_quotes(text)));
    tensor().dtype = *dtype;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (state_ == State::kShape) {
      if (number > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
        reject(fmt::format("the dimension {} in shape is larger than any tensor can be", number));
      }
      tensor().shape.push_back(static_cast<std::int64_t>(number));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (num_offsets_ == 2) reject("data_offsets holds more than two numbers; [begin, end] was expected");
      (num_offsets_++ == 0 ? tensor().begin : tensor().end) = number;
      return true;
    }
    return value("a number");
  }

  bool number_integer(number_integer_t number) override { return value(fmt::format("the negative number {}", number)); }
  bool number_float(number_float_t, const string_t& text) override { return value("the number " + in_quotes(text)); }
  bool boolean(bool) override { return value("a boolean"); }
  bool null() override {
    if (state_ == State::kTop && key_ == "__metadata__" && !has_metadata_) return has_metadata_ = true;
    return value("null");
  }
  bool binary(binary_t&) override { return value("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string reason = error.what();
    if (const auto at = reason.rfind("syntax error"); at != std::string::npos) reason.erase(0, at);
    for (char& c : reason) {
      if (c < ' ' || c > '~') c = '?';  // it quotes the bytes that are not UTF-8
    }
    throw FormatError(file_, "the header is not valid UTF-8 JSON at byte {} of the file ({}); {}", 8 + position, reason,
                      kDamaged);
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kSkip };

  TensorEntry& tensor() { return header_.tensors.back(); }

  void begin_tensor() {
    header_.tensors.emplace_back();
    tensor().name = key_;
    num_offsets_ = 0;
    fields_.clear();
    state_ = State::kTensor;
  }

  /// A value of an unexpected kind: skipped under an unknown key of a tensor, else refused.
  bool value(const std::string& what) {
    if (state_ == State::kSkip) return true;
    if (state_ == State::kTensor && !is_field(key_)) {
      if (what == "an object" || what == "an array") {
        state_ = State::kSkip;
        skip_depth_ = 1;
      }
      return true;
    }
    switch (state_) {
      case State::kStart: reject(fmt::format("the header is {}; a JSON object was expected", what));
      case State::kTop:
        reject(in_quotes(key_) + " is " + what + "; an object with dtype, shape and data_offsets was expected");
      case State::kMetadata:
        reject(fmt::format("__metadata__ maps {} to {}; only strings are allowed", in_quotes(key_), what));
      case State::kTensor:
        reject(key_ + " is " + what + "; " + (key_ == "dtype" ? "a string" : "an array of sizes") + " was expected");
      default: reject(fmt::format("{} holds {}; sizes are whole numbers from 0 to 2^64 - 1", key_, what));
    }
  }

  bool descend() {
    if (++skip_depth_ > kMaxDepth) reject(fmt::format("values are nested deeper than {} levels", kMaxDepth));
    return true;
  }
  bool ascend() {
    if (--skip_depth_ == 0) state_ = State::kTensor;
    return true;
  }

  [[noreturn]] void reject(const std::string& what) const {
    const bool in_tensor =
        state_ == State::kTensor || state_ == State::kShape || state_ == State::kOffsets || state_ == State::kSkip;
    throw FormatError(in_tensor ? file_ + ": " + header_.tensors.back().name : file_, "{}; {}", what, kDamaged);
  }

  SafetensorsHeader& header_;
  std::string file_, key_;
  State state_ = State::kStart;
  std::set<std::string, std::less<>>
      fields_;  // the kFields that the current tensor has had; their contents are checked there
  bool has_metadata_ = false;
  int num_offsets_ = 0, skip_depth_ = 0;
};

/// Checks rules 4 and 5 of the format: UTF-8, JSON of the right types, known dtypes, unsigned sizes. Refuses a repeated
/// key in an object; skips unknown keys of a tensor, as the reference does. Throws FormatError, where = `file` or
/// "`file`: tensor".
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file) {
  // The parser ignores a byte order mark and stops at a NUL; JSON allows neither.
  if (json.find('\0') != std::string_view::npos || json.substr(0, 3) == "\xEF\xBB\xBF") {
    throw FormatError(file, std::string("the header holds a NUL byte or starts with a byte order mark; ") + kDamaged);
  }
  SafetensorsHeader header;
  HeaderHandler handler(header, file);
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  return header;
}

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
    throw FormatError(where, "the file has {} bytes; a safetensors file starts with 8 bytes of header length: {}",
                      file.size(), kDownloadAgain);
  }
  const std::uint64_t length = read_u64_le(file.data());
  if (length > kMaxHeaderBytes) {
    throw FormatError(where,
                      "the header length is {} bytes; at most {} are allowed, so this is not a safetensors file, or a "
                      "damaged one: {}",
                      length, kMaxHeaderBytes, kDownloadAgain);
  }
  if (length > file.size() - 8) {
    throw FormatError(where, "the header should have {} bytes but only {} follow: the file is truncated, {}", length,
                      file.size() - 8, kDownloadAgain);
  }
  return length;
}

[[noreturn]] void reject(const std::string& where, const TensorEntry& entry, const std::string& what) {
  throw FormatError(fmt::format("{}: {}", where, entry.name), "{}: the file is damaged, {}", what, kDownloadAgain);
}

/// Rules 7 to 9.
void check_size(const std::string& where, const TensorEntry& entry) {
  std::uint64_t bits = static_cast<std::uint64_t>(dtype_bits(entry.dtype));
  std::uint64_t count = 1;
  for (const std::int64_t size : entry.shape) {
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(size), &count)) {
      reject(where, entry, fmt::format("the number of elements of {} does not fit 64 bits", describe(entry)));
    }
  }
  if (__builtin_mul_overflow(count, bits, &bits)) {
    reject(where, entry, fmt::format("the number of bits of {} does not fit 64 bits", describe(entry)));
  }
  if (bits % 8 != 0) {
    reject(where, entry, fmt::format("{} has {} bits, which is not a whole number of bytes", describe(entry), bits));
  }
  if (entry.end - entry.begin != bits / 8) {
    reject(
        where, entry,
        fmt::format("data_offsets span {} bytes but {} takes {}", entry.end - entry.begin, describe(entry), bits / 8));
  }
}

/// Rules 6 to 10 on entries sorted by offset.
void check_layout(const std::string& where, const std::vector<TensorEntry>& tensors, std::size_t data_bytes) {
  std::size_t expected = 0;
  for (const auto& entry : tensors) {
    if (entry.begin != expected || entry.end < entry.begin) {
      reject(where, entry,
             fmt::format("data_offsets are [{}, {}] but must begin at {}, where the previous tensor ends (no overlap, "
                         "no gap)",
                         entry.begin, entry.end, expected));
    }
    check_size(where, entry);
    expected = entry.end;
  }
  if (expected > data_bytes) {
    throw FormatError(where, "the tensors take {} bytes but only {} follow the header: the file is truncated, {}",
                      expected, data_bytes, kDownloadAgain);
  }
  if (expected < data_bytes) {
    throw FormatError(where, "{} bytes follow the last tensor; the file must end with it: {}", data_bytes - expected,
                      kDownloadAgain);
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

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bits;
};

/// In enum order.
constexpr std::array<DTypeRow, 22> kDTypes = {{
    {DType::kBool, "BOOL", 8},
    {DType::kF4, "F4", 4},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},
    {DType::kF32, "F32", 32},
    {DType::kC64, "C64", 64},
    {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},
}};

using Order = std::vector<const TensorToWrite*>;

Order write_order(const std::vector<TensorToWrite>& tensors) {
  Order order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  // Large elements first: this aligns every tensor for its type, since the header is padded to 8.
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const int bits_a = dtype_bits(a->dtype), bits_b = dtype_bits(b->dtype);
    return bits_a != bits_b ? bits_a > bits_b : a->name < b->name;
  });
  return order;
}

std::string header_of(const Order& order, const std::map<std::string, std::string>& metadata, std::size_t& data_bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::map<std::string_view, int> seen;
  data_bytes = 0;
  for (const auto* tensor : order) {
    if (tensor->name == "__metadata__" || seen[tensor->name]++ > 0) {
      throw ShapeError(tensor->name, "two tensors to write have this name, or it is reserved");
    }
    const std::size_t end = data_bytes + tensor_bytes(tensor->dtype, tensor->shape);
    nlohmann::ordered_json entry;
    entry["dtype"] = dtype_name(tensor->dtype);
    entry["shape"] = tensor->shape;
    entry["data_offsets"] = {data_bytes, end};
    // ordered_json would search linearly before each insertion; the names are known to differ.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(tensor->name, std::move(entry));
    data_bytes = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

std::int64_t TensorEntry::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::string show_shape(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

std::string describe(const TensorEntry& entry) {
  return fmt::format("{} {}", dtype_name(entry.dtype), show_shape(entry.shape));
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

std::string_view dtype_name(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

int dtype_bits(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].bits; }

bool is_weight_dtype(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const auto& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::size_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  std::size_t bits = static_cast<std::size_t>(dtype_bits(dtype));
  for (const std::int64_t size : shape) bits *= static_cast<std::size_t>(size);
  return bits / 8;
}

SafetensorsLayout::SafetensorsLayout(const std::vector<TensorToWrite>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : order_(write_order(tensors)), header_(header_of(order_, metadata, data_bytes_)) {}

std::string SafetensorsLayout::length_prefix() const {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header_.size() >> (8 * i) & 0xFF);
  return length;
}

std::string_view SafetensorsLayout::bytes_of(const TensorToWrite& tensor) {
  const std::string_view bytes = tensor.produce ? tensor.produce() : tensor.bytes;
  if (bytes.size() != tensor_bytes(tensor.dtype, tensor.shape)) {
    throw ShapeError(tensor.name, "{} bytes given, {} needed", bytes.size(), tensor_bytes(tensor.dtype, tensor.shape));
  }
  return bytes;
}

}  // namespace lora_train::storage
