#include "lora_train/config/merge.h"

#include <algorithm>

#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

std::string spelled_as(const std::string& spelled, const std::string& key) {
  return spelled == key ? key : spelled + " (" + key + ")";
}

bool is_harmless(const ForeignKey& foreign, const Value& value) {
  if (value.is_null()) return true;
  if (!value.is_scalar()) return false;
  const std::string word = lower_case(value.text);
  return word == "false" || word == "no" || word == "off" || (!foreign.harmless.empty() && word == foreign.harmless);
}

}  // namespace

bool is_unset(const std::string& key, const Value& value) {
  if (value.is_null()) return true;
  if (key == "eval_datasets") return value.is_list() && value.items.empty();
  return key == "val_set_size" && value.is_scalar() && parse_number(value.text) == 0.0;
}

void Merger::add_layer(const Value& map) {
  Entries entries, implied;
  layer_ = &map;
  for (const auto& [name, value] : map.members) {
    if (!is_overruled(name, value)) add_entry(name, value, entries, implied);
  }
  if (const Value* rank = map.find("lora_rank")) lora_rank_ = *rank;
  refuse_alternatives(entries);
  entries.merge(implied);
  merge(entries);
}

bool Merger::is_overruled(const std::string& name, const Value& value) {
  const std::string action = name == "eval_steps" ? "eval" : name == "save_steps" ? "save" : "";
  if (action.empty()) return false;
  for (const std::string& strategy : {action + "_strategy", action + "uation_strategy"}) {
    const Value* found = layer_->find(strategy);
    const std::string word = found && found->is_scalar() ? lower_case(found->text) : "";
    if (word.empty() || word == "steps") continue;
    findings_.note(value.place, name, "says nothing with " + strategy + ": " + found->text);
    return true;
  }
  return false;
}

void Merger::warn_of_alpha() {
  const auto rank = lora_rank_.is_scalar() ? parse_number(lora_rank_.text) : std::nullopt;
  const double alpha = AdapterSection{}.lora_alpha;
  const auto ours = values_.find("lora_r");
  const bool decides = ours != values_.end() && ours->second.text == lora_rank_.text;
  if (!rank || !decides || 2 * *rank == alpha || values_.contains("lora_alpha") || values_.contains("init_adapter"))
    return;
  findings_.warn(lora_rank_.place, "lora_rank",
                 "lora_alpha is " + number_value(alpha).text +
                     " here; LLaMA-Factory's default is twice the rank. Say lora_alpha: " +
                     number_value(2 * *rank).text + " for that, or any other to choose.");
}

void Merger::add_entry(const std::string& name, const Value& value, Entries& entries, Entries& implied) {
  if (find_field(name)) {
    apply_value_rule(name, name, value, entries, implied);
    return;
  }
  const Alias* alias = find_alias(name);
  if (!alias) {
    if (!take_anchors(name, value) && !take_foreign(name, value)) report_unknown(name, value);
    return;
  }
  const bool is_mapped = !alias->meaning.empty();
  if (is_mapped && value.is_null()) return;
  const Rewrite rewrite = alias->rewrite(value);
  if (!rewrite.error.empty()) findings_.mistake(value.place, name, rewrite.error);
  if (!rewrite.note.empty()) findings_.note(value.place, name, rewrite.note);
  if (!rewrite.warning.empty()) findings_.warn(value.place, name, rewrite.warning);
  for (const auto& [key, reset] : rewrite.resets) {
    const auto earlier = values_.find(key);
    if (earlier != values_.end() && earlier->second.text == reset) values_.erase(earlier);
  }
  for (const auto& [key, entry] : rewrite.entries) apply_value_rule(name, key, entry, entries, implied);
}

void Merger::apply_value_rule(const std::string& spelled, const std::string& key, const Value& value, Entries& entries,
                              Entries& implied) {
  const Alias* rule = find_value_rule(key);
  const Rewrite rewrite = rule ? rule->rewrite(value) : Rewrite{};
  if (!rewrite.error.empty()) return findings_.mistake(value.place, spelled, rewrite.error);
  if (!rewrite.note.empty()) findings_.note(value.place, spelled, rewrite.note);
  for (const auto& [other, implication] : rewrite.implied) implied[other] = {implication, spelled};
  if (rewrite.entries.empty()) put(spelled, key, value, entries);
  for (const auto& [other, entry] : rewrite.entries) put(spelled, other, entry, entries);
}

void Merger::put(const std::string& spelled, const std::string& key, const Value& value, Entries& entries) {
  const auto [at, is_new] = entries.try_emplace(key, Entry{value, spelled});
  if (is_new) return;
  findings_.mistake(value.place, spelled,
                    "means the same as " + spelled_as(at->second.spelled, key) + " at " +
                        at->second.value.place.text() + ". Keep one.");
}

