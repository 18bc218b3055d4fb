// Describes all keys of a profile: `check --keys`, `check --schema`, and the names that a profile may have.
#pragma once

#include <string>
#include <vector>

namespace lora_train {

/// `check --keys`: one line per key with default, values and meaning; `filter` (may be empty) keeps keys that contain
/// it.
std::string keys_table(const std::string& filter = "");
/// Names from other trainers that contain `filter`, with the keys they stand for; empty if there are none.
std::string other_names_table(const std::string& filter);

/// The same for programs, one JSON object per key and line: key, group, default, values, help, on_resume.
std::string keys_json(const std::string& filter = "");

/// `check --schema`: JSON Schema (draft 7) of a profile, for editors that complete and explain keys.
std::string profile_schema();

/// Names of all keys, in the order of docs/profile.md.
std::vector<std::string> profile_keys();

/// A name that a profile may set: a key, an alias, or a name that is refused with its reason.
struct KnownName {
  std::string name;
  bool is_switch = false;     ///< true | false
  bool takes_commas = false;  ///< a list that may be written "a,b"
};
std::vector<KnownName> known_names();

}  // namespace lora_train
