#include "lora_train/data/encode/prompts.h"

#include <functional>

#include "encode_sample.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "read/example_format.h"
#include "read/example_reader.h"

namespace lora_train::data {
namespace {

Json as_given(const ChatSample& chat) {
  Json list = Json::array();
  for (const auto& message : chat.messages) {
    list.push_back(message.json.empty() ? Json{{"role", message.role}, {"content", message.content}}
                                        : Json::parse(message.json));
    if (has_alpaca_input(list.back())) list.back().erase("input");
  }
  return list;
}

ChatSample without_answer(ChatSample chat) {
  while (!chat.messages.empty() && chat.messages.back().role == "assistant") chat.messages.pop_back();
  if (chat.messages.empty()) throw DataError("", "the chat has only assistant turns; there is nothing to answer");
  return chat;
}

Prompt prompt_of_chat(ChatSample chat, const std::string& source, const PromptOptions& options) {
  chat = without_answer(std::move(chat));
  Prompt prompt{source, as_given(chat).dump(), {}};
  prompt.ids = encode_prompt(render_chat_prompt(chat, options), /*is_chat=*/true, options);
  return prompt;
}

Prompt prompt_of_text(const std::string& text, const std::string& source, const PromptOptions& options) {
  Prompt prompt{source, Json(text).dump(), {}};
  const std::string whole = options.raw ? text : render_chat_prompt({{{"user", text}}, 0, {}, {}, {}}, options);
  prompt.ids = encode_prompt(whole, !options.raw, options);
  return prompt;
}

Prompt prompt_of_example(const Json& example, const std::string& source, const PromptOptions& options) {
  if (const Json* prompt = optional_field(example, {}, "prompt")) {
    if (prompt->is_string()) return prompt_of_text(prompt->get<std::string>(), source, options);
    return prompt_of_chat(chat_of_prompt(example, {}), source, options);
  }
  return prompt_of_chat(chat_of_example(example), source, options);
}

ChatSample chat_of_user(const std::string& text) {
  if (is_blank(text)) throw DataError("", "the question is empty");
  return {{{"user", text}}, 0, {}, {}, {}};
}

ChatSample question_of_example(const Json& example, const tokenizer::ChatTemplate* prompt_template) {
  if (prompt_template != nullptr)
    return chat_of_user(prompt_template->render({}, {.kwargs_json = example.dump()}).text);
  if (const Json* prompt = optional_field(example, {}, "prompt")) {
    return prompt->is_string() ? chat_of_user(prompt->get<std::string>()) : without_answer(chat_of_prompt(example, {}));
  }
  const Json* text = example.size() == 1 ? optional_field(example, {}, "text") : nullptr;  // a line of a .txt file
  return text != nullptr ? chat_of_user(string_of(*text, "text")) : without_answer(chat_of_example(example));
}

void read_all(const std::string& file, const std::function<void(const Json&, const std::string& source)>& add) {
  for_each_example(file, [&](RawExample&& example) {
    use_example(example, [&](const Json& value) { add(value, example.where); });
    return true;
  });
}

}  // namespace

Prompt make_prompt(const std::string& text, const std::string& source, const PromptOptions& options) {
  return at_place(source, [&] { return prompt_of_text(text, source, options); });
}

Prompt make_prompt(std::vector<tokenizer::Message> messages, const std::string& source, const PromptOptions& options) {
  return at_place(source, [&] { return prompt_of_chat({std::move(messages), 0, {}, {}, {}}, source, options); });
}

Prompt make_prompt_of_example(const std::string& example_json, const std::string& source,
                              const PromptOptions& options) {
  return at_place(source, [&] { return prompt_of_example(inner_json(example_json, "example"), source, options); });
}

std::vector<Prompt> read_prompts(const std::string& file, const PromptOptions& options) {
  std::vector<Prompt> prompts;
  const bool is_text = unpacked(file).extension() == ".txt";
  read_all(file, [&](const Json& example, const std::string& source) {
    prompts.push_back(is_text ? prompt_of_text(example["text"].get<std::string>(), source, options)
                              : prompt_of_example(example, source, options));
  });
  return prompts;
}

std::vector<ChatQuestion> read_questions(const std::string& file, const std::string& prompt_template) {
  const auto parsed = prompt_template.empty() ? nullptr : tokenizer::ChatTemplate::parse(prompt_template, "--template");
  std::vector<ChatQuestion> questions;
  read_all(file, [&](const Json& example, const std::string& source) {
    const ChatSample chat = question_of_example(example, parsed.get());
    questions.push_back({source, as_given(chat).dump(), chat.tools_json});
  });
  return questions;
}

Prompt make_prompt(const ChatQuestion& question, const PromptOptions& options) {
  Json example = {{"messages", Json::parse(question.messages)}};
  if (!question.tools.empty()) example["tools"] = Json::parse(question.tools);
  return at_place(question.source, [&] { return prompt_of_chat(chat_of_example(example), question.source, options); });
}

}  // namespace lora_train::data
