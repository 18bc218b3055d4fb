#include "converter.h"

#include <algorithm>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/layers.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

// Asks for nothing: the feature is off.
bool is_off(const Value& value) {
  if (value.is_null() || (value.is_list() && value.items.empty()) || (value.is_map() && value.members.empty())) {
    return true;
  }
  return value.is_scalar() && (value.text.empty() || parse_bool(value.text) == false || value.text == "None");
}

std::string short_text(const Value& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = value.is_scalar() ? value.text : to_flow_yaml(value);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

// True if two values mean the same, in any spelling: 2e-4 and 0.0002, True and true.
bool are_equal(const Value& a, const Value& b) {
  if (!a.is_scalar() || !b.is_scalar()) return to_flow_yaml(a) == to_flow_yaml(b);
  const auto number = parse_number(a.text);
  const auto word = parse_bool(a.text);
  return a.text == b.text || (number && number == parse_number(b.text)) || (word && word == parse_bool(b.text));
}

std::string as_always(const Value& value) { return short_text(value) + " matches what happens anyway"; }

std::string error_of(const Findings& findings) {
  try {
    findings.throw_mistakes();
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

bool is_example_file(const fs::path& file) {
  static const std::set<std::string> kEndings = {".jsonl", ".json", ".ndjson", ".csv", ".parquet", ".arrow"};
  return kEndings.contains(lower_case(file.extension().string()));
}

}  // namespace

std::optional<std::string> idle_reason(const KeyRule& rule, const Value& value) {
  if (rule.kind == KeyRule::Kind::kIdle) return rule.text;
  if (rule.kind != KeyRule::Kind::kRefused) return std::nullopt;
  const auto number = value.is_scalar() ? parse_number(value.text) : std::nullopt;
  const bool is_harmless = std::ranges::any_of(items_of(rule.detail), [&](const Value& harmless) {
    return value.is_scalar() &&
           (lower_case(value.text) == harmless.text || (number && parse_number(harmless.text) == number));
  });
  return is_off(value) || is_harmless ? std::optional(as_always(value)) : std::nullopt;
}

Converter::Converter(const Tool& tool, const Value& source, std::filesystem::path file,
                     const std::vector<Override>& settings)
    : tool_(tool), source_(source), file_(std::move(file)), settings_(settings) {}

const Value* Converter::find(const std::string& name) const {
  const Value* value = source_.find(name);
  return value && !value->is_null() && value->text != "None" ? value : nullptr;
}

std::string Converter::text(const std::string& name) const { return text_or(name, ""); }

std::string Converter::text_or(const std::string& name, const std::string& otherwise) const {
  return find(name) ? source_.text_of(name, otherwise) : otherwise;
}

std::optional<double> Converter::number(const std::string& name) const { return parse_number(text(name)); }

bool Converter::is_true(const std::string& name) const { return parse_bool(text(name)) == true; }

void Converter::set(const std::string& name, const std::string& ours, Value value) {
  value.place = place_of(name);
  profile_[ours] = std::move(value);
  origin_[ours] = name;
  default_reasons_.erase(ours);
  share(name, ours);
}

void Converter::set(const std::string& name, const std::string& ours, const std::string& text) {
  set(name, ours, text == "null" ? null_value() : text_value(text));
}

void Converter::keep(const std::string& name, const std::string& ours) {
  if (const Value* value = find(name)) set(name, ours, *value);
}

void Converter::share(const std::string& name, const std::string& ours) {
  Fate& fate = fates_[name];
  if (fate.part == Part::kRefused) return;
  fate.part = Part::kTaken;
  if (std::ranges::find(fate.ours, ours) == fate.ours.end()) fate.ours.push_back(ours);
}

void Converter::drop(const std::string& name, const std::string& reason) {
  if (!fates_.contains(name)) fates_[name] = {Part::kDropped, reason, {}};
}

void Converter::drop_group(const std::string& group, const std::string& reason) {
  for (const std::string& name : tool_.groups.at(group)) {
    if (find(name)) drop(name, reason);
  }
}

void Converter::refuse(const std::string& name, const std::string& advice) {
  if (name.find('[') != std::string::npos && !fates_.contains(name)) inner_.push_back(name);
  fates_[name] = {Part::kRefused, advice, {}};
}

void Converter::explain(const std::string& ours, const std::string& comment) { origin_[ours] = comment; }

std::string Converter::profile_text(const std::string& ours) const {
  const auto found = profile_.find(ours);
  return found != profile_.end() && found->second.is_scalar() ? found->second.text : "";
}

bool Converter::is_set_to(const std::string& ours, const std::string& text) const {
  return is_set(ours) && profile_text(ours) == text;
}

bool Converter::is_refused(const std::string& name) const {
  const auto found = fates_.find(name);
  return found != fates_.end() && found->second.part == Part::kRefused;
}

void Converter::note(const std::string& name, const std::string& difference) {
  notes_.push_back(fmt::format("{}: {}", name, difference));
}

std::string Converter::template_for(const std::string& theirs) const {
  const auto found = tool_.templates.find(theirs);
  return found == tool_.templates.end() ? "" : found->second;
}

void Converter::set_default(const std::string& ours, Value value, const std::string& reason) {
  if (is_set(ours)) return;
  profile_[ours] = std::move(value);
  default_reasons_[ours] = reason;
}

void Converter::set_default(const std::string& ours, const std::string& text, const std::string& reason) {
  set_default(ours, text == "null" ? null_value() : text_value(text), reason);
}

Place Converter::place_of(const std::string& name) const {
  const Value* value = source_.find(name.substr(0, name.find('[')));
  return value ? value->place : Place{file_.string(), 0};
}

void Converter::decide(const std::string& name) {
  const Value* value = find(name);
  if (value && !fates_.contains(name)) decide_by_table(name, *value);
}

void Converter::decide_by_table(const std::string& name, const Value& value) {
  const KeyRule* rule = tool_.find(name);
  if (value.is_null()) return drop(name, "has no value");
  if (!rule) {
    const std::string near = nearest_name(name, names_of_keys(tool_.keys));
    return refuse(name, fmt::format("is not a key of {}{}. Remove it, or find its name here: lora-train check --keys.",
                                    title_of(tool_.id), near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
  }
  if (const auto reason = idle_reason(*rule, value)) return drop(name, *reason);
  const std::string feature = rule->text.substr(0, rule->text.find_first_of(":, "));
  switch (rule->kind) {
    case KeyRule::Kind::kSame: return set(name, rule->text, value);
    case KeyRule::Kind::kValues: return decide_by_value(name, value, rule->detail);
    case KeyRule::Kind::kOption:
      return drop(name, is_refused(feature) ? fmt::format("belongs to {}, which is refused", feature)
                                            : "applies only with " + rule->text);
    case KeyRule::Kind::kRefused: return refuse(name, rule->text);
    case KeyRule::Kind::kIdle:
    case KeyRule::Kind::kConverted: break;
  }
  refuse_unless_off(name, value);
}

void Converter::refuse_unless_off(const std::string& name, const Value& value) {
  if (is_off(value)) return drop(name, as_always(value));
  refuse(name, fmt::format("got {}, which has no meaning here. Remove it.", short_text(value)));
}

void Converter::decide_by_value(const std::string& name, const Value& value, const Value& words) {
  const auto is_on = value.is_scalar() ? parse_bool(value.text) : std::nullopt;
  const std::string word = is_on ? (*is_on ? "true" : "false") : lower_case(value.text);
  const Value* result = value.is_scalar() && !word.empty() ? words.find(word) : nullptr;
  const Value *otherwise = words.find("else"), *kept = words.find("keep");
  if (!result && kept) return set(name, kept->text, value);
  if (!result && (is_off(value) || !otherwise)) return refuse_unless_off(name, value);
  if (!result && otherwise->is_scalar()) {
    const bool names_words = otherwise->text.starts_with("expected");
    return refuse(name, names_words ? fmt::format("got {}, {}", short_text(value), otherwise->text) : otherwise->text);
  }
  if (!result) result = otherwise;
  if (result->is_scalar()) return drop(name, result->text);
  for (const auto& [ours, becomes] : result->members) {
    ours == "note" ? note(name, becomes.text) : set(name, ours, becomes);
  }
}

void Converter::apply_settings() {
  Findings findings;
  Merger merger(findings);
  for (const Override& setting : settings_) {
    merger.add_setting(setting.path, override_value(setting, process_environment, findings), {setting.where, 0});
  }
  for (const auto& [ours, value] : merger.values()) {
    Profile profile;
    find_field(ours)->read(value, profile, findings);
    for (const auto& group : alternative_groups()) {
      if (std::ranges::count(group, ours) == 0) continue;
      for (const auto& other : group) profile_.erase(other);
    }
    profile_[ours] = value;
    origin_[ours] = value.place.text();
    default_reasons_.erase(ours);
    for (auto& [name, fate] : fates_) {
      if (std::ranges::count(fate.ours, ours) > 0) fate.remark = value.place.text();
    }
  }
  findings.throw_mistakes();
  notes_.insert(notes_.end(), findings.notes().begin(), findings.notes().end());
}

// Uses the field of each key: a value that it refuses is refused, and all are written as in a profile.
void Converter::read_values() {
  for (auto entry = profile_.begin(); entry != profile_.end();) {
    const auto& [ours, value] = *entry;
    const Field* field = find_field(ours);
    Profile profile;
    Findings findings;
    field->read(value, profile, findings);
    if (findings.has_mistakes()) {
      for (auto& [name, fate] : fates_) {
        if (std::ranges::find(fate.ours, ours) == fate.ours.end()) continue;
        std::string message = error_of(findings);
        if (name.starts_with(ours)) message = message.substr(message.find(": ") + 2);
        fate = {Part::kRefused, message, {}};
      }
      entry = profile_.erase(entry);
      continue;
    }
    const Place place = value.place;
    entry->second = field->write(profile);
    entry->second.place = place;
    ++entry;
  }
}

std::string Converter::lines_of(const std::string& name, const Fate& fate) const {
  std::vector<std::string> lines;
  for (const auto& ours : fate.ours) {
    const auto found = profile_.find(ours);
    if (found == profile_.end()) continue;
    const auto origin = origin_.find(ours);
    const bool is_elsewhere = !found->second.is_scalar() && origin != origin_.end() && origin->second != name;
    lines.push_back(ours + (is_elsewhere ? ", with " + origin->second : ": " + to_flow_yaml(found->second)));
  }
  return join(lines, ", ") + (fate.remark.empty() ? "" : fmt::format("   ({})", fate.remark));
}

void Converter::write_defaults(Conversion& conversion) {
  const std::string comment = tool_.product + "'s default";
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      const auto reason = default_reasons_.find(field.name);
      const auto found = profile_.find(field.name);
      if (reason == default_reasons_.end() || found == profile_.end()) continue;
      const std::string value = to_flow_yaml(found->second);
      if (value == to_flow_yaml(field.write(Profile{})) && reason->second.empty()) {
        profile_.erase(found);
        continue;
      }
      origin_[field.name] = reason->second.empty() ? comment : reason->second;
      conversion.defaults.push_back({field.name, value, origin_[field.name]});
    }
  }
}

void Converter::write_profile(Conversion& conversion) {
  Value map = map_value({});
  std::string body;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      const auto found = profile_.find(field.name);
      if (found == profile_.end()) continue;
      const std::string& origin = origin_[field.name];
      body += yaml_entry(field.name, found->second, origin == field.name ? "" : origin);
      map.members.push_back({field.name, found->second});
    }
  }
  conversion.yaml = with_conversion_header(file_, tool_, body);
  conversion.json = to_json_text(map);
}

