#include "lora_train/config/keys/field.h"

#include <algorithm>

#include "lora_train/base/text.h"

namespace lora_train {
namespace {

std::string display(const Value& value) { return value.is_scalar() ? value.text : to_flow_yaml(value); }

/// The text that `value` stands for among `words`; a switch may be written in any of YAML's ways.
const std::string* find_word(const Words& words, const Value& value) {
  const std::string given = value.is_scalar() ? lower_case(value.text) : "";
  const auto is_on = parse_bool(given);
  const auto is_it = [&](const auto& word) {
    return given == word.first || (is_on && is_on == parse_bool(word.first));
  };
  const auto found = std::ranges::find_if(words, is_it);
  return found == words.end() ? nullptr : &found->second;
}

/// The words' value of `key`. The default undoes what the same name set in an earlier layer.
Rewrite from_words(const std::string& key, const Words& words, const Value& value) {
  const std::string* const text = find_word(words, value);
  if (text && !text->empty()) return becomes(key, value, *text);
  Rewrite rewrite;
  if (!text) {
    std::vector<std::string> known;
    for (const auto& [word, meaning] : words) known.push_back(word);
    rewrite.error = fmt::format("got {}, expected {}. Its key here is {}.", display(value),
                                join(known, known.size() == 2 ? " or " : " | "), key);
    return rewrite;
  }
  for (const auto& [word, meaning] : words) rewrite.resets.emplace_back(key, meaning);
  rewrite.note = fmt::format("{} changes nothing: {} decides", display(value), key);
  return rewrite;
}

template <class T>
const T* find_named(const std::vector<const T*>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &T::name);
  return found == all.end() ? nullptr : *found;
}

}  // namespace

bool is_word(const Value& value, const std::string& word) {
  return value.is_scalar() && lower_case(value.text) == word;
}

Value text_at(const Value& origin, const std::string& text) {
  Value value = text == "null" ? null_value() : text_value(text);
  value.place = origin.place;
  return value;
}

Rewrite becomes(const std::string& key, const Value& value, const std::string& text) {
  Rewrite rewrite;
  rewrite.entries = {{key, text_at(value, text)}};
  rewrite.note = fmt::format("{} is read as {}: {}", display(value), key, text);
  return rewrite;
}

Rewrite spelled(const std::string& key, const Value& value, const std::string& text) {
  Rewrite rewrite = becomes(key, value, text);
  rewrite.note = fmt::format("{} is read as {}", display(value), text);
  return rewrite;
}

Field&& Field::free_on_resume() && {
  on_resume = OnResume::kFree;
  return std::move(*this);
}

Field&& Field::may_grow_on_resume() && {
  on_resume = OnResume::kMayGrow;
  return std::move(*this);
}

Field&& Field::default_is(std::string text) && {
  default_text = std::move(text);
  return std::move(*this);
}

Field&& Field::null_means(std::string text) && {
  read = [text = std::move(text), inner = std::move(read)](const Value& value, Profile& profile, Findings& findings) {
    inner(value.is_null() ? text_value(text) : value, profile, findings);
  };
  return std::move(*this);
}

Field&& Field::word_means(std::string word, std::string text) && {
  read = [=, inner = std::move(read)](const Value& value, Profile& profile, Findings& findings) {
    Value meant = value;
    if (meant.is_scalar() && meant.text == word) meant.text = text;
    inner(meant, profile, findings);
  };
  return std::move(*this);
}

Field&& Field::silent_when(std::function<bool(const Profile&)> is_silent) && {
  write = [is_silent = std::move(is_silent), inner = std::move(write)](const Profile& profile) {
    return is_silent(profile) ? null_value() : inner(profile);
  };
  return std::move(*this);
}

Field&& Field::also(const std::vector<std::string>& names) && {
  const auto rewrite = [key = name](const Value& value) {
    Rewrite same;
    same.entries = {{key, value}};
    same.note = "is read as " + key;
    return same;
  };
  for (const auto& other : names) aliases.push_back({other, name, "", rewrite});
  return std::move(*this);
}

Field&& Field::also(const std::string& other, std::string meaning, RewriteRule rewrite) && {
  aliases.push_back({other, name, std::move(meaning), std::move(rewrite)});
  return std::move(*this);
}

Field&& Field::also_as(const std::vector<std::string>& names, const Words& words, const RewriteRule& first,
                       const std::string& its_meaning) && {
  std::vector<std::string> meanings;
  for (const auto& [word, text] : words)
    meanings.push_back(fmt::format("{} = {}", word, text.empty() ? "default" : text));
  const auto rewrite = [key = name, words, first](const Value& value) {
    const Rewrite own = first ? first(value) : Rewrite{};
    return own.is_empty() ? from_words(key, words, value) : own;
  };
  for (const auto& other : names) aliases.push_back({other, name, join(meanings) + its_meaning, rewrite});
  return std::move(*this);
}

Field&& Field::also_switch(const std::vector<std::string>& names, const std::string& on, const std::string& off) && {
  return std::move(*this).also_as(names, {{"true", on}, {"false", off}});
}

Field&& Field::respelled(const Words& words) && {
  return std::move(*this).respelled([key = name, words](const Value& value) {
    const auto found = std::ranges::find_if(words, [&](const auto& word) { return is_word(value, word.first); });
    return found == words.end() ? Rewrite{} : spelled(key, value, found->second);
  });
}

Field&& Field::respelled(RewriteRule rule) && {
  respell = std::move(rule);
  return std::move(*this);
}

const std::vector<const Field*>& all_fields() {
  static const std::vector<const Field*> all = [] {
    std::vector<const Field*> fields;
    for (const auto& group : field_groups()) {
      for (const auto& field : group.fields) fields.push_back(&field);
    }
    return fields;
  }();
  return all;
}

const Field* find_field(const std::string& name) { return find_named(all_fields(), name); }

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  for (const Field* field : all_fields()) names.push_back(field->name);
  return names;
}

const std::vector<const Alias*>& aliases() {
  static const std::vector<const Alias*> all = [] {
    std::vector<const Alias*> found;
    for (const Field* field : all_fields()) {
      for (const Alias& alias : field->aliases) found.push_back(&alias);
    }
    return found;
  }();
  return all;
}

const Alias* find_alias(const std::string& name) { return find_named(aliases(), name); }

}  // namespace lora_train
