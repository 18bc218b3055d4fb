#include "safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lora_train/base/error.h"

namespace lora_train::storage {
namespace {

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
      reject("the key \"" + name + "\" appears twice in the entry");
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
        reject(std::string("the entry has no \"") + field + "\"; dtype, shape and data_offsets are needed");
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
      reject("data_offsets holds " + std::to_string(num_offsets_) + " numbers; [begin, end] was expected");
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
    if (!dtype) reject("unknown dtype " + in_quotes(text) + "; F32, F16 and BF16 are what models use");
    tensor().dtype = *dtype;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (state_ == State::kShape) {
      if (number > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
        reject("the dimension " + std::to_string(number) + " in shape is larger than any tensor can be");
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

  bool number_integer(number_integer_t number) override {
    return value("the negative number " + std::to_string(number));
  }
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
    throw FormatError(file_, "the header is not valid UTF-8 JSON at byte " + std::to_string(8 + position) +
                                 " of the file (" + reason + "); " + kDamaged);
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
      case State::kStart: reject("the header is " + what + "; a JSON object was expected");
      case State::kTop:
        reject(in_quotes(key_) + " is " + what + "; an object with dtype, shape and data_offsets was expected");
      case State::kMetadata:
        reject("__metadata__ maps " + in_quotes(key_) + " to " + what + "; only strings are allowed");
      case State::kTensor:
        reject(key_ + " is " + what + "; " + (key_ == "dtype" ? "a string" : "an array of sizes") + " was expected");
      default: reject(key_ + " holds " + what + "; sizes are whole numbers from 0 to 2^64 - 1");
    }
  }

  bool descend() {
    if (++skip_depth_ > kMaxDepth) reject("values are nested deeper than " + std::to_string(kMaxDepth) + " levels");
    return true;
  }
  bool ascend() {
    if (--skip_depth_ == 0) state_ = State::kTensor;
    return true;
  }

  [[noreturn]] void reject(const std::string& what) const {
    const bool in_tensor =
        state_ == State::kTensor || state_ == State::kShape || state_ == State::kOffsets || state_ == State::kSkip;
    throw FormatError(in_tensor ? file_ + ": " + header_.tensors.back().name : file_, what + "; " + kDamaged);
  }

  SafetensorsHeader& header_;
  std::string file_, key_;
  State state_ = State::kStart;
  std::set<std::string, std::less<>>
      fields_;  // of kFields, those the tensor at hand has had; what they hold is checked there
  bool has_metadata_ = false;
  int num_offsets_ = 0, skip_depth_ = 0;
};

}  // namespace

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

}  // namespace lora_train::storage
