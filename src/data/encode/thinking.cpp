#include "encode/thinking.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "read/json_examples.h"

namespace lora_train::data {
namespace {

constexpr const char* kThoughtFields[] = {"reasoning_content", "reasoning", "thinking"};
constexpr std::string_view kOpen = "<think>", kClose = "</think>", kLineFeeds = "\r\n";

struct ThoughtBlock {
  std::string thoughts, answer;  ///< without the line feeds around them
};

std::string without_line_feeds(std::string_view text, bool at_end) {
  text.remove_prefix(std::min(text.find_first_not_of(kLineFeeds), text.size()));
  if (at_end) text = text.substr(0, text.find_last_not_of(kLineFeeds) + 1);
  return std::string(text);
}

std::optional<ThoughtBlock> block_of(std::string_view content) {
  const std::size_t close = content.find(kClose);
  if (close == std::string_view::npos) return std::nullopt;
  std::string_view thoughts = content.substr(0, close);
  if (const std::size_t open = thoughts.find(kOpen); open != std::string_view::npos) {
    if (!is_blank(thoughts.substr(0, open))) return std::nullopt;
    thoughts.remove_prefix(open + kOpen.size());
  }
  return ThoughtBlock{without_line_feeds(thoughts, /*at_end=*/true),
                      without_line_feeds(content.substr(close + kClose.size()), /*at_end=*/false)};
}

Json fields_of(const tokenizer::Message& message) {
  if (message.json.empty()) return {{"role", message.role}, {"content", message.content}};
  return Json::parse(message.json);
}

std::size_t ink_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](unsigned char c) { return std::isspace(c) == 0; }));
}

struct Thoughts {
  std::string field, text;
  std::size_t answer_ink = 0;  ///< of a content that begins with them

  bool reached(const tokenizer::Ink& ink) const {
    return field == "content" ? ink.content >= ink_of(text) + answer_ink : ink.thoughts >= ink_of(text);
  }
};

std::optional<Thoughts> thoughts_of(const tokenizer::Message& message) {
  if (message.role != "assistant") return std::nullopt;
  for (const char* name : kThoughtFields) {
    if (message.json.find(name) == std::string::npos) continue;  // the common case
    const Json fields = fields_of(message);
    const auto field = fields.find(name);
    if (field == fields.end() || !field->is_string() || is_blank(field->get_ref<const std::string&>())) continue;
    return Thoughts{name, field->get<std::string>()};
  }
  const auto block = block_of(message.content);
  if (!block || is_blank(block->thoughts)) return std::nullopt;
  return Thoughts{"content", block->thoughts, ink_of(block->answer)};
}

void set_content(const std::string& content, Json& fields, tokenizer::Message& message) {
  message.content = content;
  fields["content"] = content;
}

void drop_thoughts(tokenizer::Message& message) {
  Json fields = fields_of(message);
  for (const char* name : kThoughtFields) fields.erase(name);
  if (const auto block = block_of(message.content)) set_content(block->answer, fields, message);
  message.json = fields.dump();
}

/// Gives the thoughts the name `field`, under which the template looks for them.
void rename_thoughts(tokenizer::Message& message, const char* field) {
  Json fields = fields_of(message);
  const auto thoughts = thoughts_of(message);
  const auto block = block_of(message.content);
  const bool is_in_field = thoughts && thoughts->field != "content";
  if (is_in_field ? thoughts->field == field : !block) return;
  fields[field] = is_in_field ? thoughts->text : block->thoughts;
  if (is_in_field) {
    fields.erase(thoughts->field);
  } else {
    set_content(block->answer, fields, message);
  }
  message.json = fields.dump();
}

void set_variable(const char* name, bool value, const tokenizer::ChatTemplate& chat_template, ChatSample& chat) {
  if (chat_template.source().find(name) == std::string::npos) return;
  Json variables = chat.kwargs_json.empty() ? Json::object() : Json::parse(chat.kwargs_json);
  variables[name] = value;
  chat.kwargs_json = variables.dump();
}

bool reads_field(const std::string& source, const std::string& name) {
  const std::string ways[] = {"." + name, "'" + name + "'", "\"" + name + "\""};
  return std::ranges::any_of(ways, [&](const std::string& way) { return source.find(way) != std::string::npos; });
}

/// True if the turn begins with a block of no thoughts.
bool has_empty_block(const tokenizer::RenderedChat& rendered, std::size_t message) {
  for (std::size_t i = 0; i < rendered.spans.size(); ++i) {
    if (rendered.span_message[i] != static_cast<int>(message)) continue;
    const auto [begin, end] = rendered.spans[i];
    const std::string turn = trimmed(rendered.text.substr(begin, end - begin));
    if (turn.starts_with(kOpen)) return trimmed(turn.substr(kOpen.size())).starts_with(kClose);
  }
  return false;
}

}  // namespace

ChatSample with_thinking(ChatSample chat, const tokenizer::ChatTemplate& chat_template, Thinking thinking) {
  if (thinking == Thinking::kTemplate) return chat;
  const auto* const field =
      std::ranges::find_if(kThoughtFields, [&](const char* name) { return reads_field(chat_template.source(), name); });
  for (tokenizer::Message& message : chat.messages) {
    if (message.role != "assistant") continue;
    if (thinking != Thinking::kKeep) {
      drop_thoughts(message);
    } else if (field != std::end(kThoughtFields)) {
      rename_thoughts(message, *field);
    }
  }
  if (thinking == Thinking::kKeep) set_variable("preserve_thinking", true, chat_template, chat);
  if (thinking == Thinking::kEmpty) set_variable("enable_thinking", false, chat_template, chat);
  return chat;
}

ThoughtCounts count_thoughts(const ChatSample& given, const ChatSample& passed, const tokenizer::RenderedChat& rendered,
                             Thinking thinking) {
  ThoughtCounts counts;
  for (std::size_t i = 0; i < given.messages.size(); ++i) {
    const auto thoughts = thoughts_of(given.messages[i]);
    if (!thoughts) continue;
    const auto left = thoughts_of(passed.messages[i]);
    if (left && i < rendered.ink.size() && left->reached(rendered.ink[i])) {
      ++counts.kept;
    } else if (thinking == Thinking::kKeep) {
      throw DataError("",
                      "messages[{}] has thoughts ({}) that the chat template does not write, and thinking is keep. End "
                      "an example with each such turn, set thinking to template or drop, or set chat_template to a "
                      "template that writes them in every turn",
                      i, thoughts->field);
    } else {
      ++(has_empty_block(rendered, i) ? counts.empty : counts.dropped);
    }
  }
  return counts;
}

}  // namespace lora_train::data
