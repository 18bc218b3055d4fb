// Fields whose values are maps.
#include <algorithm>

#include "field_kinds.h"
#include "lora_train/base/kernel_names.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/scalar.h"

namespace lora_train {
namespace {

template <class T, class Parse, class Write>
Field pattern_field(std::string name, Member<std::vector<std::pair<std::string, T>>> member, std::string expected,
                    std::string help, Parse parse, Write write) {
  using Pattern = std::vector<std::pair<std::string, T>>;
  const auto read = [=](const Value& value, Pattern& target, Findings& findings) {
    target.clear();
    if (!value.is_map() && !(value.is_list() && value.items.empty())) {
      findings.mistake(value.place, name, unexpected(value, "a map such as {q_proj: 8}"));
    }
    for (const auto& [pattern, entry] : value.members) {
      const auto number = entry.is_scalar() ? parse(entry.text) : std::nullopt;
      if (number && *number > 0) {
        target.emplace_back(pattern, *number);
      } else {
        findings.mistake(entry.place, name + "." + pattern, unexpected(entry, expected));
      }
    }
  };
  const auto write_map = [write](const Pattern& patterns) {
    Value map;
    map.kind = Value::Kind::kMap;
    for (const auto& [pattern, number] : patterns) map.members.push_back({pattern, write(number)});
    return map;
  };
  return list_field(name, "map of module name or regex to " + expected, std::move(help), std::move(member), read,
                    write_map);
}

KernelSetting read_kernel_setting(const Value& value, const std::string& key, Findings& findings) {
  const auto index = read_choice(value, names_of(KernelSetting{}), key, findings);
  return index ? static_cast<KernelSetting>(*index) : KernelSetting::kAuto;
}

Value write_kernels(const KernelChoices& choices) {
  if (choices.single.empty()) return text_value(to_string(choices.all));
  Value map;
  map.kind = Value::Kind::kMap;
  map.members.push_back({"all", text_value(to_string(choices.all))});
  for (const auto& [kernel, choice] : choices.single) map.members.push_back({kernel, text_value(to_string(choice))});
  return map;
}

}  // namespace

Field rank_pattern_field(std::string name, Member<std::vector<std::pair<std::string, std::int64_t>>> member,
                         std::string help) {
  const Range range = Range::between(1, kMaxLoraRank);
  const auto parse = [range](const std::string& text) {
    const auto number = parse_integer(text);
    return number && range.holds(static_cast<double>(*number)) ? number : std::nullopt;
  };
  return pattern_field(std::move(name), std::move(member), "an integer " + range.text(), std::move(help), parse,
                       integer_value);
}

Field alpha_pattern_field(std::string name, Member<std::vector<std::pair<std::string, double>>> member,
                          std::string help) {
  return pattern_field(std::move(name), std::move(member), "a number > 0", std::move(help), parse_number, number_value);
}

Field kernels_field(std::string name, Member<KernelChoices> member, std::string help) {
  const auto read = [name](const Value& value, KernelChoices& choices, Findings& findings) {
    choices = {};
    if (!value.is_map()) choices.all = read_kernel_setting(value, name, findings);
    const std::vector<std::string> known(kKernelNames.begin(), kKernelNames.end());
    for (const auto& [kernel, entry] : value.members) {
      const std::string key = name + "." + kernel;
      if (kernel == "all") {
        choices.all = read_kernel_setting(entry, key, findings);
      } else if (std::find(known.begin(), known.end(), kernel) != known.end()) {
        choices.single.emplace_back(kernel, read_kernel_setting(entry, key, findings));
      } else {
        findings.mistake(entry.place, key, "unknown kernel. Known: all, " + join(known) + ".");
      }
    }
  };
  return list_field(name, choice_text(names_of(KernelSetting{})) + ", or a map of kernel to one of these",
                    std::move(help), std::move(member), read, write_kernels);
}

}  // namespace lora_train
