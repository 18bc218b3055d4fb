// Collects the fate of each key in another tool's file.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/config/value/value.h"
#include "lora_train/convert/convert.h"
#include "tool_keys.h"

namespace lora_train {

class Converter {
 public:
  /// `source` is the map of the file and must outlive it.
  Converter(const Tool& tool, const Value& source, std::filesystem::path file, const std::vector<Override>& settings);

  const Tool& tool() const { return tool_; }
  const std::filesystem::path& file() const { return file_; }

  /// The value of a key; nullptr if it is missing or null.
  const Value* find(const std::string& name) const;
  /// True if the key is in the file, even with null.
  bool has(const std::string& name) const { return source_.find(name) != nullptr; }
  /// Its text; empty if it is missing, null or not a scalar.
  std::string text(const std::string& name) const;
  std::string text_or(const std::string& name, const std::string& otherwise) const;
  std::optional<double> number(const std::string& name) const;
  bool is_true(const std::string& name) const;

  /// `name` of the source becomes `ours: value`. May be called for several keys of ours; the last value of one wins.
  void set(const std::string& name, const std::string& ours, Value value);
  void set(const std::string& name, const std::string& ours, const std::string& text);
  /// Keeps the value as it is.
  void keep(const std::string& name, const std::string& ours);
  /// `name` contributed to `ours`, which others have set.
  void share(const std::string& name, const std::string& ours);
  void drop(const std::string& name, const std::string& reason);
  /// Drops the keys of a group in the tool's table.
  void drop_group(const std::string& group, const std::string& reason);
  void refuse(const std::string& name, const std::string& advice);
  /// Comments `ours` in the profile, once it is set, instead of naming its source.
  void explain(const std::string& ours, const std::string& comment);
  /// Follows the outcome of `name`.
  void remark(const std::string& name, const std::string& text) { fates_[name].remark = text; }
  void note(const std::string& name, const std::string& difference);
  /// Sets the tool's default, unless a key of the source has decided about `ours`.
  void set_default(const std::string& ours, Value value, const std::string& reason = "");
  void set_default(const std::string& ours, const std::string& text, const std::string& reason = "");
  bool is_set(const std::string& ours) const { return profile_.contains(ours); }
  /// Our chat_template for the tool's name of a format ("qwen_25"); empty if there is none.
  std::string template_for(const std::string& theirs) const;
  /// The value of `ours`; empty if it is not set, or not a scalar.
  std::string profile_text(const std::string& ours) const;
  /// True if `ours` is set to this text.
  bool is_set_to(const std::string& ours, const std::string& text) const;
  bool is_refused(const std::string& name) const;

  /// Decides about `name` by the tables, unless that is done; the rest of a conversion may depend on what it becomes.
  void decide(const std::string& name);
  /// Decides about the remaining keys by the tables, and refuses values that our keys do not take.
  Conversion finish();

 private:
  enum class Part { kTaken, kDropped, kRefused };
  struct Fate {
    Part part = Part::kTaken;
    std::string reason;
    std::vector<std::string> ours;
    std::string remark = {};
  };

  void decide_by_table(const std::string& name, const Value& value);
  void refuse_unless_off(const std::string& name, const Value& value);
  void decide_by_value(const std::string& name, const Value& value, const Value& words);
  /// The caller's settings of the profile override the file's.
  void apply_settings();
  void read_values();
  void write_defaults(Conversion& conversion);
  void write_profile(Conversion& conversion);
  void list_key(const std::string& name, Conversion& conversion) const;
  /// The outcome of `name`; a long value that another key also decided is listed only there.
  std::string lines_of(const std::string& name, const Fate& fate) const;
  Place place_of(const std::string& name) const;

  const Tool& tool_;
  const Value& source_;
  std::filesystem::path file_;
  std::vector<Override> settings_;
  std::map<std::string, Fate> fates_;
  std::vector<std::string> inner_;             ///< places inside keys, in order of appearance
  std::map<std::string, Value> profile_;       ///< by our key
  std::map<std::string, std::string> origin_;  ///< by our key: its comment
  std::map<std::string, std::string> default_reasons_;
  std::vector<std::string> notes_;
};

/// `body` below the lines that say where it came from, and that show if the file was edited.
std::string with_conversion_header(const std::filesystem::path& source, const Tool& tool, const std::string& body);

void convert_axolotl(Converter& converter);

void convert_llamafactory(Converter& converter);

void convert_trl(Converter& converter);

/// One entry of `datasets`, and what only a conversion asks of it.
struct DataEntry : DatasetSpec {
  bool has_tools = false;  ///< its examples have tools or tool calls

  DataEntry() = default;
  explicit DataEntry(const std::string& file, const std::string& its_split = {}, const std::string& its_subset = {}) {
    path = file, split = its_split, subset = its_subset;
  }
  void map(const std::string& ours, const std::string& theirs);
  /// A speaker's name, unless it is understood anyway; returns whether it is.
  bool map_role(const std::string& ours, const std::string& theirs);
  /// The examples' field of that name is not read.
  void leave_unread(const std::string& ours) { field_map[ours] = ""; }
};

Value to_value(const std::vector<DataEntry>& entries);

/// True if `path` is the name of a Hub dataset (org/name), and nothing on this machine.
bool is_hub_dataset(const std::string& path);

/// Why a split of a Hub dataset is refused here (train[:1000], train+test); empty = it is not.
std::string split_problem(const std::string& split);

/// The file or folder of one split of a local dataset folder: train.jsonl, train/, data/train-*.json, ...; nullopt if
/// there is none.
std::optional<std::string> split_path(const std::filesystem::path& folder, const std::string& split);

/// The token of that name in tokenizer_config.json ("eos_token"); empty if there is no folder, or no such token in it.
std::string token_of_model(const std::filesystem::path& model, const std::string& name);

/// The entries of `datasets` or `test_datasets`; parts of an entry without a counterpart are refused at their place.
std::vector<DataEntry> convert_axolotl_datasets(Converter& converter, const std::string& key);

/// "datasets[0]": the first dataset of chats that leaves its template to the tokenizer, if the file has none for all;
/// empty if there is none.
std::string chat_without_template(const Converter& converter);

/// Converts eot_tokens and special_tokens, and notes if Axolotl does not train the end of an answer. Call it once the
/// template is decided.
void convert_axolotl_end_tokens(Converter& converter);

/// A template's `name` under `key`; `jinja` is the chat_template_jinja next to it, and `prefix` the place of both:
/// "datasets[0].".
void convert_axolotl_template(Converter& converter, const std::string& key, const std::string& name,
                              const std::string& jinja, const std::string& prefix = {});

/// The entries for the names in `key` (dataset or eval_dataset), which are refused if dataset_info.json is not found,
/// lacks one, or has something without a counterpart. dataset_dir is looked for in the working directory, then in the
/// folders above the configuration.
std::vector<DataEntry> convert_llamafactory_datasets(Converter& converter, const std::string& key);

/// mix_strategy: interleave_under and interleave_over, with interleave_probs: weighs each dataset by how often its
/// examples occur until the first, or the last, is used up.
void weigh_interleaved_datasets(Converter& converter, std::vector<DataEntry>& entries);

/// `template`, with default_system and enable_thinking; `train`: the datasets.
void convert_llamafactory_template(Converter& converter, const std::vector<DataEntry>& train);

}  // namespace lora_train
