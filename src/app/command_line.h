// Reading the command line: which command it is, and the flags of one command.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>
#include <vector>

namespace lora_train::app {

/// What stands before the flags of a command.
struct Invocation {
  bool wants_help = false;             ///< --help before any command
  bool wants_version = false;          ///< --version anywhere before a command
  std::string command;                 ///< "train" when the line starts with a flag or with key=value
  std::vector<std::string> arguments;  ///< of the command; flags that stood before its name come first
};

/// Throws ConfigError when there is nothing to do.
Invocation split_invocation(const std::vector<std::string>& arguments);

/// Flags that every command has.
struct CommonFlags {
  bool json = false;
  bool quiet = false;
  std::string log_level;
};

/// A command's flags on top of CLI11: adds the common ones, turns mistakes into ConfigError with the nearest flag.
class CommandParser {
 public:
  CommandParser(const std::string& command, const std::string& description);

  /// For flags and options of the command; each option takes one value per occurrence.
  CLI::App& app() { return app_; }
  /// "--name VALUE", may be given several times.
  CLI::Option* add_list(const std::string& flag, std::vector<std::string>& values, const std::string& help);

  /// Parses, sets the log level. Returns false when help was asked for and printed: the command ends with code 0.
  bool parse(const std::vector<std::string>& arguments);

  const CommonFlags& common() const { return common_; }
  /// Throws ConfigError(flag, message) in the name of the command.
  [[noreturn]] void refuse(const std::string& flag, const std::string& message) const;

 private:
  void refuse_extras() const;

  CLI::App app_;
  CommonFlags common_;
};

}  // namespace lora_train::app
