#include "chat_session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "output/answers.h"
#include "output/standard_output.h"

namespace lora_train::cli {

data::Prompt Dialogue::render(const std::string& source) const {
  if (template_ == nullptr) return data::make_prompt(turns_.back().content, source, {&tokenizer_, nullptr, true, ""});
  std::vector<tokenizer::Message> messages = turns_;
  if (!system_.empty()) messages.insert(messages.begin(), {"system", system_});
  return data::make_prompt(std::move(messages), source, {&tokenizer_, template_, /*raw=*/false, /*system=*/""});
}

data::Prompt Dialogue::ask(const std::string& text, const std::string& source) {
  if (template_ == nullptr) turns_.clear();
  turns_.push_back({"user", text});
  try {
    data::Prompt prompt = render(source);
    if (room(prompt) > 0) return prompt;
    const std::string what = num_turns() == 0 ? "the message has " : "the conversation has ";
    throw DataError(source, "{}{} tokens, and the context of {} leaves no room for an answer. {}", what,
                    format_count(std::ssize(prompt.ids)), format_count(context_),
                    num_turns() == 0 ? "Shorten it." : "/reset forgets the conversation.");
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
  if (template_ == nullptr) throw DataError(source, "raw prompts have no system message");
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
  const char* takes;  ///< for the help; empty: takes no words
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
  throw ConfigError(name,
                    "unknown command.{} /help lists them. A message that begins with \"/\" needs a space before it.",
                    did_you_mean(name, names));
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
  if (takes_nothing && !found.text.empty()) throw ConfigError(name, "takes no argument; got \"{}\".", found.text);
  if (found.kind == ChatLine::Kind::kAdapter && found.text != "on" && found.text != "off" && !found.text.empty()) {
    throw ConfigError(name, "got \"{}\", expected on or off.", found.text);
  }
  return found;
}

std::string chat_help() {
  std::string text;
  for (const ChatCommand& command : kCommands) {
    if (command.help == nullptr) continue;
    std::string name = fmt::format("  {} {}", command.name, command.takes);
    name.resize(19, ' ');
    text += fmt::format("{}{}\n", name, command.help);
  }
  return text +
         "A backslash at the end of a line continues the message on the next line; pasted lines stay together.\n"
         "Ctrl-C stops an answer. At the prompt it clears the line; on an empty line it ends the program.\n"
         "A message that begins with \"/\" needs a space before it.\n";
}

namespace {

/// Tells a person. Bypasses the log: requested output is shown at every log level.
void tell(const std::string& text) { write_all(STDERR_FILENO, visible_text(text) + "\n"); }

/// Prints a piece of an answer. Tabs are text, and do not move the cursor back.
void show(std::string_view text) {
  if (::isatty(STDOUT_FILENO) != 1) return print_raw(text);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\t', begin), text.size());
    print_text(text.substr(begin, end - begin));
    if (end < text.size()) print_raw("\t");
    begin = end + 1;
  }
}

}  // namespace

ChatSession::ChatSession(LineReader& reader, Dialogue& dialogue, const tokenizer::Tokenizer& tokenizer,
                         ChatOptions options)
    : reader_(reader),
      dialogue_(dialogue),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      uses_adapter_(options_.has_adapter) {}

std::string ChatSession::place() const { return reader_.is_interactive() ? "" : fmt::format("stdin:{}", line_); }

/// Shows a note to a person, or logs it for a script.
void ChatSession::note(const std::string& text) const {
  if (reader_.is_interactive()) return tell(text);
  log_warning("{}: {}", place(), text);
}

void ChatSession::on_start(std::int64_t) {
  if (reader_.is_interactive()) tell(options_.greeting);
}

/// Reads a line, with those that follow a backslash at its end. Nothing at the end of the input.
std::optional<std::string> ChatSession::read_message() {
  const std::string first = options_.has_adapter && !uses_adapter_ ? "(base) > " : "> ";
  std::string message;
  bool is_continued = false;
  while (requested_stop().empty()) {
    const auto line = reader_.read(is_continued ? "... " : first);
    if (!line && is_continued && reader_.is_interactive() && requested_stop() == "SIGINT") {
      forget_signal();  // it only clears the message
      message.clear();
      is_continued = false;
      continue;
    }
    if (!line) break;
    ++line_;
    message += *line;
    is_continued = line->ends_with('\\');
    if (!is_continued) return message;
    message.back() = '\n';
  }
  const bool is_whole = is_continued && requested_stop().empty();
  return is_whole ? std::optional(message) : std::nullopt;
}

std::optional<generate::Prompt> ChatSession::next(bool) {
  while (auto message = read_message()) {
    while (message->ends_with('\n')) message->pop_back();
    if (is_blank(*message)) continue;
    reader_.remember(*message);
    try {
      if (const auto at = find_invalid_utf8(*message)) {
        throw DataError(place(), "the message is not UTF-8 at byte {}", *at + 1);
      }
      const ChatLine line = parse_chat_line(*message);
      if (line.kind == ChatLine::Kind::kExit) return std::nullopt;
      if (line.kind == ChatLine::Kind::kMessage) return ask(line.text);
      run_command(line);
    } catch (const ConfigError& error) {  // from a command, which it names
      if (!reader_.is_interactive()) throw ConfigError(place(), error.what());
      tell(std::string("error: ") + error.what());
    } catch (const Error& error) {
      if (!reader_.is_interactive()) throw;
      tell(std::string("error: ") + error.what());
    }
  }
  return std::nullopt;
}

generate::Prompt ChatSession::ask(const std::string& text) {
  prompt_ = dialogue_.ask(text, place());
  AnswerCollector::Callbacks callbacks;
  if (!options_.json) callbacks.on_text = show;
  callbacks.on_answers = [this](std::size_t, const Answers& answers) { take_answer(answers); };
  collector_.emplace(tokenizer_, options_.answers, std::move(callbacks));
  const std::int64_t most = std::min(options_.max_new_tokens, dialogue_.room(prompt_));
  return {.ids = prompt_.ids,
          .index = num_asked_++,
          .max_new_tokens = most,
          .name = prompt_.source,
          .sampling = options_.sampling,
          .stop_ids = options_.answers.stop_ids,
          .adapter = uses_adapter_ ? std::nullopt : std::optional(generate::kNoAdapter)};
}

bool ChatSession::on_token(std::int64_t id, const generate::Token& token) {
  return collector_->on_token(id, token) && requested_stop().empty();
}

void ChatSession::on_done(std::int64_t id, bool is_cut) {
  collector_->on_done(id, is_cut);
  collector_.reset();
}

void ChatSession::on_stop() { on_done(0, false); }

/// Finishes an answer, whatever ended it.
void ChatSession::take_answer(const Answers& answers) {
  const bool is_stopped = !requested_stop().empty();
  if (options_.json) {
    print_raw(answer_to_json(prompt_, static_cast<std::size_t>(num_asked_ - 1), answers) + "\n");
  } else {
    print_raw("\n");
  }
  dialogue_.answer(answers.answer.text);
  if (answers.answer.is_cut) {
    const bool is_full = dialogue_.room(prompt_) <= options_.max_new_tokens;
    note(is_full ? fmt::format("(cut: the context of {} tokens is full. /reset forgets the conversation)",
                               format_count(dialogue_.context()))
                 : fmt::format("(cut after {} tokens: --max-new-tokens)", format_count(options_.max_new_tokens)));
  }
  if (is_stopped) note("(stopped)");
  if (answers.answer.text.empty()) note("(no answer: the message is dropped)");
  if (!reader_.is_interactive()) return;
  tell("");
  if (requested_stop() == "SIGINT") forget_signal();
}

void ChatSession::run_command(const ChatLine& line) {
  switch (line.kind) {
    case ChatLine::Kind::kHelp: write_all(STDERR_FILENO, chat_help()); break;
    case ChatLine::Kind::kReset:
      dialogue_.reset();
      tell("The conversation is forgotten.");
      break;
    case ChatLine::Kind::kAdapter: run_adapter(line.text); break;
    case ChatLine::Kind::kSystem: run_system(line.text); break;
    case ChatLine::Kind::kMessage:
    case ChatLine::Kind::kExit: break;
  }
}

void ChatSession::run_adapter(const std::string& word) {
  if (!options_.has_adapter) throw ConfigError("/adapter", "there is no adapter: start with --adapter DIR.");
  if (!word.empty()) uses_adapter_ = word == "on";
  tell(uses_adapter_ ? "The adapter answers." : "The base model answers, without the adapter.");
}

void ChatSession::run_system(const std::string& text) {
  dialogue_.set_system(text, place());
  tell(text.empty() ? "There is no system message." : "The system message is set.");
}

}  // namespace lora_train::cli
