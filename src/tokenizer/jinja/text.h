// Strings that remember where their bytes come from, so that spans can be recorded while a template writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::tokenizer::jinja {

/// Where bytes come from: the template's own text, a field of a message of the chat, or something made of values, which
/// may be the chat's.
using Origin = std::int32_t;
enum class Field { kRole, kContent, kReasoning, kToolCalls, kOther };
inline constexpr int kNumFields = 5;
inline constexpr Origin kTemplate = 0, kComputed = -1;
inline Origin origin_of(int message, Field field) { return 1 + kNumFields * message + static_cast<int>(field); }
/// The index in the chat, -1 for none.
inline int message_of(Origin origin) { return origin <= 0 ? -1 : (origin - 1) / kNumFields; }
/// Of an origin that has a message.
inline Field field_of(Origin origin) { return static_cast<Field>((origin - 1) % kNumFields); }

/// No text may grow beyond this.
inline constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20U;
/// RenderError if a text would pass the limit.
void check_text_size(std::size_t bytes);

class Text {
 public:
  /// Bytes [previous run's end, end) have one origin.
  struct Run {
    std::size_t end;
    Origin origin;
  };

  Text() = default;
  Text(std::string_view bytes, Origin origin) { append(bytes, origin); }

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, std::size_t begin, std::size_t end);
  /// Bytes [begin, end).
  Text slice(std::size_t begin, std::size_t end) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace lora_train::tokenizer::jinja
