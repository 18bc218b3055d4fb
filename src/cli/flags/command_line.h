// Parses the command line: the command, and its flags.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/value/findings.h"
#include "lora_train/config/value/value.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::cli {

/// The part before the flags of a command.
struct Invocation {
  bool wants_help = false;             ///< --help before any command
  bool wants_version = false;          ///< --version anywhere before a command
  std::string command;                 ///< "train" when the line starts with a flag or with key=value
  std::vector<std::string> arguments;  ///< of the command; flags that stood before its name come first
};

/// Throws ConfigError if there is nothing to do.
Invocation split_invocation(const std::vector<std::string>& arguments);

/// Flags that every command has.
struct CommonFlags {
  bool json = false;
  bool quiet = false;
  std::string log_level;
};

/// The type of a number, or of an optional one.
template <class T>
struct NumberOf {
  using type = T;
};
template <class T>
struct NumberOf<std::optional<T>> {
  using type = T;
};

/// A command's flags on top of CLI11: adds the common ones, turns mistakes into ConfigError with the nearest flag.
class CommandParser {
 public:
  CommandParser(const std::string& command, const std::string& description);

  /// For flags and options of the command; each option takes one value per occurrence.
  CLI::App& app() { return app_; }
  /// "--name VALUE", may be given several times.
  CLI::Option* add_list(const std::string& flag, std::vector<std::string>& values, const std::string& help);

  /// "--name VALUE" whose text `read` takes; where it returns false the value is refused with what was expected.
  CLI::Option* add_parsed(const std::string& flag, std::function<bool(const std::string&)> read,
                          const std::string& expected, const std::string& help);
  /// "--name N" with least <= N <= most; as in a profile 1e3 is an integer too.
  template <class T>
  CLI::Option* add_integer(const std::string& flag, T& value, std::int64_t least, std::int64_t most,
                           const std::string& help) {
    const auto read = [&value, least, most](const std::string& text) {
      const auto number = parse_integer(text);
      if (!number || *number < least || *number > most) return false;
      value = static_cast<T>(*number);
      return true;
    };
    return add_parsed(flag, read, "a whole number from " + std::to_string(least) + " to " + std::to_string(most), help)
        ->type_name("N");
  }

  /// "--name X" with a number for which `holds`; `expected` says which those are. `value` is a number, or an optional one.
  template <class T>
  CLI::Option* add_number(const std::string& flag, T& value, std::function<bool(double)> holds,
                          const std::string& expected, const std::string& help) {
    const auto read = [&value, holds = std::move(holds)](const std::string& text) {
      const auto number = parse_number(text);
      if (!number || !holds(*number)) return false;
      value = static_cast<typename NumberOf<T>::type>(*number);
      return true;
    };
    return add_parsed(flag, read, expected, help);
  }

  /// Flags that the command has no option for, in any spelling: --lora_r is --lora-r. `take` gets the flag as it was given, its
  /// name with underscores, its value, and the words between it and the next flag; a switch without a value is "true". Options of the
  /// command come before them.
  struct OtherFlag {
    std::string name;
    bool is_switch = false;
    bool is_foreign = false;  ///< of another tool: not suggested, nor listed; where no value follows it is a switch
  };
  using TakeOther = std::function<void(const std::string& flag, const std::string& name, const std::string& value,
                                       const std::vector<std::string>& words)>;
  void accept_others(std::vector<OtherFlag> flags, TakeOther take);

  /// What else is wrong with a line on which flags are wrong: is asked once, so that all is told at once.
  void find_more_mistakes(std::function<void(Findings&)> find) { find_more_ = std::move(find); }

  /// Parses, sets the log level. Throws one ConfigError with all flags that are wrong. Returns false when help or the names of the flags (--list-flags, for completion in shells) were asked
  /// for and printed: the command ends with code 0.
  bool parse(const std::vector<std::string>& arguments);

  /// What a flag names: bf16, fp16 or fp32. Refuses others.
  storage::DType weight_dtype(const std::string& flag, const std::string& name) const;

  /// Refuses what is neither a file nor nothing: the command will put a new file in its place.
  void refuse_special_file(const std::string& flag, const std::string& file) const;

  const CommonFlags& common() const { return common_; }
  /// Throws ConfigError(flag, message) in the name of the command.
  [[noreturn]] void refuse(const std::string& flag, const std::string& message) const;

 private:
  /// Adds what is wrong with a flag.
  void add_mistake(const std::string& flag, const std::string& message) { wrong_.emplace_back(flag, message); }
  void throw_if_wrong() const;
  void find_wrong_words();
  void add_unknown_flag(const std::string& name);
  /// Without the flags that are unknown, and the value that may follow each.
  std::vector<std::string> without_unknown_flags(const std::vector<std::string>& arguments);
  /// Without the options that a flag follows where their value should be.
  std::vector<std::string> without_missing_values(const std::vector<std::string>& arguments);
  /// `arguments` with --max_new_tokens as --max-new-tokens, where the command has that option.
  std::vector<std::string> with_hyphens(std::vector<std::string> arguments) const;
  /// "--name" of every option and other flag.
  std::vector<std::string> flag_names() const;
  /// Hands the other flags to take_other_, and returns the rest.
  std::vector<std::string> take_others(const std::vector<std::string>& arguments);
  const OtherFlag* find_other(const std::string& flag) const;

  CLI::App app_;
  CommonFlags common_;
  std::vector<OtherFlag> other_flags_;
  TakeOther take_other_;
  std::function<void(Findings&)> find_more_;
  std::vector<std::pair<std::string, std::string>> wrong_;  ///< flags, and what is wrong with them
};

}  // namespace lora_train::cli
