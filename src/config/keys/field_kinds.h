// Makes a Field from its name, its member of Profile and its meaning, by kind of value.
// null gives the default where the member has no "nothing" of its own, and nothing where it has.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "enum_names.h"
#include "field.h"

namespace lora_train {

struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false, max_open = false;

  static Range at_least(double min) { return {min, std::numeric_limits<double>::infinity(), false, false}; }
  static Range above(double min) { return {min, std::numeric_limits<double>::infinity(), true, false}; }
  static Range between(double min, double max) { return {min, max, false, false}; }
  static Range from_to_below(double min, double max) { return {min, max, false, true}; }

  bool holds(double value) const {
    return (min_open ? value > min : value >= min) && (max_open ? value < max : value <= max);
  }
  /// ">= 1", "> 0", "0 <= x < 1"
  std::string text() const;
};

Field text_field(std::string name, std::string Profile::*member, std::string values, std::string help);
Field flag_field(std::string name, bool Profile::*member, std::string help);
Field integer_field(std::string name, std::int64_t Profile::*member, Range range, std::string help);
/// `nothing` is the word for std::nullopt: "auto" or "null".
Field integer_field(std::string name, std::optional<std::int64_t> Profile::*member, Range range, std::string nothing,
                    std::string help);
Field number_field(std::string name, double Profile::*member, Range range, std::string help);
Field number_field(std::string name, std::optional<double> Profile::*member, Range range, std::string help);
/// "10m", "2h30m" or seconds.
Field duration_field(std::string name, std::optional<double> Profile::*member, std::string help);
Field cadence_field(std::string name, Cadence Profile::*member, std::string help);
Field datasets_field(std::string name, std::vector<DatasetSpec> Profile::*member, std::string help);
Field targets_field(std::string name, LoraTargets Profile::*member, std::string help);
Field rank_pattern_field(std::string name, std::vector<std::pair<std::string, std::int64_t>> Profile::*member,
                         std::string help);
Field alpha_pattern_field(std::string name, std::vector<std::pair<std::string, double>> Profile::*member,
                          std::string help);
Field text_list_field(std::string name, std::vector<std::string> Profile::*member, std::string help);
Field kernels_field(std::string name, KernelChoices Profile::*member, std::string help);
Field reporters_field(std::string name, std::vector<Reporter> Profile::*member, std::string help);

/// `got "x", expected ...`, with the nearest of `names` when one is near.
std::string unexpected(const Value& got, const std::string& expected, const std::vector<std::string>& names = {});
/// Index into `names` of the value's text, or reports the mistake and returns nothing.
std::optional<std::size_t> read_choice(const Value& value, const std::vector<std::string>& names,
                                       const std::string& key, Findings& findings);
std::string choice_text(const std::vector<std::string>& names);

/// One of a closed set. Where `off` is a value, false and off mean it, and true and on mean `when_on`.
template <class E>
Field choice_field(std::string name, E Profile::*member, std::string help, std::optional<E> when_on = {}) {
  Field field;
  field.name = name;
  field.values = choice_text(names_of<E>());
  field.help = std::move(help);
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    if (value.is_null()) {
      profile.*member = Profile{}.*member;
      return;
    }
    Value word = value;
    if (when_on && word.is_scalar() && word.text != "auto") {
      const std::string lower = word.text;
      if (lower == "true" || lower == "on" || lower == "True" || lower == "yes") word.text = to_string(*when_on);
      if (lower == "false" || lower == "no" || lower == "False") word.text = "off";
    }
    if (const auto index = read_choice(word, names_of<E>(), name, findings)) {
      profile.*member = enum_names(E{})[*index].first;
    }
  };
  field.write = [member](const Profile& profile) { return text_value(to_string(profile.*member)); };
  return field;
}

}  // namespace lora_train
