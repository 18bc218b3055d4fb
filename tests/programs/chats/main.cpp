// Renders chats as the trainer does. Reads JSON lines from stdin and answers each with one on stdout:
//   {"template": source, "folder": path or ""}       sets the template                 -> {} or {"error": ...}
//   {"chat_template": the profile's key, "folder": path or ""}                         the same
//   {"messages": [...], "tools": [...], "kwargs": {...}, "add_generation_prompt": b}
//                                                                            -> {"text", "spans", "omissions"}
//   {"row": a line of a dataset, "sharegpt": b, "field_map": {...}, "thinking": the profile's key, "null_fields": the same}
//       -> {"text", "thoughts": turns [kept, dropped, written empty], "dropped_nulls": b, "decoded_arguments": b}
// spans are byte ranges. An error is {"error": "data" | "format", "where", "message"}; anything else ends the program.
#include <iostream>
#include <nlohmann/json.hpp>

#include "encode/template_form.h"
#include "encode/thinking.h"
#include "lora_train/base/error.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "read/example_format.h"

namespace {

using Json = nlohmann::ordered_json;
using lora_train::tokenizer::ChatTemplate;
using lora_train::tokenizer::Message;

std::vector<Message> messages_of(const Json& row) {
  std::vector<Message> messages;
  for (const Json& json : row.at("messages")) {
    const bool has_text = json.contains("content") && json["content"].is_string();
    messages.push_back({json.at("role"), has_text ? json["content"].get<std::string>() : "", json.dump()});
  }
  return messages;
}

// As an example of a dataset becomes a chat.
Json render_example(const ChatTemplate& chat_template, const Json& question) {
  const lora_train::data::JsonExample example =
      lora_train::data::parse_json_example(question.at("row").get<std::string>());
  if (example.problem) throw lora_train::DataError("", example.problem->message);
  const auto type =
      question.value("sharegpt", false) ? lora_train::DatasetType::kSharegpt : lora_train::DatasetType::kMessages;
  const auto map = question.value("field_map", lora_train::data::FieldMap());
  const auto chat = std::get<lora_train::data::ChatSample>(lora_train::data::parse_example(example.value, type, map));
  const auto thinking = lora_train::from_string<lora_train::Thinking>(question.value("thinking", "template")).value();
  const auto nulls = lora_train::from_string<lora_train::NullFields>(question.value("null_fields", "drop")).value();
  const ChatTemplate& used = chat.tools_json.empty() ? chat_template : chat_template.for_tools();
  const auto form = lora_train::data::template_form(chat, used, nulls);
  const auto passed = lora_train::data::with_thinking(form.chat, used, thinking);
  const auto rendered = used.render(passed.messages, {false, passed.tools_json, passed.kwargs_json});
  const auto thoughts = lora_train::data::count_thoughts(form.chat, passed, rendered, thinking);
  return {{"text", rendered.text},
          {"thoughts", {thoughts.kept, thoughts.dropped, thoughts.empty}},
          {"dropped_nulls", form.has_dropped_nulls},
          {"decoded_arguments", form.has_decoded_arguments}};
}

Json render(const ChatTemplate& chat_template, const Json& row) {
  lora_train::tokenizer::RenderOptions options;
  options.add_generation_prompt = row.value("add_generation_prompt", false);
  if (row.contains("tools")) options.tools_json = row["tools"].dump();
  if (row.contains("kwargs")) options.kwargs_json = row["kwargs"].dump();
  const auto chat = chat_template.render(messages_of(row), options);
  Json omissions = Json::array();
  for (const auto& [message, field, is_partial] : chat.omissions) omissions.push_back({message, field, is_partial});
  return {{"text", chat.text}, {"spans", chat.spans}, {"omissions", omissions}};
}

}  // namespace

int main() {
  std::unique_ptr<ChatTemplate> chat_template;
  for (std::string line; std::getline(std::cin, line);) {
    const Json row = Json::parse(line);
    Json answer = Json::object();
    try {
      if (row.contains("template")) {
        chat_template.reset();
        chat_template = ChatTemplate::parse(row["template"], "t", row.value("folder", ""));
      } else if (row.contains("chat_template")) {
        chat_template = lora_train::tokenizer::load_chat_template(row["chat_template"], row.value("folder", ""));
      } else if (chat_template == nullptr) {
        answer = {{"error", "no template"}};
      } else {
        answer = row.contains("row") ? render_example(*chat_template, row) : render(*chat_template, row);
      }
    } catch (const lora_train::Error& error) {
      answer = {{"error", error.kind()}, {"where", error.where()}, {"message", error.message()}};
    }
    std::cout << answer.dump() << "\n" << std::flush;
  }
  return 0;
}
