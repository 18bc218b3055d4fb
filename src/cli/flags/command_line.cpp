#include "command_line.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/convert/convert.h"
#include "output/standard_output.h"

namespace lora_train::cli {
namespace {

/// Handles `help`, which is --help, and `help COMMAND`, which is `COMMAND --help`.
Invocation help_invocation(const std::vector<std::string>& of) {
  Invocation invocation;
  invocation.wants_help = of.empty();
  if (of.size() > 1) throw ConfigError("lora-train help", "expected one command: lora-train help {}.", of.front());
  if (!of.empty()) invocation.command = of.front();
  invocation.arguments = {"--help"};
  return invocation;
}

/// "--lora-r" for "--lora-r=8".
std::string name_of_flag(const std::string& argument) { return argument.substr(0, argument.find('=')); }

/// The word at `at` and those after it, up to the next flag or setting.
std::vector<std::string> words_from(const std::vector<std::string>& arguments, std::size_t at) {
  std::vector<std::string> words;
  for (; at < arguments.size(); ++at) {
    if (arguments[at].starts_with("-") || arguments[at].find('=') != std::string::npos) break;
    words.push_back(arguments[at]);
  }
  return words;
}

/// True if a word after a flag with an optional value is that value: not a flag, a setting or a profile.
bool may_be_value(const std::string& word) {
  return !word.starts_with("--") && word.find('=') == std::string::npos && !word.ends_with(".yaml") &&
         !word.ends_with(".yml");
}

bool is_switch_value(const std::string& text) { return parse_bool(text) || text == "null" || text == "auto"; }

}  // namespace

Invocation split_invocation(const std::vector<std::string>& arguments) {
  Invocation invocation;
  std::size_t at = 0;
  for (; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    if (argument == "--help" || argument == "-h") invocation.wants_help = true;
    if (argument == "--version" || argument == "-V") invocation.wants_version = true;
    const bool takes_value = argument == "--log-level" && at + 1 < arguments.size();
    const bool holds_value = argument.starts_with("--log-level=");
    if (argument != "--json" && argument != "--quiet" && !takes_value && !holds_value) break;
    invocation.arguments.push_back(argument);
    if (takes_value) invocation.arguments.push_back(arguments[++at]);
  }
  if (invocation.wants_help || invocation.wants_version) return invocation;
  if (at == arguments.size()) {
    throw ConfigError("lora-train", "no command. Start with: lora-train train FILE, or see lora-train --help.");
  }
  if (arguments[at] == "help")
    return help_invocation({arguments.begin() + static_cast<std::ptrdiff_t>(at) + 1, arguments.end()});
  const bool is_short_for_train = arguments[at].starts_with("-") || arguments[at].find('=') != std::string::npos;
  invocation.command = is_short_for_train ? "train" : arguments[at++];
  invocation.arguments.insert(invocation.arguments.end(), arguments.begin() + static_cast<std::ptrdiff_t>(at),
                              arguments.end());
  return invocation;
}

CommandParser::CommandParser(const std::string& command, const std::string& description)
    : app_(description, "lora-train " + command) {
  app_.allow_extras();
  add_flag("--json", common_.json, "print results as JSON, one object per line");
  add_flag("--quiet", common_.quiet, "show no progress, only warnings and errors");
  add("--log-level", common_.log_level, "LEVEL", "lowest level to log: debug, info, warning, error or off");
}

CLI::Option* CommandParser::add_list(const std::string& flag, std::vector<std::string>& values, const std::string& type,
                                     const std::string& help) {
  // Otherwise CLI11 would take every following word as a further value.
  return add(flag, values, type, help)->allow_extra_args(false);
}

CLI::Option* CommandParser::add_parsed(const std::string& flag, const std::string& type,
                                       std::function<bool(const std::string&)> read, const std::string& expected,
                                       const std::string& help) {
  const auto take = [this, flag, read = std::move(read), expected](const std::string& text) {
    if (!read(text)) add_mistake(flag, fmt::format("got \"{}\", expected {}.", text, expected));
  };
  return app_.add_option_function<std::string>(flag, take, help)->type_name(type);
}

void CommandParser::accept_others(std::vector<OtherFlag> flags, TakeOther take) {
  other_flags_ = std::move(flags);
  take_other_ = std::move(take);
}

const CommandParser::OtherFlag* CommandParser::find_other(const std::string& flag) const {
  if (!flag.starts_with("--") || app_.get_option_no_throw(flag) != nullptr) return nullptr;
  std::string name = flag.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  const auto found = std::find_if(other_flags_.begin(), other_flags_.end(),
                                  [&](const OtherFlag& other) { return other.name == name; });
  return found == other_flags_.end() ? nullptr : &*found;
}

const CLI::Option* CommandParser::find_option(std::string& flag) const {
  if (!flag.starts_with("--")) return nullptr;
  std::string hyphened = flag;
  std::replace(hyphened.begin(), hyphened.end(), '_', '-');
  const CLI::Option* const option = app_.get_option_no_throw(hyphened);
  if (option != nullptr) flag = hyphened;
  return option;
}

bool CommandParser::is_known(std::string flag) const { return find_option(flag) || find_other(flag); }

void CommandParser::take_other(const OtherFlag& other, const std::vector<std::string>& words, std::size_t& at) {
  const std::string flag = name_of_flag(words[at]);
  if (flag.size() < words[at].size())
    return take_other_(flag, other.name, words[at].substr(flag.size() + 1), words_from(words, at + 1));
  const bool has_next = at + 1 < words.size() && !words[at + 1].starts_with("--");
  const bool takes_next = has_next && (!other.is_switch || is_switch_value(words[at + 1]));
  if (takes_next) {
    ++at;
    take_other_(flag, other.name, words[at], words_from(words, at + 1));
  } else if (other.is_switch) {
    take_other_(flag, other.name, "true", {});
  } else {
    add_mistake(flag, fmt::format("has no value; expected {} VALUE.", flag));
  }
}

std::vector<std::string> CommandParser::take_words(const std::vector<std::string>& words) {
  std::vector<std::string> own;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string flag = name_of_flag(words[i]);
    const std::string value = words[i].substr(flag.size());
    const bool has_next = value.empty() && i + 1 < words.size();
    if (!flag.starts_with("--")) {
      own.push_back(words[i]);
    } else if (const CLI::Option* const option = find_option(flag)) {
      const bool takes_next = has_next && option->get_items_expected_min() > 0;
      if (takes_next && is_known(name_of_flag(words[i + 1]))) {
        add_mistake(flag, fmt::format("has no value; expected {} {}.", flag, option->get_type_name()));
        continue;
      }
      own.push_back(flag + value);
      if (takes_next) own.push_back(words[++i]);
    } else if (const OtherFlag* const other = find_other(flag)) {
      take_other(*other, words, i);
    } else {
      add_unknown_flag(flag);
      if (has_next && may_be_value(words[i + 1])) ++i;
    }
  }
  return own;
}

