// What is said in `chat`: a message to the model, or a command to the program.
#pragma once

#include <string>

namespace lora_train::cli {

struct ChatLine {
  enum class Kind { kMessage, kHelp, kReset, kAdapter, kSystem, kExit };
  Kind kind = Kind::kMessage;
  std::string text = {};  ///< the message, or what follows the command, without the space around it
};

/// A line that begins with "/" is a command; one space before the "/" makes it a message, and is not part of it. Throws
/// ConfigError (where = the command) for an unknown command, and for one with words that it does not take.
ChatLine parse_chat_line(const std::string& line);

/// What /help prints.
std::string chat_help();

}  // namespace lora_train::cli
