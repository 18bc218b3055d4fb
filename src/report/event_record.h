// The bytes of a TensorBoard event file. A record is: u64 length, masked CRC32C of these 8 bytes, payload, masked CRC32C of
// the payload, all little-endian. The payload is a tensorflow.Event message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lora_train::report {

/// CRC-32C (Castagnoli, RFC 3720), reflected, start and end inverted. crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(std::string_view bytes);

/// The CRC as it is stored in records: rotated right by 15, plus 0xa282ead8.
std::uint32_t masked_crc32c(std::string_view bytes);

/// The first record of a file: file_version "brain.Event:2".
std::string version_record(double time);

/// The start of a session: readers drop what earlier files have from this step on.
std::string session_start_record(long long step, double time);

/// One scalar: summary value {tag, simple_value}.
std::string scalar_record(std::string_view tag, float value, long long step, double time);

/// One text, which TensorBoard reads as Markdown.
std::string text_record(std::string_view tag, std::string_view markdown, long long step, double time);

/// One picture, RGB.
std::string image_record(std::string_view tag, std::string_view png, int width, int height, long long step,
                         double time);

/// What a plugin keeps for itself: a summary whose tensor is empty and whose metadata have `content`.
std::string plugin_record(std::string_view tag, std::string_view plugin, std::string_view content, double time);

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
