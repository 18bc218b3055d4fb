// Builds a protocol buffer message, field by field (protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lora_train::report {

class ProtoMessage {
 public:
  ProtoMessage& add_varint(int field, std::uint64_t value);  ///< int32, int64, bool, enum
  ProtoMessage& add_float(int field, float value);
  ProtoMessage& add_double(int field, double value);
  ProtoMessage& add_bytes(int field, std::string_view bytes);  ///< bytes, string
  ProtoMessage& add_message(int field, const ProtoMessage& message) { return add_bytes(field, message.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// The lowest byte first.
template <typename T>
void append_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

}  // namespace lora_train::report
