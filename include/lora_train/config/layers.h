// The files behind a profile, as maps in the order in which they are merged: layers of settings, under whatever names they came, into
// one value per key.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/load.h"
#include "lora_train/config/value/findings.h"
#include "lora_train/config/value/value.h"

namespace lora_train {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

/// Each profile, after the files that it extends, variables replaced, `extends` taken out.
std::vector<Value> read_layers(const ProfileSources& sources, const Environment& environment, Findings& findings);

/// Replaces ${VAR} and ${VAR:-default} in all texts of `value`; $${ stands for ${. An unset variable is a mistake
/// named with `key`.
void replace_variables(Value& value, const std::string& key, const Environment& environment, Findings& findings);

/// The value of a setting of the command line, at its place. Only what looks like a list, a map or a quoted text is YAML:
/// `--set run_name=a: b` is text.
Value override_value(const Override& setting, const Environment& environment, Findings& findings);

class Merger {
 public:
  explicit Merger(Findings& findings) : findings_(findings) {}

  /// A file: aliases become keys, unknown and doubled names are mistakes, and each key replaces what earlier layers
  /// said about it and its alternatives.
  void add_layer(const Value& map);
  /// A setting of one key, or of a place inside one ("datasets[0].path", "datasets[+].path"), at `place`.
  void add_setting(const std::string& path, const Value& value, const Place& place);

  /// After the last layer: who names the rank as LLaMA-Factory does, and no alpha, may count on its default.
  void warn_of_alpha();

  const std::map<std::string, Value>& values() const { return values_; }

 private:
  struct Entry {
    Value value;
    std::string spelled;
  };
  using Entries = std::map<std::string, Entry>;

  void add_entry(const std::string& name, const Value& value, Entries& entries, Entries& implied);
  /// Whether a number of steps has no effect beside the strategy of the same layer.
  bool is_overruled(const std::string& name, const Value& value);
  std::string said(const std::vector<const char*>& names) const;
  void apply_value_rule(const std::string& spelled, const std::string& key, const Value& value, Entries& entries,
                        Entries& implied);
  void put(const std::string& spelled, const std::string& key, const Value& value, Entries& entries);
  bool take_anchors(const std::string& name, const Value& value);
  /// What convert says to the same key and value.
  bool take_foreign(const std::string& name, const Value& value);
  void report_unknown(const std::string& name, const Value& value);
  void refuse_alternatives(const Entries& entries);
  void merge(const Entries& entries);

  Findings& findings_;
  const Value* layer_ = nullptr;  ///< the one that is added
  std::map<std::string, Value> values_;
  Value lora_rank_;  ///< as the last layer that has it says
};

/// Whether a value says nothing about its key: null, no evaluation datasets, a val_set_size of 0.
bool is_unset(const std::string& key, const Value& value);

}  // namespace lora_train