void Converter::list_key(const std::string& name, Conversion& conversion) const {
  const Fate& fate = fates_.at(name);
  const Place place = place_of(name);
  if (fate.part == Part::kDropped) conversion.dropped.push_back({name, fate.reason, place});
  if (fate.part == Part::kRefused) conversion.refused.push_back({name, fate.reason, place});
  if (fate.part != Part::kTaken) return;
  const auto same = profile_.find(name);
  const bool is_kept =
      fate.ours == std::vector{name} && same != profile_.end() && are_equal(*source_.find(name), same->second);
  if (is_kept) {
    conversion.kept.push_back({name, to_flow_yaml(same->second), place});
  } else {
    conversion.renamed.push_back({name, lines_of(name, fate), place});
  }
}

Conversion Converter::finish() {
  for (const bool is_detail : {false, true}) {  // the fate of a detail depends on the key that it belongs to
    for (const auto& [name, value] : source_.members) {
      const KeyRule* rule = tool_.find(name);
      if (!fates_.contains(name) && (rule && rule->kind == KeyRule::Kind::kOption) == is_detail)
        decide_by_table(name, value);
    }
  }
  for (const auto& [ours, value] : tool_.defaults) set_default(ours, value);
  apply_settings();
  read_values();
  Conversion conversion;
  conversion.tool = tool_.id;
  conversion.notes = notes_;
  write_defaults(conversion);
  write_profile(conversion);
  for (const auto& [name, value] : source_.members) {
    list_key(name, conversion);
    for (const auto& inner : inner_) {
      if (inner.starts_with(name + "[")) list_key(inner, conversion);
    }
  }
  return conversion;
}

