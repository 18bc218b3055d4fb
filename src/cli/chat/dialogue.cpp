#include "dialogue.h"

#include <algorithm>
#include <utility>
#include <vector>

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

namespace {

struct ChatCommand {
  const char* name;
  ChatLine::Kind kind;
  const char* takes;  ///< for the help; empty: nothing
  const char* help;
};

constexpr ChatCommand kCommands[] = {
    {"/help", ChatLine::Kind::kHelp, "", "show this list"},
    {"/reset", ChatLine::Kind::kReset, "", "forget the conversation; the system message stays"},
    {"/adapter", ChatLine::Kind::kAdapter, "off|on", "let the base answer, or the adapter again"},
    {"/system", ChatLine::Kind::kSystem, "TEXT", "set the system message; without TEXT, remove it"},
    {"/exit", ChatLine::Kind::kExit, "", "end, as Ctrl-D does (also /quit)"},
    {"/quit", ChatLine::Kind::kExit, "", nullptr},
};

[[noreturn]] void refuse_unknown(const std::string& name) {
  std::vector<std::string> names;
  for (const ChatCommand& command : kCommands) names.emplace_back(command.name);
  const std::string nearest = nearest_name(name, names);
  throw ConfigError(name, "unknown command." + (nearest.empty() ? "" : " Did you mean " + nearest + "?") +
                              " /help lists them. A message that begins with \"/\" needs a space before it.");
}

}  // namespace

ChatLine parse_chat_line(const std::string& line) {
  if (!line.starts_with("/")) return {ChatLine::Kind::kMessage, line.starts_with(" /") ? line.substr(1) : line};
  const std::size_t end = std::min(line.find_first_of(" \t\r\n"), line.size());
  const std::string name = line.substr(0, end);
  const auto* const command = std::find_if(std::begin(kCommands), std::end(kCommands),
                                           [&](const ChatCommand& known) { return known.name == name; });
  if (command == std::end(kCommands)) refuse_unknown(name);
  ChatLine found{command->kind, trimmed(line.substr(end))};
  const bool takes_nothing = std::string(command->takes).empty();
  if (takes_nothing && !found.text.empty()) throw ConfigError(name, "takes nothing; got \"" + found.text + "\".");
  if (found.kind == ChatLine::Kind::kAdapter && found.text != "on" && found.text != "off" && !found.text.empty()) {
    throw ConfigError(name, "got \"" + found.text + "\", expected on or off.");
  }
  return found;
}

std::string chat_help() {
  std::string text;
  for (const ChatCommand& command : kCommands) {
    if (command.help == nullptr) continue;
    std::string name = std::string("  ") + command.name + " " + command.takes;
    name.resize(19, ' ');
    text += name + command.help + "\n";
  }
  return text +
         "A backslash at the end of a line continues the message on the next line; pasted lines stay together.\n"
         "Ctrl-C stops an answer. At the prompt it clears the line; on an empty line it ends the program.\n"
         "A message that begins with \"/\" needs a space before it.\n";
}

}  // namespace lora_train::cli