bool CommandParser::parse(const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"--list-flags"}) {
    for (const auto& flag : flag_names()) print_line(flag);
    return false;
  }
  const auto end_of_flags = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> own = take_words({arguments.begin(), end_of_flags});
  own.insert(own.end(), end_of_flags, arguments.end());
  try {
    app_.parse(std::vector<std::string>(own.rbegin(), own.rend()));
  } catch (const CLI::CallForHelp&) {
    print_text(app_.help());
    return false;
  } catch (const CLI::ParseError& error) {
    wrong_.emplace(wrong_.begin(), app_.get_name(), std::string(error.what()) + ".");
  }
  find_wrong_words();
  throw_if_wrong();
  if (common_.quiet) set_log_level(LogLevel::kWarning);
  if (!common_.log_level.empty()) set_log_level(parse_log_level(common_.log_level));
  return true;
}

void CommandParser::refuse(const std::string& flag, const std::string& message) const {
  throw ConfigError(flag, "{} See {} --help.", message, app_.get_name());
}

void CommandParser::refuse_special_file(const std::string& flag, const std::string& file) const {
  const PathKind kind = file.empty() ? PathKind::kNone : path_kind(file);
  if (kind == PathKind::kNone || kind == PathKind::kFile) return;
  refuse(flag, fmt::format("{}{}; expected a file to write.", file,
                           kind == PathKind::kFolder ? " is a folder" : " is a link, a pipe or a device"));
}

std::vector<std::string> CommandParser::flag_names() const {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app_.get_options()) {
    for (const auto& flag : option->get_lnames()) flags.push_back("--" + flag);
  }
  for (const OtherFlag& other : other_flags_) {
    flags.push_back("--" + other.name);
    std::replace(flags.back().begin(), flags.back().end(), '_', '-');
  }
  return flags;
}

void CommandParser::find_wrong_words() {
  auto extras = app_.remaining();
  std::erase(extras, "--");  // CLI11 counts it as an extra
  for (const std::string& extra : extras) {
    if (extra.starts_with("-")) {
      add_unknown_flag(name_of_flag(extra));
      continue;
    }
    const bool takes_it = path_kind(extra) == PathKind::kFolder && app_.get_option_no_throw("--adapter") != nullptr;
    add_mistake(extra, "unexpected argument." +
                           (takes_it ? fmt::format(" To use a run or a PEFT folder: --adapter {}.", extra) : ""));
  }
}

void CommandParser::throw_if_wrong() const {
  if (wrong_.empty()) return;
  Findings findings;
  for (const auto& [flag, message] : wrong_) findings.mistake({flag}, "", message);
  if (find_more_) find_more_(findings);
  if (findings.num_mistakes() == 1) refuse(wrong_.front().first, wrong_.front().second);
  findings.hint(fmt::format("See {} --help.", app_.get_name()));
  findings.throw_mistakes();
}

void CommandParser::add_unknown_flag(const std::string& name) {
  const bool is_negated = name.starts_with("--no-") || name.starts_with("--no_");
  const OtherFlag* const negated = is_negated ? find_other("--" + name.substr(5)) : nullptr;
  if (negated != nullptr && negated->is_switch)
    return add_mistake(name, fmt::format("unknown flag. Switch it off with --{} false.", name.substr(5)));
  std::string key = name.substr(2);
  std::replace(key.begin(), key.end(), '-', '_');
  if (const std::string tool = other_flags_.empty() ? "" : tool_of_key(key); !tool.empty())
    return add_mistake(name, fmt::format("is a key of {}: run `lora-train convert FILE`.", tool));
  const bool is_input = name == "--input" || name == "--inputs" || name == "--input-file" || name == "--input_file";
  const bool has_prompts = app_.get_option_no_throw("--prompts") != nullptr;
  const std::string nearest = is_input && has_prompts ? "--prompts" : nearest_name(name, flag_names());
  add_mistake(name, nearest.empty() ? "unknown flag." : fmt::format("unknown flag. Did you mean \"{}\"?", nearest));
}

}  // namespace lora_train::cli
