// Makes a Field from its name, its member of a profile's section and its meaning, by kind of value. null means
// std::nullopt for an optional member, else the default.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lora_train/config/keys/field.h"

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

/// The place of a value in a profile: a member of one of its sections, such as `&RunSection::seed`.
template <class T>
class Member {
 public:
  template <class Section>
  Member(T Section::*member)  // NOLINT(google-explicit-constructor): the declarations name the member alone
      : of_([member](Profile& profile) -> T& { return section<Section>(profile).*member; }),
        of_const_([member](const Profile& profile) -> const T& { return section<const Section>(profile).*member; }) {}

  T& of(Profile& profile) const { return of_(profile); }
  const T& of(const Profile& profile) const { return of_const_(profile); }

 private:
  template <class Section>
  static Section& section(auto& profile) {
    return std::get<Section&>(std::tie(profile.model, profile.adapter, profile.data, profile.teacher, profile.tasks,
                                       profile.objective, profile.optimizer, profile.schedule, profile.run));
  }

  std::function<T&(Profile&)> of_;
  std::function<const T&(const Profile&)> of_const_;
};

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

/// `read(value, target, findings)` never gets null, and leaves the target unchanged if it reports a mistake.
template <class T, class Read, class Write>
Field make_field(std::string name, std::string values, std::string help, Member<T> member, Read read, Write write) {
  Field field;
  field.name = std::move(name);
  field.values = std::move(values);
  field.help = std::move(help);
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    if (!value.is_null()) {
      read(value, member.of(profile), findings);
    } else if constexpr (kIsOptional<T>) {
      member.of(profile).reset();
    } else {
      const Profile defaults;
      member.of(profile) = member.of(defaults);
    }
  };
  field.write = [=](const Profile& profile) { return write(member.of(profile)); };
  return field;
}

/// The same for a list or a map, which cannot be used in output_dir.
template <class T, class Read, class Write>
Field list_field(std::string name, std::string values, std::string help, Member<T> member, Read read, Write write) {
  Field field = make_field(std::move(name), std::move(values), std::move(help), std::move(member), read, write);
  field.is_scalar = false;
  return field;
}

Field text_field(std::string name, Member<std::string> member, std::string values, std::string help);
Field flag_field(std::string name, Member<bool> member, std::string help);
/// std::nullopt is null.
Field flag_field(std::string name, Member<std::optional<bool>> member, std::string help);
Field integer_field(std::string name, Member<std::int64_t> member, Range range, std::string help);
/// `nothing` is the word for std::nullopt: "auto" or "null".
Field integer_field(std::string name, Member<std::optional<std::int64_t>> member, Range range, std::string nothing,
                    std::string help);
Field number_field(std::string name, Member<double> member, Range range, std::string help);
Field number_field(std::string name, Member<std::optional<double>> member, Range range, std::string help);
/// "2026-12-01"; empty is auto.
Field date_field(std::string name, Member<std::string> member, std::string help);
/// "10m", "2h30m" or seconds.
Field duration_field(std::string name, Member<std::optional<double>> member, std::string help);
Field cadence_field(std::string name, Member<Cadence> member, std::string help);
Field datasets_field(std::string name, Member<std::vector<DatasetSpec>> member, std::string help);
Field targets_field(std::string name, Member<LoraTargets> member, std::string help);
Field rank_pattern_field(std::string name, Member<std::vector<std::pair<std::string, std::int64_t>>> member,
                         std::string help);
Field alpha_pattern_field(std::string name, Member<std::vector<std::pair<std::string, double>>> member,
                          std::string help);
Field new_tokens_field(std::string name, Member<std::vector<NewToken>> member, std::string help);
Field kernels_field(std::string name, Member<KernelChoices> member, std::string help);
Field eval_tasks_field(std::string name, Member<std::vector<EvalTask>> member, std::string help);
Field confidence_tokens_field(std::string name, Member<std::vector<std::pair<std::string, double>>> member,
                              std::string help);
Field reporters_field(std::string name, Member<std::vector<Reporter>> member, std::string help);

/// `got "x", expected ...`, with the nearest of `names` if one is close.
std::string unexpected(const Value& got, const std::string& expected, const std::vector<std::string>& names = {});
/// Reports that as the mistake.
void refuse_value(const Value& got, const std::string& key, const std::string& expected, Findings& findings);
/// Returns the index into `names` of the value's text, or reports the mistake and returns nothing.
std::optional<std::size_t> choice_index(const Value& value, const std::vector<std::string>& names,
                                        const std::string& key, Findings& findings);
/// The same for one of a closed set of values.
template <class E>
std::optional<E> read_choice(const Value& value, const std::string& key, Findings& findings) {
  const auto index = choice_index(value, names_of(E{}), key, findings);
  return index ? std::optional(static_cast<E>(*index)) : std::nullopt;
}
std::string choice_text(const std::vector<std::string>& names);

/// Reads how often something happens, or reports the mistake and returns nothing.
std::optional<Cadence> read_cadence(const Value& value, const std::string& key, Findings& findings);
Value write_cadence(const Cadence& cadence);

/// One of a closed set of values. With `when_on`, true, on and yes mean that value, and false and no mean off.
template <class E, class Section>
Field choice_field(std::string name, E Section::*member, std::string help,
                   std::optional<std::type_identity_t<E>> when_on = {}) {
  const auto read = [=](const Value& value, E& target, Findings& findings) {
    Value word = value;
    if (when_on && word.is_scalar() && word.text != "auto") {
      const std::string lower = word.text;
      if (lower == "true" || lower == "on" || lower == "True" || lower == "yes") word.text = to_string(*when_on);
      if (lower == "false" || lower == "no" || lower == "False") word.text = "off";
    }
    target = read_choice<E>(word, name, findings).value_or(target);
  };
  return make_field(name, choice_text(names_of(E{})), std::move(help), Member<E>(member), read,
                    [](E value) { return text_value(to_string(value)); });
}

}  // namespace lora_train
