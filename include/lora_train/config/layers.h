// Reads the files behind a profile as maps and merges these layers of settings, whatever names they use, into one value
// per key.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/field.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/findings.h"
#include "lora_train/config/value/value.h"

namespace lora_train {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

/// Returns each profile after the files that it extends, with variables replaced and without `extends`.
std::vector<Value> read_layers(const ProfileSources& sources, const Environment& environment, Findings& findings);

/// Replaces ${VAR} and ${VAR:-default} in all texts of `value`; $${ stands for ${. An unset variable is a mistake
/// reported under `key`.
void replace_variables(Value& value, const std::string& key, const Environment& environment, Findings& findings);

/// `text` with what stands between each `open` ("{" or "${") and the next brace replaced; $${ stands for ${. Throws
/// ConfigError if there is no such brace.
std::string replace_braced(const std::string& text, const std::string& open,
                           const std::function<std::string(const std::string&)>& replace);

/// The value of a command-line setting, with its place. Only a value that looks like a list, a map or a quoted text is
/// YAML: `--set run_name=a: b` is text.
Value override_value(const Override& setting, const Environment& environment, Findings& findings);

class Merger {
 public:
  explicit Merger(Findings& findings, ToolOfKey tool_of_key = {})
      : findings_(findings), tool_of_key_(std::move(tool_of_key)) {}

  /// Adds a file: aliases become keys, unknown and repeated names are mistakes, and each key replaces earlier layers'
  /// values of it and its alternatives. Returns false if it has keys of other tools.
  bool add_layer(const Value& map);
  /// Sets one key, or a place inside one ("datasets[0].path", "datasets[+].path"). `place` is for messages.
  void add_setting(const std::string& path, const Value& value, const Place& place);

  /// Call it after the last layer: warns if the rank has LLaMA-Factory's name and alpha is not set, as the user may
  /// expect its default.
  void warn_of_alpha();

  const std::map<std::string, Value>& values() const { return values_; }

 private:
  struct Entry {
    Value value;
    std::string spelled;
  };
  using Entries = std::map<std::string, Entry>;

  void add_entry(const std::string& name, const Value& value, Entries& entries, Entries& implied);
  /// True if a number of steps has no effect because of the strategy in the same layer.
  bool is_overruled(const std::string& name, const Value& value);
  /// Puts a value of `field`, in its usual spelling, into `entries`.
  void respell(const std::string& spelled, const Field& field, const Value& value, Entries& entries, Entries& implied);
  void put(const std::string& spelled, const std::string& key, const Value& value, Entries& entries);
  bool take_anchors(const std::string& name, const Value& value);
  bool take_refused(const std::string& name, const Value& value);
  bool take_foreign(const std::string& name, const Value& value);
  /// One mistake for all keys of other tools in the layer.
  void report_foreign();
  void report_unknown(const std::string& name, const Value& value);
  void refuse_alternatives(const Entries& entries);
  void merge(const Entries& entries);

  struct Foreign {
    std::vector<std::string> keys, tools;
    Place place;  ///< of the first key
  };

  Findings& findings_;
  ToolOfKey tool_of_key_;
  Foreign foreign_;               ///< in the layer being added
  const Value* layer_ = nullptr;  ///< the layer being added
  std::map<std::string, Value> values_;
  Value lora_rank_;  ///< from the last layer that sets it
};

/// True if the value leaves its key unset: null, no evaluation datasets, a val_set_size of 0.
bool is_unset(const std::string& key, const Value& value);

}  // namespace lora_train
