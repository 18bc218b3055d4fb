#include "lora_train/config/keys/field.h"

#include <iterator>

namespace lora_train {

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

const std::vector<FieldGroup>& field_groups() {
  static const std::vector<FieldGroup> groups = [] {
    std::vector<FieldGroup> all;
    for (auto part : {model_field_groups(), data_field_groups(), training_field_groups(), output_field_groups()}) {
      std::move(part.begin(), part.end(), std::back_inserter(all));
    }
    return all;
  }();
  return groups;
}

const Field* find_field(const std::string& name) {
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) {
      if (field.name == name) return &field;
    }
  }
  return nullptr;
}

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  for (const auto& group : field_groups()) {
    for (const auto& field : group.fields) names.push_back(field.name);
  }
  return names;
}

}  // namespace lora_train
