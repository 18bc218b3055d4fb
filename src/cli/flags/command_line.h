// Parses the command line: the command, and its flags.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/base/text.h"
#include "lora_train/config/keys/reference.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/findings.h"
#include "lora_train/config/value/value.h"

namespace lora_train::cli {

/// The part of the command line before the command's flags.
struct Invocation {
  bool wants_help = false;             ///< --help before any command
  bool wants_version = false;          ///< --version anywhere before a command
  std::string command;                 ///< "train" when the line starts with a flag or with key=value
  std::vector<std::string> arguments;  ///< the command's; flags before its name come first
};

/// True for a word that looks like a configuration file: .yaml, .yml or .json.
bool is_configuration(const std::string& word);

/// Throws ConfigError if there is nothing to do.
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

  CLI::App& app() { return app_; }
  CLI::Option* add_flag(const std::string& flag, bool& value, const std::string& help) {
    return app_.add_flag(flag, value, help);
  }
  /// "--name TYPE", or a word TYPE if the name has no hyphens.
  template <class T>
  CLI::Option* add(const std::string& flag, T& value, const std::string& type, const std::string& help) {
    return app_.add_option(flag, value, help)->type_name(type);
  }
  /// "--name TYPE", repeatable.
  CLI::Option* add_list(const std::string& flag, std::vector<std::string>& values, const std::string& type,
                        const std::string& help);

  /// "--name TYPE", parsed by `read`; if that returns false, the value is refused with `expected`.
  CLI::Option* add_parsed(const std::string& flag, const std::string& type,
                          std::function<bool(const std::string&)> read, const std::string& expected,
                          const std::string& help);
  /// "--name N" with least <= N <= most; as in a profile, 1e3 is an integer too.
  template <class T>
  CLI::Option* add_integer(const std::string& flag, T& value, std::int64_t least, std::int64_t most,
                           const std::string& help) {
    const auto read = [&value, least, most](const std::string& text) {
      const auto number = parse_integer(text);
      if (!number || *number < least || *number > most) return false;
      value = static_cast<T>(*number);
      return true;
    };
    return add_parsed(flag, "N", read, fmt::format("a whole number from {} to {}", least, most), help);
  }

  /// "--name TYPE" with a number that satisfies `holds`, as `expected` describes. `value` is a number, or an optional
  /// one.
  template <class T>
  CLI::Option* add_number(const std::string& flag, T& value, const std::string& type, std::function<bool(double)> holds,
                          const std::string& expected, const std::string& help) {
    const auto read = [&value, holds = std::move(holds)](const std::string& text) {
      const auto number = parse_number(text);
      if (!number || !holds(*number)) return false;
      value = static_cast<T>(*number);
      return true;
    };
    return add_parsed(flag, type, read, expected, help);
  }

  /// "--name WORD" with one of `words`.
  template <class T>
  CLI::Option* add_choice(const std::string& flag, T& value, const std::vector<std::pair<std::string, T>>& words,
                          const std::string& help) {
    std::string names;
    for (const auto& [word, meaning] : words) names += (names.empty() ? "" : "|") + word;
    const auto read = [&value, words](const std::string& text) {
      const auto found = std::ranges::find_if(words, [&](const auto& word) { return word.first == text; });
      if (found != words.end()) value = found->second;
      return found != words.end();
    };
    return add_parsed(flag, names, read, names, help);
  }

  /// Every key of a profile becomes a flag, in any spelling (--lora_r is --lora-r), and goes to `given`; a switch needs
  /// no value. The command's own options take precedence.
  void accept_keys(std::vector<Override>& given);

  /// Finds other mistakes on a line with wrong flags: called once, so that all are reported together.
  void find_more_mistakes(std::function<void(Findings&)> find) { find_more_ = std::move(find); }

  /// Parses the line and sets the log level. Throws one ConfigError with all wrong flags. Returns false if help or the
  /// flag names (--list-flags, for completion in shells) were requested and printed: the command ends with code 0.
  bool parse(const std::vector<std::string>& arguments);

  /// Refuses an existing path that is not a regular file: the command will put a new file in its place.
  void refuse_special_file(const std::string& flag, const std::string& file) const;

  const CommonFlags& common() const { return common_; }
  /// Call it after parsing.
  bool is_given(const std::string& flag) const { return app_.get_option(flag)->count() > 0; }
  /// Throws ConfigError(flag, message) on behalf of the command.
  [[noreturn]] void refuse(const std::string& flag, const std::string& message) const;

 private:
  /// Adds a mistake of a flag.
  void add_mistake(const std::string& flag, const std::string& message) { wrong_.emplace_back(flag, message); }
  void throw_if_wrong() const;
  void find_wrong_words();
  void add_unknown_flag(const std::string& name);
  /// "--name" of every option and every key.
  std::vector<std::string> flag_names() const;
  /// Returns the words for CLI11. Takes the keys, and notes unknown flags and missing values.
  std::vector<std::string> take_words(const std::vector<std::string>& words);
  /// `at`: the flag; afterwards its last word.
  void take_key(const KnownName& key, const std::vector<std::string>& words, std::size_t& at);
  const KnownName* find_key(const std::string& flag) const;
  /// Gives `flag` the option's spelling, with hyphens.
  const CLI::Option* find_option(std::string& flag) const;
  bool is_known(std::string flag) const { return find_option(flag) || find_key(flag); }
  bool may_be_value(const std::string& word) const;

  CLI::App app_;
  CommonFlags common_;
  std::vector<KnownName> keys_;
  std::vector<Override>* given_keys_ = nullptr;
  std::function<void(Findings&)> find_more_;
  std::vector<std::pair<std::string, std::string>> wrong_;  ///< flags and their mistakes
};

}  // namespace lora_train::cli
