#include "command_line.h"

#include "lora_train/base/error.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "output/standard_output.h"

namespace lora_train::app {

Invocation split_invocation(const std::vector<std::string>& arguments) {
  Invocation invocation;
  std::size_t at = 0;
  for (; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    if (argument == "--help" || argument == "-h") invocation.wants_help = true;
    if (argument == "--version") invocation.wants_version = true;
    const bool takes_value = argument == "--log-level" && at + 1 < arguments.size();
    const bool holds_value = argument.starts_with("--log-level=");
    if (argument != "--json" && argument != "--quiet" && !takes_value && !holds_value) break;
    invocation.arguments.push_back(argument);
    if (takes_value) invocation.arguments.push_back(arguments[++at]);
  }
  if (invocation.wants_help || invocation.wants_version) return invocation;
  if (at == arguments.size()) {
    throw ConfigError("lora-train", "no command. Start with: lora-train --profile FILE, or see lora-train --help.");
  }
  const bool is_short_for_train = arguments[at].starts_with("-") || arguments[at].find('=') != std::string::npos;
  invocation.command = is_short_for_train ? "train" : arguments[at++];
  invocation.arguments.insert(invocation.arguments.end(), arguments.begin() + static_cast<std::ptrdiff_t>(at),
                              arguments.end());
  return invocation;
}

CommandParser::CommandParser(const std::string& command, const std::string& description)
    : app_(description, "lora-train " + command) {
  app_.allow_extras();
  app_.add_flag("--json", common_.json, "print results as JSON, one object per line");
  app_.add_flag("--quiet", common_.quiet, "show no progress, only warnings and errors");
  app_.add_option("--log-level", common_.log_level, "lowest level to log: debug, info, warning, error or off")
      ->type_name("LEVEL");
}

CLI::Option* CommandParser::add_list(const std::string& flag, std::vector<std::string>& values,
                                     const std::string& help) {
  // Without this CLI11 would take every following word as a further value.
  return app_.add_option(flag, values, help)->allow_extra_args(false);
}

CLI::Option* CommandParser::add_parsed(const std::string& flag, std::function<bool(const std::string&)> read,
                                       const std::string& expected, const std::string& help) {
  const auto take = [this, flag, read = std::move(read), expected](const std::string& text) {
    if (!read(text)) refuse(flag, "got \"" + text + "\", expected " + expected + ".");
  };
  return app_.add_option_function<std::string>(flag, take, help);
}

bool CommandParser::parse(const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // what CLI11 wants
  try {
    app_.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    print_text(app_.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(app_.get_name(), std::string(error.what()) + ". See " + app_.get_name() + " --help.");
  }
  refuse_extras();
  if (common_.quiet) set_log_level(LogLevel::kWarning);
  if (!common_.log_level.empty()) set_log_level(parse_log_level(common_.log_level));
  return true;
}

void CommandParser::refuse(const std::string& flag, const std::string& message) const {
  throw ConfigError(flag, message + " See " + app_.get_name() + " --help.");
}

void CommandParser::refuse_special_file(const std::string& flag, const std::string& file) const {
  const PathKind kind = file.empty() ? PathKind::kNone : path_kind(file);
  if (kind == PathKind::kNone || kind == PathKind::kFile) return;
  refuse(flag, file + (kind == PathKind::kFolder ? " is a folder" : " is a link, a pipe or a device") +
                   "; expected a file to write.");
}

storage::DType CommandParser::weight_dtype(const std::string& flag, const std::string& name) const {
  if (name == "bf16") return storage::DType::kBF16;
  if (name == "fp16") return storage::DType::kF16;
  if (name == "fp32") return storage::DType::kF32;
  refuse(flag, "unknown type \"" + name + "\"; expected bf16, fp16 or fp32.");
}

void CommandParser::refuse_extras() const {
  const auto extras = app_.remaining();
  if (extras.empty()) return;
  const std::string& first = extras.front();
  if (!first.starts_with("-")) refuse(first, "unexpected argument.");
  const std::string name = first.substr(0, first.find('='));
  std::vector<std::string> flags;
  for (const CLI::Option* option : app_.get_options()) {
    for (const auto& flag : option->get_lnames()) flags.push_back("--" + flag);
  }
  const std::string nearest = nearest_name(name, flags);
  refuse(name, nearest.empty() ? "unknown flag." : "unknown flag. Did you mean \"" + nearest + "\"?");
}

}  // namespace lora_train::app
