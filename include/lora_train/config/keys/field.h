// One profile key, declared once: its member, limits, meaning, other names and what a resumed run may change. The
// loader, the checks, docs/profile.md, `check` and the log are made from this.
#pragma once

#include <functional>
#include <string>
#include <utility>
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

/// The result of rewriting one entry; nothing = leave it alone.
struct Rewrite {
  std::vector<std::pair<std::string, Value>> entries;
  /// Entries that apply only if the same file does not set them itself (adapter: qlora implies nf4).
  std::vector<std::pair<std::string, Value>> implied;
  /// Removes an earlier layer's entry of that key if it has that value (load_in_4bit: false after true).
  std::vector<std::pair<std::string, std::string>> resets;
  std::string note;  ///< what was done; empty = none
  std::string warning;
  std::string error;

  bool is_empty() const { return entries.empty() && note.empty() && error.empty(); }
};
using RewriteRule = std::function<Rewrite(const Value&)>;

/// Another name of a key.
struct Alias {
  std::string name;
  std::string key;      ///< the key it stands for
  std::string meaning;  ///< for the documentation; empty = the same values
  RewriteRule rewrite;
};

/// Words, each with the value that it stands for; empty = the default.
using Words = std::vector<std::pair<std::string, std::string>>;

struct Field {
  std::string name;
  std::string values;        ///< allowed values: "auto | off", "integer >= 1"
  std::string help;          ///< one or two sentences, units included
  std::string default_text;  ///< empty = how write() spells it for a default Profile
  OnResume on_resume = OnResume::kSame;
  bool is_scalar = true;      ///< may be used in output_dir as {name}
  bool takes_commas = false;  ///< the text "a,b" is the list [a, b]
  std::vector<Alias> aliases;
  RewriteRule respell;  ///< other spellings of its values; empty = none
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

  /// Other names for the same values.
  Field&& also(const std::vector<std::string>& names) &&;
  /// Another name, with a rule of its own.
  Field&& also(const std::string& other, std::string meaning, RewriteRule rewrite) &&;
  /// Other names whose words stand for values of this key. `first` may handle a value instead; `its_meaning` documents
  /// that.
  Field&& also_as(const std::vector<std::string>& names, const Words& words, const RewriteRule& first = {},
                  const std::string& its_meaning = "") &&;
  /// Other names for a switch with these two values.
  Field&& also_switch(const std::vector<std::string>& names, const std::string& on, const std::string& off) &&;
  /// Other spellings of some values.
  Field&& respelled(const Words& words) &&;
  Field&& respelled(RewriteRule rule) &&;
};

struct FieldGroup {
  std::string title;
  std::vector<Field> fields;
};

/// All groups in the order of docs/profile.md.
const std::vector<FieldGroup>& field_groups();
/// All keys in that order.
const std::vector<const Field*>& all_fields();
/// nullptr if there is no such key.
const Field* find_field(const std::string& name);
std::vector<std::string> field_names();
/// Other names of keys, in the order of the keys.
const std::vector<const Alias*>& aliases();
const Alias* find_alias(const std::string& name);

/// An entry of `datasets`, as a profile has it.
Value write_dataset(const DatasetSpec& spec);

/// True for text that is `word` in any case.
bool is_word(const Value& value, const std::string& word);
/// The text as a value ("null" is null) at the place of `origin`.
Value text_at(const Value& origin, const std::string& text);
/// `key: text` instead of `value`, with a note.
Rewrite becomes(const std::string& key, const Value& value, const std::string& text);
/// The same for another spelling of a value of `key`.
Rewrite spelled(const std::string& key, const Value& value, const std::string& text);

}  // namespace lora_train
