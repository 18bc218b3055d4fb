#include "program.h"

#include <algorithm>

#include "commands/command_line.h"
#include "commands/other_tools.h"
#include "commands/registry.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/convert/convert.h"
#include "output/report_error.h"
#include "output/standard_output.h"
#include "output/version_text.h"

namespace lora_train::cli {
namespace {

const Command& find_command(const Invocation& invocation) {
  const std::string& name = invocation.command;
  std::vector<std::string> names;
  for (const auto& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  if (const std::string instead = instead_of_command(name, invocation.arguments); !instead.empty())
    throw ConfigError(name, instead);
  std::string message = "unknown command.";
  const std::string nearest = nearest_name(name, names);
  if (!nearest.empty()) message += " Did you mean \"" + nearest + "\"?";
  if (name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".json")) {
    message += " To train with a profile: lora-train train " + name + ".";
  }
  throw ConfigError(name, message + " Commands: " + join(names) + ".");
}

// Known even when the command line itself is what is wrong.
bool wants_json(const std::vector<std::string>& arguments) {
  return std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
}

int dispatch(const std::vector<std::string>& arguments) {
  const Invocation invocation = split_invocation(arguments);
  if (invocation.wants_help) {
    print_text(overview());
    return 0;
  }
  if (invocation.wants_version) {
    print_text(version_text(wants_json(arguments)));
    return 0;
  }
  const Command& command = find_command(invocation);
  refuse_configuration_file(command.name, invocation.arguments);
  return command.run(invocation.arguments);
}

}  // namespace

int run_program(const std::vector<std::string>& arguments) {
  introduce_other_tools(known_tools());
  try {
    return dispatch(arguments);
  } catch (...) {
    return report_current_exception(wants_json(arguments));
  }
}

}  // namespace lora_train::cli
