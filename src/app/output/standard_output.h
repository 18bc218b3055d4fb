// stdout: results only. Everything else goes to stderr through base/log.h.
#pragma once

#include <string_view>

namespace lora_train::app {

/// Writes the bytes and flushes. A reader that has gone away (EPIPE) is not an error; a full disk is: IoError.
void print_text(std::string_view text);

/// The same with a line end.
void print_line(std::string_view line);

/// Whether stdout is a terminal that may be given colours: not with NO_COLOR or TERM=dumb.
bool stdout_has_color();

/// Columns of the terminal that stdout is; 0 if it is none, and a line may be of any length.
int stdout_width();

}  // namespace lora_train::app