bool Merger::take_anchors(const std::string& name, const Value& value) {
  if (!name.starts_with("x-") || value.is_scalar()) return false;
  findings_.note(value.place, name, "has no effect itself: a key that starts with x- holds anchors for `<<: *name`");
  return true;
}

bool Merger::take_foreign(const std::string& name, const Value& value) {
  for (const auto& foreign : refused_keys()) {
    if (foreign.name != name) continue;
    if (is_harmless(foreign, value)) {
      findings_.note(value.place, name, "has no effect: this is always so");
    } else {
      findings_.mistake(value.place, name, foreign.reason);
    }
    return true;
  }
  for (const auto& idle : idle_keys()) {
    if (idle.name != name) continue;
    findings_.note(value.place, name, "has no effect: " + idle.reason);
    return true;
  }
  const std::string epochs = said({"num_epochs", "num_train_epochs", "epochs"});
  const auto verdict = other_tools().judge_key(
      name, value,
      {said({"model", "base_model", "model_name_or_path", "model_name"}), said({"seed", "train_seed"}),
       epochs.empty() ? number_value(*ScheduleSection{}.num_epochs).text : epochs});
  if (!verdict) return false;
  if (value.place.line > 0) findings_.hint(other_tools().convert_hint_of(value.place.file));
  if (verdict->is_idle) {
    findings_.note(value.place, name, "has no effect: " + verdict->reason);
  } else {
    findings_.mistake(value.place, name, verdict->reason);
  }
  return true;
}

// In this layer under one of these names, or in an earlier one under the first; empty if nowhere.
std::string Merger::said(const std::vector<const char*>& names) const {
  for (const char* name : names) {
    const Value* value = layer_->find(name);
    if (value && value->is_scalar()) return value->text;
  }
  const auto earlier = values_.find(names.front());
  return earlier != values_.end() && earlier->second.is_scalar() ? earlier->second.text : "";
}

void Merger::report_unknown(const std::string& name, const Value& value) {
  std::vector<std::string> known = field_names();
  for (const auto& alias : aliases()) known.push_back(alias.name);
  std::vector<std::string> near;
  if (name.size() >= 3) near = nearest_names(name, known);
  for (std::string& neighbour : near) {
    if (const Alias* alias = find_alias(neighbour)) neighbour = alias->key;
  }
  const std::string suggestion = did_you_mean(near);
  if (value.is_null()) {
    findings_.note(value.place, name, "unknown key, which has no effect without a value." + suggestion);
    return;
  }
  findings_.mistake(value.place, name,
                    "unknown key." + suggestion + " All keys: docs/profile.md, or lora-train check --keys.");
}

void Merger::refuse_alternatives(const Entries& entries) {
  for (const auto& group : alternative_groups()) {
    const Entry* first = nullptr;
    for (const auto& key : group) {
      const auto found = entries.find(key);
      if (found == entries.end() || is_unset(key, found->second.value)) continue;
      const Entry& entry = found->second;
      if (first) {
        const bool in_order = first->value.place.line <= entry.value.place.line;
        const Entry &earlier = in_order ? *first : entry, &later = in_order ? entry : *first;
        findings_.mistake(later.value.place, later.spelled,
                          "conflicts with " + earlier.spelled + " at " + earlier.value.place.text() +
                              ": they set the same thing. Keep one.");
      }
      first = &entry;
    }
  }
}

void Merger::merge(const Entries& entries) {
  for (const auto& [key, entry] : entries) {
    if (is_unset(key, entry.value)) continue;
    for (const auto& group : alternative_groups()) {
      if (std::find(group.begin(), group.end(), key) == group.end()) continue;
      for (const auto& other : group) values_.erase(other);
    }
  }
  for (const auto& [key, entry] : entries) values_[key] = entry.value;
}

void Merger::add_setting(const std::string& path, const Value& value, const Place& place) {
  const auto steps = parse_setting_path(path);
  if (!steps) {
    findings_.mistake(place, path, "is not a place in a profile. Expected key, key.name, key[0].name or key[+].name.");
    return;
  }
  const std::string root = steps->front().name;
  if (steps->size() == 1) {
    Value map;
    map.kind = Value::Kind::kMap;
    map.members.push_back({root, value});
    add_layer(map);
    return;
  }
  if (!find_field(root)) {
    const Alias* alias = find_alias(root);
    if (alias) findings_.mistake(place, path, "to set a nested value, use the key's own name: " + alias->key + ".");
    if (!alias) report_unknown(root, value);
    return;
  }
  const auto current = values_.find(root);
  Value edited = current == values_.end() ? null_value() : current->second;
  const std::string problem = set_at(edited, *steps, 1, value);
  if (!problem.empty()) {
    findings_.mistake(place, path, problem);
    return;
  }
  edited.place = place;
  merge({{root, Entry{edited, root}}});
}

}  // namespace lora_train
