#include "evaluator.h"

#include "interpreter.h"
#include "lora_train/base/error.h"

namespace lora_train::tokenizer::jinja {

Rendered run(const ParsedTemplate& parsed, const Dict& variables, const std::string& name, const Limits& limits) {
  const Budget budget(limits);
  Interpreter interpreter(variables);
  try {
    interpreter.run(parsed.body);
  } catch (const RenderError& error) {
    const std::string where = name + ":" + std::to_string(interpreter.line());
    if (error.is_format && !(error.is_limit && limits.blames_chat))
      throw FormatError(where, "chat template: " + error.message);
    throw DataError(where, "the chat template refuses this chat: " + error.message);
  }
  return interpreter.take();
}

}  // namespace lora_train::tokenizer::jinja
