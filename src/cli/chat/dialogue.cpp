#include "dialogue.h"

#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::cli {

data::Prompt Dialogue::render(const std::string& source) const {
  std::vector<tokenizer::Message> messages = turns_;
  if (!system_.empty()) messages.insert(messages.begin(), {"system", system_});
  return data::make_prompt(std::move(messages), source, {&tokenizer_, &template_, /*raw=*/false, /*system=*/""});
}

data::Prompt Dialogue::ask(const std::string& text, const std::string& source) {
  turns_.push_back({"user", text});
  try {
    data::Prompt prompt = render(source);
    if (room(prompt) > 0) return prompt;
    const std::string what = num_turns() == 0 ? "the message has " : "the conversation has ";
    throw DataError(source, what + format_count(std::ssize(prompt.ids)) + " tokens, and the context of " +
                                format_count(context_) + " leaves no room for an answer. " +
                                (num_turns() == 0 ? "Shorten it." : "/reset forgets the conversation."));
  } catch (...) {
    turns_.pop_back();
    throw;
  }
}

void Dialogue::answer(const std::string& text) {
  if (text.empty()) {
    turns_.pop_back();
  } else {
    turns_.push_back({"assistant", text});
  }
}

void Dialogue::set_system(const std::string& text, const std::string& source) {
  const std::string before = std::exchange(system_, text);
  turns_.push_back({"user", "Hi"});
  try {
    render(source);
    turns_.pop_back();
  } catch (...) {
    turns_.pop_back();
    system_ = before;
    throw;
  }
}

}  // namespace lora_train::cli
