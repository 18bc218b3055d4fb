#include <set>

#include "lora_train/base/error.h"
#include "lora_train/tokenizer/chat_template.h"

namespace lora_train::tokenizer {

std::optional<std::int32_t> end_of_turn_id(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const std::string answer = "Yes.";
  const std::vector<Message> chat = {{"user", "Hi"}, {"assistant", answer}};
  try {
    const RenderedChat rendered = chat_template.render(chat);
    if (rendered.spans.empty()) return std::nullopt;
    const Encoding encoding = tokenizer.encode(rendered.text, /*with_offsets=*/true);
    const auto trained = trained_tokens(encoding.offsets, rendered.spans);
    std::size_t last = trained.size();
    while (last > 0 && trained[last - 1] == 0) --last;
    const std::size_t answer_end = rendered.text.rfind(answer) + answer.size();
    if (last == 0 || encoding.offsets[last - 1].first < answer_end) return std::nullopt;
    return encoding.ids[last - 1];
  } catch (const Error&) {
    return std::nullopt;  // the template refuses this chat, which says nothing about others
  }
}

std::vector<std::int32_t> stop_token_ids(const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  const auto& of_file = tokenizer.generation_eos_ids();
  std::set<std::int32_t> ids(of_file.begin(), of_file.end());
  if (tokenizer.eos_id()) ids.insert(*tokenizer.eos_id());
  if (chat_template != nullptr) {
    if (const auto id = end_of_turn_id(*chat_template, tokenizer)) ids.insert(*id);
  }
  return {ids.begin(), ids.end()};
}

}  // namespace lora_train::tokenizer
