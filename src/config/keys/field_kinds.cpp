#include "field_kinds.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/scalar.h"

namespace lora_train {
namespace {

constexpr std::size_t kMostShown = 200;  // bytes of a wrong value

// What is shown of a wrong value; a cut leaves no part of a character.
std::string shown(const std::string& text) {
  if (text.size() <= kMostShown) return text;
  std::size_t end = kMostShown;
  while (end > 0 && is_continuation(text[end])) --end;
  return text.substr(0, end) + "...";
}

std::string bound(double value) { return number_value(value).text; }

Field make_field(std::string name, std::string values, std::string help) {
  Field field;
  field.name = std::move(name);
  field.values = std::move(values);
  field.help = std::move(help);
  return field;
}

bool is_word(const Value& value, const std::string& word) {
  return value.is_scalar() && lower_case(value.text) == word;
}

std::optional<std::int64_t> read_integer(const Value& value, const Range& range, const std::string& expected,
                                         const std::string& key, Findings& findings) {
  const auto number = value.is_scalar() ? parse_integer(value.text) : std::nullopt;
  if (number && range.holds(static_cast<double>(*number))) return number;
  findings.mistake(value.place, key, unexpected(value, expected));
  return std::nullopt;
}

std::optional<double> read_number(const Value& value, const Range& range, const std::string& expected,
                                  const std::string& key, Findings& findings) {
  const auto number = value.is_scalar() ? parse_number(value.text) : std::nullopt;
  if (number && range.holds(*number)) return number;
  findings.mistake(value.place, key, unexpected(value, expected));
  return std::nullopt;
}

std::string kind_text(const std::string& noun, const Range& range) {
  const std::string text = range.text();
  return text.empty() ? noun : noun + " " + text;
}

}  // namespace

std::string Range::text() const {
  const bool has_min = std::isfinite(min), has_max = std::isfinite(max);
  if (has_min && has_max) {
    return bound(min) + (min_open ? " < x " : " <= x ") + (max_open ? "< " : "<= ") + bound(max);
  }
  if (has_min) return (min_open ? "> " : ">= ") + bound(min);
  return has_max ? (max_open ? "< " : "<= ") + bound(max) : "";
}

std::string unexpected(const Value& got, const std::string& expected, const std::vector<std::string>& names) {
  std::string what = got.is_list()   ? "got a list"
                     : got.is_map()  ? "got a map"
                     : got.is_null() ? "got nothing"
                                     : "got \"" + shown(got.text) + "\"";
  what += ", expected " + expected + ".";
  const std::string near = got.is_scalar() && got.text.size() < kMostShown ? nearest_name(got.text, names) : "";
  return near.empty() ? what : what + " Did you mean \"" + near + "\"?";
}

std::string choice_text(const std::vector<std::string>& names) { return join(names, " | "); }

std::optional<std::size_t> read_choice(const Value& value, const std::vector<std::string>& names,
                                       const std::string& key, Findings& findings) {
  const auto found = value.is_scalar() ? std::find(names.begin(), names.end(), lower_case(value.text)) : names.end();
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  findings.mistake(value.place, key, unexpected(value, choice_text(names), names));
  return std::nullopt;
}

Field text_field(std::string name, std::string Profile::*member, std::string values, std::string help) {
  Field field = make_field(name, std::move(values), std::move(help));
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    if (value.is_null()) {
      profile.*member = Profile{}.*member;
    } else if (value.is_scalar() && !value.text.empty()) {
      profile.*member = value.text;
    } else {
      findings.mistake(value.place, name, unexpected(value, "text"));
    }
  };
  field.write = [member](const Profile& profile) {
    return (profile.*member).empty() ? null_value() : text_value(profile.*member);
  };
  return field;
}

Field flag_field(std::string name, bool Profile::*member, std::string help) {
  Field field = make_field(name, "true | false", std::move(help));
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    const auto flag = value.is_null() ? Profile{}.*member : value.is_scalar() ? parse_bool(value.text) : std::nullopt;
    if (flag) {
      profile.*member = *flag;
    } else {
      findings.mistake(value.place, name, unexpected(value, "true or false"));
    }
  };
  field.write = [member](const Profile& profile) { return bool_value(profile.*member); };
  return field;
}

