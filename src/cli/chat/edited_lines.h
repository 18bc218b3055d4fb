// Lines that a person edits on a terminal: arrow keys, history, search, pasted text (libedit).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "line_reader.h"

namespace lora_train::cli {

/// $XDG_STATE_HOME/lora-train/chat_history, else ~/.local/state/lora-train/chat_history; empty without a home.
std::filesystem::path chat_history_file();

/// A reader that edits lines: keys as in Emacs, or as ~/.editrc binds them; text that the terminal pastes (bracketed paste) is one
/// message, however many lines it has. The history is read from `history_file` (empty: none) and saved there after each message; a
/// file that cannot be written is warned of once. Ctrl-C clears the line; on an empty line it is a stop request (base/stop_request.h),
/// as every other signal. Null if libedit is missing, or the terminal is dumb.
///
/// Draws on stderr, sets the process's LC_CTYPE to a UTF-8 locale, handles SIGCONT. One at a time, in a StopRequests.
std::unique_ptr<LineReader> edit_lines(const std::filesystem::path& history_file);

}  // namespace lora_train::cli
