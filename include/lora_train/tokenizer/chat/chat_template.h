// Chats to text through the model's own Jinja template, with the trained spans recorded while the text is written.
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
  std::string content;  ///< "" when it is absent, null or no string
  /// The row's own message as one JSON object, which the template gets as it is, in its order and with what it lacks
  /// (content, tool_calls, name, ...); "" stands for an object of role and content.
  std::string json = {};
};

struct RenderOptions {
  bool add_generation_prompt = false;
  std::string tools_json = {};   ///< JSON array of tools, "" = none passed
  std::string kwargs_json = {};  ///< JSON object of further variables (enable_thinking, ...), "" = none
};

/// What a template left out of a message, or of the list of tools.
struct Omission {
  static constexpr int kTools = -1;
  int message;        ///< index in the chat, or kTools
  std::string field;  ///< "content", "reasoning_content", "tool_calls", ..., "tools"
  bool is_partial;    ///< some of it reached the text
};

/// A chat as text. Ranges are bytes of `text`.
struct RenderedChat {
  std::string text;
  /// One per assistant message that the template wrote, ascending: from just after the assistant header (the literal
  /// text through the role and its line feed) to the end of the turn's end token; everything the template writes in
  /// that turn is inside (think block, tool calls), white space that it puts after the end token is not.
  /// A template with {% generation %} marks its spans itself.
  std::vector<ByteRange> spans;
  /// spans[i] belongs to messages[span_message[i]].
  std::vector<int> span_message;
  /// Contents, reasoning and tool calls that the template left out in whole or in part, by message, and then the tools of
  /// which it does not write the name. White space is not counted, and what the template writes itself (think tags around
  /// a reasoning) is not missed.
  std::vector<Omission> omissions;
};

/// A compiled template. Thread-safe for concurrent const calls.
/// Limits: nesting 64, 1e6 evaluation steps, 16 MiB for any text, 512 MiB of values made in one rendering. Passing them
/// is a FormatError, or a DataError if the chat is larger than 1 MiB.
class ChatTemplate {
 public:
  /// chat_template.jinja in the folder, else chat_template of tokenizer_config.json (a string, or the one named
  /// "default" of a list). FormatError (file, line) if there is none or it does not parse.
  static std::unique_ptr<ChatTemplate> load(const std::filesystem::path& folder);
  /// A template given as text; `name` appears in messages. `folder` (may be empty) provides bos_token, eos_token, ...
  static std::unique_ptr<ChatTemplate> parse(std::string source, std::string name,
                                             const std::filesystem::path& folder = {});

  virtual ~ChatTemplate() = default;

  /// Throws DataError if the template refuses the chat (raise_exception: its own message) or reads a field that the
  /// chat lacks; where is "template:line". FormatError for anything the template uses that is not supported.
  virtual RenderedChat render(std::span<const Message> messages, const RenderOptions& options = {}) const = 0;

  /// The template's text and where it was found ("folder/chat_template.jinja").
  virtual const std::string& source() const = 0;
  virtual const std::string& name() const = 0;
  /// 32 hexadecimal digits over the text and the tokens that it can write (bos_token, ...). For cache keys.
  const std::string& fingerprint() const { return fingerprint_; }

 protected:
  ChatTemplate() = default;
  std::string fingerprint_;
};

/// What strftime_now() takes for now in all templates, in seconds since 1970: a run sets the time of its start, so that a
/// row is the same in every epoch and after a resume. Below 0, as at first: the clock.
void set_template_time(std::int64_t unix_s);
std::int64_t template_time();

/// The token that ends an assistant turn and is trained there ("<|im_end|>", "</s>"); nothing when the template writes
/// none after the content, or refuses a plain question with its answer, and where what it writes is several ordinary tokens.
std::optional<std::int32_t> end_of_turn_id(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

/// What the template writes behind an answer, if the tokenizer cuts it into several ordinary tokens: the template is made for another
/// tokenizer. Else nothing.
std::optional<std::string> end_of_turn_in_pieces(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

/// Tokens at which generation stops: the end tokens of generation_config.json, the tokenizer's, and the one that ends a turn
/// of the template (which may be null). Ascending.
std::vector<std::int32_t> stop_token_ids(const Tokenizer& tokenizer, const ChatTemplate* chat_template);

/// Per token 1 when any of its bytes lies in a span (transformers' rule), else 0. Spans ascend and do not overlap.
std::vector<std::uint8_t> trained_tokens(std::span<const ByteRange> offsets, std::span<const ByteRange> spans);

/// Of a chat template that comes with the program (templates/*.jinja: the formats of common models, for chats without tools) its
/// text; nothing for a name that is not built in.
std::optional<std::string_view> builtin_template(std::string_view name);

/// "chatml", "qwen2.5", ...
std::vector<std::string> builtin_template_names();

/// The profile's `chat_template`: "tokenizer" = the folder's own, null when it has none; a built-in name ("chatml"); or a .jinja
/// file. Logs where one takes the place of the folder's own, unless `is_quiet`: who only checks one that is loaded again.
/// Throws FormatError for one that does not parse, IoError for a file that cannot be read.
std::unique_ptr<ChatTemplate> load_chat_template(const std::string& chat_template, const std::filesystem::path& folder,
                                                 bool is_quiet = false);

}  // namespace lora_train::tokenizer
