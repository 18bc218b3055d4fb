// The time and memory budget of one rendering. Creating a value or walking one spends from it, so that neither a template
// nor a row can blow up time or memory.
#pragma once

#include <cstddef>
#include <string>

#include "lora_train/base/stop_request.h"

namespace lora_train::tokenizer::jinja {

/// What goes wrong while a template runs; run() adds the line and makes a DataError of it (the chat does not suit the
/// template) or a FormatError (not supported, or beyond a limit).
struct RenderError {
  std::string message;
  bool is_format = false, is_limit = false;
};

struct Limits {
  std::size_t steps = 1000000;                 ///< statements and expressions evaluated
  std::size_t bytes = std::size_t{512} << 20;  ///< of values made or walked through
  bool blames_chat = false;                    ///< what passes them is a DataError, not a FormatError
};

/// The budget of this thread while it lives; an outer one rests meanwhile.
class Budget {
 public:
  explicit Budget(const Limits& limits);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

 private:
  friend void spend_step();
  friend void spend_bytes(std::size_t bytes);

  Limits left_;
  StopPoll stop_poll_;
  const Limits given_;
  Budget* outer_;
};

/// RenderError if this thread's budget is used up, StopError on a stop request. Without a budget they cost nothing.
void spend_step();
void spend_bytes(std::size_t bytes);

}  // namespace lora_train::tokenizer::jinja
