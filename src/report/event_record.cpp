#include "event_record.h"

#include <array>
#include <bit>

namespace lora_train::report {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

ProtoMessage event_at(double time) { return ProtoMessage().add_double(1, time); }

std::string frame(std::string_view payload) {
  std::string length, record;
  append_little_endian(length, std::uint64_t{payload.size()});
  record = length;
  append_little_endian(record, masked_crc32c(length));
  record.append(payload);
  append_little_endian(record, masked_crc32c(payload));
  return record;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = make_crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffffu;
}

std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string version_record(double time) { return frame(event_at(time).add_bytes(3, "brain.Event:2").bytes()); }

std::string session_start_record(long long step, double time) {
  constexpr int kStart = 1;  // SessionLog.SessionStatus
  const ProtoMessage session = ProtoMessage().add_varint(1, kStart);
  return frame(event_at(time).add_varint(2, static_cast<std::uint64_t>(step)).add_message(7, session).bytes());
}

namespace {

std::string value_record(const ProtoMessage& value, long long step, double time) {
  const ProtoMessage summary = ProtoMessage().add_message(1, value);
  return frame(event_at(time).add_varint(2, static_cast<std::uint64_t>(step)).add_message(5, summary).bytes());
}

/// SummaryMetadata: the plugin that shows a value.
ProtoMessage metadata_of(std::string_view plugin, std::string_view content) {
  ProtoMessage data;
  data.add_bytes(1, plugin);
  if (!content.empty()) data.add_bytes(2, content);
  return ProtoMessage().add_message(1, data);
}

constexpr int kFloatType = 1, kStringType = 7;

/// TensorProto of one dimension.
ProtoMessage tensor_of(int type, std::uint64_t size) {
  const ProtoMessage dimension = ProtoMessage().add_varint(1, size);
  const ProtoMessage shape = ProtoMessage().add_message(2, dimension);
  return ProtoMessage().add_varint(1, static_cast<std::uint64_t>(type)).add_message(2, shape);
}

}  // namespace

std::string scalar_record(std::string_view tag, float value, long long step, double time) {
  return value_record(ProtoMessage().add_bytes(1, tag).add_float(2, value), step, time);
}

std::string text_record(std::string_view tag, std::string_view markdown, long long step, double time) {
  ProtoMessage value = ProtoMessage().add_bytes(1, tag);
  value.add_message(8, tensor_of(kStringType, 1).add_bytes(8, markdown)).add_message(9, metadata_of("text", ""));
  return value_record(value, step, time);
}

std::string image_record(std::string_view tag, std::string_view png, int width, int height, long long step,
                         double time) {
  constexpr int kRgb = 3;
  ProtoMessage image;
  image.add_varint(1, static_cast<std::uint64_t>(height)).add_varint(2, static_cast<std::uint64_t>(width));
  image.add_varint(3, kRgb).add_bytes(4, png);
  return value_record(ProtoMessage().add_bytes(1, tag).add_message(4, image), step, time);
}

std::string plugin_record(std::string_view tag, std::string_view plugin, std::string_view content, double time) {
  ProtoMessage value = ProtoMessage().add_bytes(1, tag);
  value.add_message(8, tensor_of(kFloatType, 0)).add_message(9, metadata_of(plugin, content));
  return value_record(value, 0, time);
}

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
