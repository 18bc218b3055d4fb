#include "field_kinds.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

constexpr std::size_t kMaxShown = 200;  // bytes of a wrong value

// The part of a wrong value to show; never cuts a character in two.
std::string shown(const std::string& text) {
  if (text.size() <= kMaxShown) return text;
  std::size_t end = kMaxShown;
  while (end > 0 && is_continuation(text[end])) --end;
  return text.substr(0, end) + "...";
}

std::string bound(double value) { return number_value(value).text; }

/// `parse`: parse_integer or parse_number.
void read_in_range(const Value& value, const auto& parse, const Range& range, const std::string& expected,
                   const std::string& key, auto& target, Findings& findings) {
  const auto number = value.is_scalar() ? parse(value.text) : std::nullopt;
  if (number && range.holds(static_cast<double>(*number))) {
    target = *number;
  } else {
    refuse_value(value, key, expected, findings);
  }
}

std::string kind_text(const std::string& noun, const Range& range) {
  const std::string text = range.text();
  return text.empty() ? noun : fmt::format("{} {}", noun, text);
}

template <class T>
auto read_flag(const std::string& name) {
  return [name](const Value& value, T& target, Findings& findings) {
    if (const auto flag = value.is_scalar() ? parse_bool(value.text) : std::nullopt) {
      target = *flag;
    } else {
      refuse_value(value, name, "true or false", findings);
    }
  };
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
                                     : fmt::format("got \"{}\"", shown(got.text));
  what += fmt::format(", expected {}.", expected);
  const std::string near = got.is_scalar() && got.text.size() < kMaxShown ? nearest_name(got.text, names) : "";
  return near.empty() ? what : fmt::format("{} Did you mean \"{}\"?", what, near);
}

void refuse_value(const Value& got, const std::string& key, const std::string& expected, Findings& findings) {
  findings.mistake(got.place, key, unexpected(got, expected));
}

std::string choice_text(const std::vector<std::string>& names) { return join(names, " | "); }

std::optional<std::size_t> choice_index(const Value& value, const std::vector<std::string>& names,
                                        const std::string& key, Findings& findings) {
  const auto found = value.is_scalar() ? std::find(names.begin(), names.end(), lower_case(value.text)) : names.end();
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  findings.mistake(value.place, key, unexpected(value, choice_text(names), names));
  return std::nullopt;
}

Field text_field(std::string name, Member<std::string> member, std::string values, std::string help) {
  const auto read = [name](const Value& value, std::string& target, Findings& findings) {
    if (value.is_scalar() && !value.text.empty()) {
      target = value.text;
    } else {
      refuse_value(value, name, "text", findings);
    }
  };
  return make_field(name, std::move(values), std::move(help), std::move(member), read,
                    [](const std::string& text) { return text.empty() ? null_value() : text_value(text); });
}

Field date_field(std::string name, Member<std::string> member, std::string help) {
  const auto read = [name](const Value& value, std::string& target, Findings& findings) {
    if (is_word(value, "auto")) {
      target.clear();
    } else if (value.is_scalar() && noon_of(value.text)) {
      target = value.text;
    } else {
      refuse_value(value, name, "auto, or a day such as 2026-12-01", findings);
    }
  };
  return make_field(name, "auto | YYYY-MM-DD", std::move(help), std::move(member), read,
                    [](const std::string& day) { return text_value(day.empty() ? "auto" : day); });
}

Field flag_field(std::string name, Member<bool> member, std::string help) {
  return make_field(name, "true | false", std::move(help), std::move(member), read_flag<bool>(name), bool_value);
}

Field flag_field(std::string name, Member<std::optional<bool>> member, std::string help) {
  const auto write = [](const std::optional<bool>& value) { return value ? bool_value(*value) : null_value(); };
  return make_field(name, "true | false | null", std::move(help), std::move(member),
                    read_flag<std::optional<bool>>(name), write);
}

Field integer_field(std::string name, Member<std::int64_t> member, Range range, std::string help) {
  const std::string kind = kind_text("integer", range);
  const auto read = [=](const Value& value, std::int64_t& target, Findings& findings) {
    read_in_range(value, parse_integer, range, "an " + kind, name, target, findings);
  };
  return make_field(name, kind, std::move(help), std::move(member), read, integer_value);
}

