// A Profile back to text, and what differs between two.
#include "lora_train/base/hash.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

std::string commented(const std::string& line, const std::string& comment) {
  if (comment.empty()) return line + "\n";
  constexpr std::size_t kColumn = 40;
  return line + std::string(line.size() < kColumn ? kColumn - line.size() : 1, ' ') + "# " + comment + "\n";
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

std::string yaml_of(const Profile& profile, const std::map<std::string, std::string>& origin) {
  std::string out;
  for (const auto& group : field_groups()) {
    out += (out.empty() ? "# " : "\n# ") + group.title + "\n";
    for (const auto& field : group.fields) {
      const auto found = origin.find(field.name);
      out += yaml_entry(field.name, field.write(profile), found == origin.end() ? "" : one_line(found->second));
    }
  }
  return out;
}

// A limit that was lifted counts as raised.
bool is_raised(const Value& before, const Value& after) {
  if (after.is_null()) return true;
  const auto from = parse_number(before.text), to = parse_number(after.text);
  return from && to && *to >= *from;
}

}  // namespace

std::string yaml_entry(const std::string& key, const Value& value, const std::string& comment) {
  if (!value.is_list() || value.items.empty() || !value.items.front().is_map()) {
    return commented(key + ": " + to_flow_yaml(value), comment);
  }
  std::string out = commented(key + ":", comment);
  for (const auto& item : value.items) out += "  - " + to_flow_yaml(item) + "\n";
  return out;
}

std::string to_yaml(const Profile& profile) { return yaml_of(profile, {}); }

std::string to_yaml(const LoadedProfile& loaded) { return yaml_of(loaded.profile, loaded.origin); }

std::string to_short_yaml(const LoadedProfile& loaded, int& num_left_out) {
  std::string out;
  num_left_out = 0;
  for (const auto& group : field_groups()) {
    std::string entries;
    for (const auto& field : group.fields) {
      const std::string origin = loaded.origin.at(field.name);
      if (origin == "default") {
        ++num_left_out;
      } else {
        entries += yaml_entry(field.name, field.write(loaded.profile), one_line(origin));
      }
    }
    if (!entries.empty()) out += (out.empty() ? "# " : "\n# ") + group.title + "\n" + entries;
  }
  return out;
}

std::string to_json(const Profile& profile) {
  Value map;
  map.kind = Value::Kind::kMap;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) map.members.push_back({field.name, field.write(profile)});
  }
  return to_json_text(map);
}

std::string profile_hash(const Profile& profile) { return hash128_hex(to_json(profile)); }

std::vector<ProfileDifference> diff_profiles(const Profile& old_profile, const Profile& new_profile) {
  std::vector<ProfileDifference> differences;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      const Value before = field.write(old_profile), after = field.write(new_profile);
      if (to_flow_yaml(before) == to_flow_yaml(after)) continue;
      const bool is_allowed =
          field.on_resume == OnResume::kFree || (field.on_resume == OnResume::kMayGrow && is_raised(before, after));
      differences.push_back({field.name, to_flow_yaml(before), to_flow_yaml(after), is_allowed});
    }
  }
  return differences;
}

}  // namespace lora_train
