// Runs a parsed template and records which output belongs to which message.
#pragma once

#include <string>
#include <vector>

#include "budget.h"
#include "parser.h"
#include "value.h"

namespace lora_train::tokenizer::jinja {

/// Output bytes [begin, end) that a template wrote for one thing.
struct Region {
  int message;  ///< index in the chat, -1 = none
  std::size_t begin, end;
};

struct Rendered {
  Text text;
  /// What was written while a loop stood on a message of the chat, ascending; the innermost such loop counts.
  std::vector<Region> turns;
  /// What was written inside {% generation %}, ascending.
  std::vector<Region> generations;
};

/// `variables` are the template's globals. `name` appears in messages. DataError if the template refuses the chat or
/// fails on it, FormatError for what is not supported or beyond the limits; both say name:line.
Rendered run(const ParsedTemplate& parsed, const Dict& variables, const std::string& name, const Limits& limits = {});

}  // namespace lora_train::tokenizer::jinja
