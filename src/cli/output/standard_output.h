// stdout: results only. Everything else goes to stderr through base/log.h.
#pragma once

#include <string_view>

namespace lora_train::cli {

/// Writes the text and flushes; control characters, which names and text of files may hold, as escapes (visible_text). A reader
/// that has gone away (EPIPE) is not an error; a full disk is: IoError.
void print_text(std::string_view text);

/// The same, byte for byte: for colours, and for text whose reader wants every byte.
void print_raw(std::string_view text);

/// print_text with a line end.
void print_line(std::string_view line);

/// Whether stdout is a terminal that may be given colours: not with NO_COLOR or TERM=dumb.
bool stdout_has_color();

/// From now on, what is written to stdout goes nowhere.
void silence_standard_output();

/// Columns of the terminal that stdout is; 0 if it is none, and a line may be of any length.
int stdout_width();

}  // namespace lora_train::cli