void DataEntry::map(const std::string& ours, const std::string& theirs) {
  if (!theirs.empty() && theirs != ours) field_map[ours] = theirs;
}

bool DataEntry::map_role(const std::string& ours, const std::string& theirs) {
  static const std::map<std::string, std::set<std::string>> known = {
      {"user", {"human", "user"}},
      {"assistant", {"gpt", "assistant"}},
      {"system", {"system"}},
      {"tool", {"tool", "observation", "function_response"}},
      {"function_call", {"function_call"}}};
  const auto found = known.find(ours);
  if (found != known.end() && found->second.contains(theirs)) return true;
  map(ours, theirs);
  return false;
}

Value to_value(const std::vector<DataEntry>& entries) {
  Value list = list_value({});
  for (const auto& entry : entries) list.items.push_back(write_dataset(entry));
  return list;
}

bool is_hub_dataset(const std::string& path) {
  std::error_code code;
  const auto slash = path.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < path.size() && path.find('/', slash + 1) == path.npos &&
         path[0] != '.' && path[0] != '~' && path.find_first_of("*?[ ") == path.npos && !is_example_file(path) &&
         !fs::exists(path, code);
}

std::string split_problem(const std::string& split) {
  if (split.find_first_of("[+%") == std::string::npos) return {};
  return "Parts and sums of splits are not supported. Name one split; val_set_size holds out a share of it.";
}

std::optional<std::string> split_path(const fs::path& folder, const std::string& split) {
  std::error_code code;
  for (const fs::path& place : {folder, folder / "data"}) {
    if (fs::is_directory(place / split, code)) return (place / split).string();
    std::set<std::string> found;  // sorted: the order of a folder is the file system's
    for (const auto& entry : fs::directory_iterator(place, code)) {
      const std::string stem = entry.path().stem().string();
      if (is_example_file(entry.path()) && (stem == split || stem.starts_with(split + "-")))
        found.insert(entry.path().string());
    }
    if (found.size() == 1) return *found.begin();
    if (found.size() > 1) return (place / (split + "-*" + fs::path(*found.begin()).extension().string())).string();
  }
  return std::nullopt;
}

std::string token_of_model(const fs::path& model, const std::string& name) {
  try {
    const fs::path file = model / "tokenizer_config.json";
    const Value config = parse_yaml(read_file(file), {file.string(), 0});
    const Value* token = config.find(name);
    return token && token->is_map() ? token->text_of("content") : config.text_of(name);
  } catch (const Error&) {  // no folder, or not ours to judge
    return "";
  }
}

}  // namespace lora_train
