// Lines from stdin: a script's, or a person's, edited with libedit if it is installed.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace lora_train::cli {

/// Not thread-safe.
class LineReader {
 public:
  virtual ~LineReader() = default;
  /// Shows `prompt` to a person and returns the next line without its end. Nothing at the end of the input, or if a
  /// signal requests a stop (base/stop_request.h).
  virtual std::optional<std::string> read(const std::string& prompt) = 0;
  /// Puts a message into the history, if there is one.
  virtual void remember(const std::string&) {}
  /// True if input comes from a terminal.
  virtual bool is_interactive() const = 0;
};

/// Bytes of stdin as they come.
class StandardInput {
 public:
  /// Waits for more bytes and appends them to text(). False at the end of the input, or if a stop is requested.
  /// Meanwhile calls `on_wake`, if given, a few times a second.
  bool wait(void (*on_wake)(void*) = nullptr, void* context = nullptr);
  std::string& text() { return text_; }
  /// Takes the first `count` bytes.
  std::string take(std::size_t count);

 private:
  std::string text_;
};

/// Lines as the terminal or the pipe delivers them. Prompts go to stderr, and only to a person.
class PlainLines : public LineReader {
 public:
  explicit PlainLines(bool is_interactive) : is_interactive_(is_interactive) {}
  std::optional<std::string> read(const std::string& prompt) override;
  bool is_interactive() const override { return is_interactive_; }

 private:
  StandardInput input_;
  bool is_interactive_;
};

/// $XDG_STATE_HOME/lora-train/chat_history, else ~/.local/state/lora-train/chat_history; empty without a home.
std::filesystem::path chat_history_file();

/// A reader that edits lines, with keys as in Emacs, or as ~/.editrc binds them; text that the terminal pastes
/// (bracketed paste) is one message, however many lines it has. Reads the history from `history_file` (empty: none) and
/// saves it there after each message, with one warning if it cannot. Ctrl-C clears the line; on an empty line it is a
/// stop request (base/stop_request.h), like every other signal. Null if libedit is missing, or the terminal is dumb.
///
/// Draws on stderr, sets the process's LC_CTYPE to a UTF-8 locale, handles SIGCONT. One at a time, in a StopRequests.
std::unique_ptr<LineReader> edit_lines(const std::filesystem::path& history_file);

}  // namespace lora_train::cli
