#include "event_record.h"

#include <array>
#include <bit>

namespace lora_train::metrics {
namespace {

// Protocol buffer wire types.
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

template <typename T>
void append_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

void append_key(std::string& out, int field, WireType type) {
  append_varint(out, (static_cast<std::uint64_t>(field) << 3) | static_cast<std::uint64_t>(type));
}

void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out.append(bytes);
}

std::string event_at(double time) {
  std::string event;
  append_key(event, 1, kFixed64);
  append_little_endian(event, std::bit_cast<std::uint64_t>(time));
  return event;
}

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

std::string version_record(double time) {
  std::string event = event_at(time);
  append_bytes(event, 3, "brain.Event:2");
  return frame(event);
}

std::string scalar_record(std::string_view tag, float value, long long step, double time) {
  std::string scalar, summary, event = event_at(time);
  append_bytes(scalar, 1, tag);
  append_key(scalar, 2, kFixed32);
  append_little_endian(scalar, std::bit_cast<std::uint32_t>(value));
  append_bytes(summary, 1, scalar);
  append_key(event, 2, kVarint);
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, 5, summary);
  return frame(event);
}

}  // namespace lora_train::metrics
