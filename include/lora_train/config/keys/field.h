// One profile key, declared once. The loader, the checks, docs/profile.md, `check` and the log are made from this.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/config/value/findings.h"
#include "lora_train/config/value/value.h"

namespace lora_train {

/// Says if a value may change when a run is resumed.
enum class OnResume {
  kSame,     ///< must be the same
  kFree,     ///< may differ: logging, saving, evaluation cadence, workers, kernels, device, recompute
  kMayGrow,  ///< may be raised
};

struct Field {
  std::string name;
  std::string values;        ///< allowed values: "auto | off", "integer >= 1"
  std::string help;          ///< one or two sentences, units included
  std::string default_text;  ///< empty = how write() spells it for a default Profile
  OnResume on_resume = OnResume::kSame;
  bool is_scalar = true;      ///< may be used in output_dir as {name}
  bool takes_commas = false;  ///< the text "a,b" is the list [a, b]
  /// Reads a value of a merged profile; mistakes go to Findings and leave the profile as it was.
  std::function<void(const Value&, Profile&, Findings&)> read;
  std::function<Value(const Profile&)> write;

  Field&& free_on_resume() &&;
  Field&& may_grow_on_resume() &&;
  Field&& default_is(std::string text) &&;
  /// null is read as this text instead of as the default.
  Field&& null_means(std::string text) &&;
  /// The word is read as this text.
  Field&& word_means(std::string word, std::string text) &&;
  /// Written as null while `is_silent(profile)`: an alternative is in force, or the value comes from elsewhere.
  Field&& silent_when(std::function<bool(const Profile&)> is_silent) &&;
};

struct FieldGroup {
  std::string title;
  std::vector<Field> fields;
};

/// All groups in the order of docs/profile.md.
const std::vector<FieldGroup>& field_groups();
/// nullptr if there is no such key.
const Field* find_field(const std::string& name);
std::vector<std::string> field_names();

// The parts of field_groups().
std::vector<FieldGroup> model_field_groups();
std::vector<FieldGroup> data_field_groups();
std::vector<FieldGroup> training_field_groups();
std::vector<FieldGroup> output_field_groups();

}  // namespace lora_train
