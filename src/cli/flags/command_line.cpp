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

std::string spelled_with(char by, std::string name) {
  std::ranges::replace(name, by == '-' ? '_' : '-', by);
  return name;
}

bool is_switch_value(const std::string& text) { return parse_bool(text) || text == "null" || text == "auto"; }

}  // namespace

bool is_configuration(const std::string& word) {
  return !word.starts_with("-") && (word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json"));
}

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

void CommandParser::accept_keys(std::vector<Override>& given) {
  keys_ = known_names();
  given_keys_ = &given;
}

const KnownName* CommandParser::find_key(const std::string& flag) const {
  if (!flag.starts_with("--") || app_.get_option_no_throw(flag) != nullptr) return nullptr;
  const auto found = std::ranges::find(keys_, spelled_with('_', flag.substr(2)), &KnownName::name);
  return found == keys_.end() ? nullptr : &*found;
}

const CLI::Option* CommandParser::find_option(std::string& flag) const {
  if (!flag.starts_with("--")) return nullptr;
  const std::string hyphened = spelled_with('-', flag);
  const CLI::Option* const option = app_.get_option_no_throw(hyphened);
  if (option != nullptr) flag = hyphened;
  return option;
}

/// True if the word after a flag that needs no value is its value: no flag, setting or file.
bool CommandParser::may_be_value(const std::string& word) const {
  const std::string name = spelled_with('_', word.substr(0, word.find_first_of("=[.")));
  const bool is_setting = word.find('=') != std::string::npos && std::ranges::count(keys_, name, &KnownName::name) > 0;
  std::error_code code;
  const bool is_profile = !keys_.empty() && (is_configuration(word) || std::filesystem::is_regular_file(word, code));
  return !word.starts_with("--") && !is_setting && !is_profile;
}

void CommandParser::take_key(const KnownName& key, const std::vector<std::string>& words, std::size_t& at) {
  const std::string flag = name_of_flag(words[at]);
  const bool has_next = at + 1 < words.size() && !words[at + 1].starts_with("--");
  std::optional<std::string> value;
  if (flag.size() < words[at].size()) {
    value = words[at].substr(flag.size() + 1);
  } else if (has_next && (!key.is_switch || is_switch_value(words[at + 1]))) {
    value = words[++at];
  } else if (key.is_switch) {
    value = "true";
  }
  if (!value) return add_mistake(flag, fmt::format("has no value; expected {} VALUE.", flag));
  given_keys_->push_back({key.name, *value, flag, /*literal=*/false});
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
      const bool needs_none = option->get_items_expected_min() == 0 && option->get_items_expected_max() > 0;
      if (takes_next) {
        own.push_back(words[++i]);
      } else if (needs_none && has_next && !may_be_value(words[i + 1])) {
        own.emplace_back("--");  // so that CLI11 does not take the next word
      }
    } else if (const KnownName* const key = find_key(flag)) {
      take_key(*key, words, i);
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
  for (const KnownName& key : keys_) flags.push_back("--" + spelled_with('-', key.name));
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
  const KnownName* const negated = is_negated ? find_key("--" + name.substr(5)) : nullptr;
  if (negated != nullptr && negated->is_switch)
    return add_mistake(name, fmt::format("unknown flag. Switch it off with --{} false.", name.substr(5)));
  if (const std::string tool = keys_.empty() ? "" : tool_of_key(spelled_with('_', name.substr(2))); !tool.empty())
    return add_mistake(name, fmt::format("is a key of {}: run `lora-train convert FILE`.", tool));
  const bool is_input = name == "--input" || name == "--inputs" || name == "--input-file" || name == "--input_file";
  const bool has_prompts = app_.get_option_no_throw("--prompts") != nullptr;
  add_mistake(name, "unknown flag." +
                        (is_input && has_prompts ? did_you_mean({"--prompts"}) : did_you_mean(name, flag_names())));
}

}  // namespace lora_train::cli