Field integer_field(std::string name, std::int64_t Profile::*member, Range range, std::string help) {
  Field field = make_field(name, kind_text("integer", range), std::move(help));
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    const auto number = value.is_null()
                            ? Profile{}.*member
                            : read_integer(value, range, "an " + kind_text("integer", range), name, findings);
    if (number) profile.*member = *number;
  };
  field.write = [member](const Profile& profile) { return integer_value(profile.*member); };
  return field;
}

Field integer_field(std::string name, std::optional<std::int64_t> Profile::*member, Range range, std::string nothing,
                    std::string help) {
  Field field = make_field(name, nothing + " or integer " + range.text(), std::move(help));
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    if (value.is_null() || is_word(value, nothing) || (nothing == "null" && is_word(value, "off"))) {
      profile.*member = std::nullopt;
      return;
    }
    const std::string expected = nothing + " or an integer " + range.text();
    if (const auto number = read_integer(value, range, expected, name, findings)) profile.*member = number;
  };
  field.write = [member, nothing](const Profile& profile) {
    if (profile.*member) return integer_value(*(profile.*member));
    return nothing == "null" ? null_value() : text_value(nothing);
  };
  return field;
}

Field number_field(std::string name, double Profile::*member, Range range, std::string help) {
  Field field = make_field(name, kind_text("number", range), std::move(help));
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    const auto number = value.is_null() ? Profile{}.*member
                                        : read_number(value, range, "a " + kind_text("number", range), name, findings);
    if (number) profile.*member = *number;
  };
  field.write = [member](const Profile& profile) { return number_value(profile.*member); };
  return field;
}

Field number_field(std::string name, std::optional<double> Profile::*member, Range range, std::string help) {
  Field field = make_field(name, "null or number " + range.text(), std::move(help));
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    if (value.is_null()) {
      profile.*member = std::nullopt;
    } else if (const auto number = read_number(value, range, "null or a number " + range.text(), name, findings)) {
      profile.*member = number;
    }
  };
  field.write = [member](const Profile& profile) {
    return profile.*member ? number_value(*(profile.*member)) : null_value();
  };
  return field;
}

Field duration_field(std::string name, std::optional<double> Profile::*member, std::string help) {
  Field field = make_field(name, "off or a time: 90s, 10m, 2h30m, or seconds", std::move(help));
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    const auto flag = value.is_scalar() ? parse_bool(value.text) : std::nullopt;
    if (value.is_null() || (flag && !*flag)) {
      profile.*member = std::nullopt;
      return;
    }
    const auto seconds = value.is_scalar() ? parse_duration(value.text) : std::nullopt;
    if (seconds && *seconds >= 0) {
      profile.*member = *seconds > 0 ? seconds : std::nullopt;
    } else {
      findings.mistake(value.place, name, unexpected(value, "off or a time such as 90s, 10m or 2h30m"));
    }
  };
  field.write = [member](const Profile& profile) {
    return profile.*member ? text_value(duration_text(*(profile.*member))) : null_value();
  };
  return field;
}

Field cadence_field(std::string name, Cadence Profile::*member, std::string help) {
  Field field = make_field(name, "steps >= 1, a share of the run below 1, epoch, or off", std::move(help));
  field.read = [=](const Value& value, Profile& profile, Findings& findings) {
    if (value.is_null()) {
      profile.*member = Profile{}.*member;
      return;
    }
    const auto flag = value.is_scalar() ? parse_bool(value.text) : std::nullopt;
    const auto number = value.is_scalar() ? parse_number(value.text) : std::nullopt;
    if ((flag && !*flag) || (number && *number == 0)) {
      profile.*member = {Cadence::Kind::kOff, 0};
    } else if (is_word(value, "epoch")) {
      profile.*member = {Cadence::Kind::kEpoch, 0};
    } else if (number && *number > 0 && *number < 1) {
      profile.*member = {Cadence::Kind::kFraction, *number};
    } else if (number && *number >= 1 && *number == std::floor(*number)) {
      profile.*member = {Cadence::Kind::kSteps, *number};
    } else {
      findings.mistake(
          value.place, name,
          unexpected(value, "a number of steps, a share of the run below 1, epoch, or off", {"epoch", "off"}));
    }
  };
  field.write = [member](const Profile& profile) {
    const Cadence& cadence = profile.*member;
    if (cadence.kind == Cadence::Kind::kOff) return text_value("off");
    return cadence.kind == Cadence::Kind::kEpoch ? text_value("epoch") : number_value(cadence.value);
  };
  return field;
}

}  // namespace lora_train
