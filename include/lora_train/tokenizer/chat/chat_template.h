// Renders chats to text through the model's own Jinja template and records the trained spans.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::tokenizer {

/// One turn of a chat.
struct Message {
  std::string role;
  std::string content;  ///< "" if absent, null or not a string
  /// The row's own message as a JSON object, passed to the template unchanged, with its key order and missing fields
  /// (content, tool_calls, name, ...); "" means an object of role and content.
  std::string json = {};
};

struct RenderOptions {
  bool add_generation_prompt = false;
  std::string tools_json = {};   ///< JSON array of tools; "" = none
  std::string kwargs_json = {};  ///< JSON object of further variables (enable_thinking, ...); "" = none
};

/// Something that a template left out of a message or of the list of tools.
struct Omission {
  static constexpr int kTools = -1;
  int message;        ///< index in the chat, or kTools
  std::string field;  ///< "content", "reasoning_content", "tool_calls", ..., "tools"
  bool is_partial;    ///< part of it reached the text
};

/// Bytes of a message that reached the text, without white space.
struct Ink {
  std::size_t content = 0, thoughts = 0;  ///< thoughts: reasoning_content, reasoning and thinking
};

/// A rendered chat. Ranges are bytes of `text`.
struct RenderedChat {
  std::string text;
  /// One span per assistant message that the template wrote, ascending: from just after the assistant header (the
  /// literal text up to and including the role and its line feed) to the end of the turn's end token. Includes
  /// everything that the template writes in that turn (think block, tool calls), but not white space after the end
  /// token. A template with {% generation %} marks its spans itself.
  std::vector<ByteRange> spans;
  /// spans[i] belongs to messages[span_message[i]].
  std::vector<int> span_message;
  /// Contents, reasoning and tool calls that the template left out in whole or in part, by message; then the tools
  /// whose names it does not write. White space does not count, nor does text of the template itself (think tags around
  /// reasoning).
  std::vector<Omission> omissions;
  std::vector<Ink> ink = {};  ///< one per message
};

/// A compiled template. Thread-safe for concurrent const calls. Limits: nesting 64, 1e6 evaluation steps, 16 MiB per
/// text, 512 MiB of values per rendering. Exceeding them is a FormatError, or a DataError if the chat is larger than 1
/// MiB.
class ChatTemplate {
 public:
  /// Loads chat_template.jinja from the folder, else chat_template from tokenizer_config.json (a string, or the list
  /// entry named "default"). Chats with tools get the template named "tool_use", if there is one: an entry of that
  /// list, or additional_chat_templates/tool_use.jinja. Throws FormatError (file, line) if there is none or it does not
  /// parse.
  static std::unique_ptr<ChatTemplate> load(const std::filesystem::path& folder);
  /// Parses a template given as text; `name` appears in messages. `folder` (may be empty) provides bos_token,
  /// eos_token, ...
  static std::unique_ptr<ChatTemplate> parse(std::string source, std::string name,
                                             const std::filesystem::path& folder = {});

  virtual ~ChatTemplate() = default;

  /// Throws DataError if the template refuses the chat (raise_exception: its own message) or reads a field that the
  /// chat lacks; where is "template:line". Throws FormatError for unsupported template features.
  virtual RenderedChat render(std::span<const Message> messages, const RenderOptions& options = {}) const = 0;

  /// The template for chats with tools.
  virtual const ChatTemplate& for_tools() const { return *this; }
  /// True if the template writes a content of text parts in a message of this role as it writes their text.
  virtual bool takes_parts(const std::string& /*role*/) const { return false; }
  /// True if the template writes tool calls whose arguments are an object.
  virtual bool takes_argument_objects() const { return true; }

  /// Fixes the time that strftime_now() returns to noon of a local day, "2026-12-01"; "" means the current time. Not
  /// thread-safe.
  virtual void set_day(const std::string& /*day*/) {}
  /// The day that the template writes; "" if it does not use strftime_now.
  virtual std::string day() const { return ""; }

  /// The template's text and where it was found ("folder/chat_template.jinja").
  virtual const std::string& source() const = 0;
  virtual const std::string& name() const = 0;
  /// 32 hexadecimal digits over the text and the tokens that it can write (bos_token, ...). For cache keys.
  const std::string& fingerprint() const { return fingerprint_; }

 protected:
  ChatTemplate() = default;
  std::string fingerprint_;
};

/// What a template writes after an answer. All empty if it writes no token there, or refuses a plain question with its
/// answer.
struct EndOfTurn {
  std::optional<std::int32_t> id = {};  ///< the token that is trained there ("<|im_end|>", "</s>")
  /// The text that the tokenizer cuts into several ordinary tokens instead: the template was made for another
  /// tokenizer.
  std::optional<std::string> in_pieces = {};
};

EndOfTurn end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

/// Tokens that stop generation: the end tokens of generation_config.json, the tokenizer's, and the one that ends a turn
/// of the template (which may be null). Ascending.
std::vector<std::int32_t> stop_token_ids(const Tokenizer& tokenizer, const ChatTemplate* chat_template);

/// Per token: 1 if any of its bytes is in a span (transformers' rule), else 0. Spans ascend and do not overlap.
std::vector<std::uint8_t> trained_tokens(std::span<const ByteRange> offsets, std::span<const ByteRange> spans);

/// The text of a chat template that ships with the program (templates/*.jinja: the formats of common models; only
/// mistral-v7 and later write tools); empty for an unknown name.
std::optional<std::string_view> builtin_template(std::string_view name);

/// "chatml", "qwen2.5", ...
std::vector<std::string> builtin_template_names();

/// Loads the profile's `chat_template`: "tokenizer" = the folder's own, without one the built-in one for the version of
/// its tekken.json (v7 to v15, if that is its tokenizer), else null; a built-in name ("chatml"); or a .jinja file. Logs
/// if it replaces the folder's own or is chosen by version, unless `is_quiet` (for a check before the real load).
/// Throws FormatError if it does not parse, IoError if a file cannot be read.
std::unique_ptr<ChatTemplate> load_chat_template(const std::string& chat_template, const std::filesystem::path& folder,
                                                 bool is_quiet = false);

}  // namespace lora_train::tokenizer
