// Lines from stdin: a script's, or a person's, edited with libedit if it is installed.
#pragma once

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

/// Lines as the terminal or the pipe delivers them, with prompts on stderr and only for a person.
///
/// With libedit, and unless the terminal is dumb, a person edits them, with keys as in Emacs, or as ~/.editrc binds
/// them; text that the terminal pastes (bracketed paste) is one message, however many lines it has. The history is in
/// $XDG_STATE_HOME/lora-train/chat_history, else ~/.local/state/lora-train/chat_history; it is saved after each
/// message, with one warning if it cannot be. Ctrl-C clears the line; on an empty line it is a stop request
/// (base/stop_request.h), like every other signal. Draws on stderr, sets the process's LC_CTYPE to a UTF-8 locale,
/// handles SIGCONT. One at a time, in a StopRequests.
std::unique_ptr<LineReader> open_lines();

}  // namespace lora_train::cli
