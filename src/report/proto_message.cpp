#include "proto_message.h"

#include <bit>

namespace lora_train::report {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

void append_key(std::string& out, int field, WireType type) {
  append_varint(out, (static_cast<std::uint64_t>(field) << 3) | static_cast<std::uint64_t>(type));
}

}  // namespace

ProtoMessage& ProtoMessage::add_varint(int field, std::uint64_t value) {
  append_key(bytes_, field, kVarint);
  append_varint(bytes_, value);
  return *this;
}

ProtoMessage& ProtoMessage::add_float(int field, float value) {
  append_key(bytes_, field, kFixed32);
  append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_double(int field, double value) {
  append_key(bytes_, field, kFixed64);
  append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_bytes(int field, std::string_view bytes) {
  append_key(bytes_, field, kBytes);
  append_varint(bytes_, bytes.size());
  bytes_.append(bytes);
  return *this;
}

}  // namespace lora_train::report