Field integer_field(std::string name, Member<std::optional<std::int64_t>> member, Range range, std::string nothing,
                    std::string help) {
  const auto read = [=](const Value& value, std::optional<std::int64_t>& target, Findings& findings) {
    if (is_word(value, nothing) || (nothing == "null" && is_word(value, "off"))) {
      target.reset();
    } else {
      read_in_range(value, parse_integer, range, fmt::format("{} or an integer {}", nothing, range.text()), name,
                    target, findings);
    }
  };
  const auto write = [nothing](const std::optional<std::int64_t>& number) {
    if (number) return integer_value(*number);
    return nothing == "null" ? null_value() : text_value(nothing);
  };
  return make_field(name, nothing + " or integer " + range.text(), std::move(help), std::move(member), read, write);
}

Field number_field(std::string name, Member<double> member, Range range, std::string help) {
  const std::string kind = kind_text("number", range);
  const auto read = [=](const Value& value, double& target, Findings& findings) {
    read_in_range(value, parse_number, range, "a " + kind, name, target, findings);
  };
  return make_field(name, kind, std::move(help), std::move(member), read, number_value);
}

Field number_field(std::string name, Member<std::optional<double>> member, Range range, std::string help) {
  const auto read = [=](const Value& value, std::optional<double>& target, Findings& findings) {
    read_in_range(value, parse_number, range, "null or a number " + range.text(), name, target, findings);
  };
  return make_field(name, "null or number " + range.text(), std::move(help), std::move(member), read,
                    [](const std::optional<double>& number) { return number ? number_value(*number) : null_value(); });
}

Field duration_field(std::string name, Member<std::optional<double>> member, std::string help) {
  const auto read = [name](const Value& value, std::optional<double>& target, Findings& findings) {
    const auto flag = value.is_scalar() ? parse_bool(value.text) : std::nullopt;
    const auto seconds = value.is_scalar() ? parse_duration(value.text) : std::nullopt;
    if ((flag && !*flag) || seconds == 0.0) {
      target.reset();
    } else if (seconds && *seconds > 0) {
      target = seconds;
    } else {
      refuse_value(value, name, "off or a time such as 90s, 10m or 2h30m", findings);
    }
  };
  return make_field(name, "off or a time: 90s, 10m, 2h30m, or seconds", std::move(help), std::move(member), read,
                    [](const std::optional<double>& seconds) {
                      return seconds ? text_value(duration_text(*seconds)) : null_value();
                    });
}

std::optional<Cadence> read_cadence(const Value& value, const std::string& key, Findings& findings) {
  const auto flag = value.is_scalar() ? parse_bool(value.text) : std::nullopt;
  const auto number = value.is_scalar() ? parse_number(value.text) : std::nullopt;
  if ((flag && !*flag) || (number && *number == 0)) return Cadence{Cadence::Kind::kOff, 0};
  if (is_word(value, "epoch")) return Cadence{Cadence::Kind::kEpoch, 0};
  if (number && *number > 0 && *number < 1) return Cadence{Cadence::Kind::kFraction, *number};
  if (number && *number >= 1 && *number == std::floor(*number)) return Cadence{Cadence::Kind::kSteps, *number};
  findings.mistake(value.place, key,
                   unexpected(value, "a number of steps, a share of the run below 1, epoch, or off", {"epoch", "off"}));
  return std::nullopt;
}

Value write_cadence(const Cadence& cadence) {
  if (cadence.kind == Cadence::Kind::kOff) return text_value("off");
  return cadence.kind == Cadence::Kind::kEpoch ? text_value("epoch") : number_value(cadence.value);
}

Field cadence_field(std::string name, Member<Cadence> member, std::string help) {
  const auto read = [name](const Value& value, Cadence& target, Findings& findings) {
    target = read_cadence(value, name, findings).value_or(target);
  };
  return make_field(name, "steps >= 1, a share of the run below 1, epoch, or off", std::move(help), std::move(member),
                    read, write_cadence);
}

}  // namespace lora_train
