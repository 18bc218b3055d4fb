// Collects what becomes of the keys of another tool's file.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lora_train/config/value/value.h"
#include "lora_train/convert/convert.h"
#include "tool_keys.h"

namespace lora_train {

class Converter {
 public:
  /// `source` is the map of the file and must outlive it.
  Converter(ForeignTool tool, const Value& source, std::filesystem::path file, ConvertOptions options);

  const std::filesystem::path& file() const { return file_; }
  const Value& source() const { return source_; }

  /// The value of a key; nullptr if it is missing or null.
  const Value* find(const std::string& name) const;
  /// Whether the key stands in the file, with null too.
  bool has(const std::string& name) const { return source_.find(name) != nullptr; }
  /// Its text; empty if it is missing, null or no scalar.
  std::string text(const std::string& name) const;
  std::string text_or(const std::string& name, const std::string& otherwise) const;
  std::optional<double> number(const std::string& name) const;
  bool is_true(const std::string& name) const;

  /// `name` of the source becomes `ours: value`. May be called for several keys of ours; the last value of one wins.
  void set(const std::string& name, const std::string& ours, Value value);
  void set(const std::string& name, const std::string& ours, const std::string& text);
  /// The value as it stands.
  void keep(const std::string& name, const std::string& ours);
  /// `name` decided together with others about what they have set.
  void share(const std::string& name, const std::string& ours);
  void drop(const std::string& name, const std::string& reason);
  void refuse(const std::string& name, const std::string& advice);
  /// Stands in the profile beside `ours`, once it is set, in place of the name of its source.
  void explain(const std::string& ours, const std::string& comment);
  /// Stands behind what `name` became.
  void remark(const std::string& name, const std::string& text) { fates_[name].remark = text; }
  void note(const std::string& name, const std::string& difference);
  /// `name` becomes a chat template of its own, in the file that was given for it; refused where none was, or with another text.
  void set_template(const std::string& name, const std::string& text);
  /// Whether a template was refused only because no file was given for it.
  bool needs_output() const { return options_.template_file.empty() && !template_.empty(); }
  /// Unless a key of the source has decided about `ours`: the tool's default.
  void set_default(const std::string& ours, Value value, const std::string& reason = "");
  void set_default(const std::string& ours, const std::string& text, const std::string& reason = "");
  bool is_set(const std::string& ours) const { return profile_.contains(ours); }
  /// How the tokenizer of `model`, once that is set, treats prompts: of its files, which are read once, or by its name
  /// (keeps_apart is empty then); nullopt = not known.
  const std::optional<PromptTokens>& prompt_tokens() const;
  /// What `ours` is set to; empty if it is not set, or no scalar.
  std::string profile_text(const std::string& ours) const;
  /// Whether `ours` is set to this text.
  bool is_set_to(const std::string& ours, const std::string& text) const;
  bool is_refused(const std::string& name) const;

  /// Decides about the keys that nothing was said of, by the tables, and about values that no key of ours takes.
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
  /// What the caller sets in the profile takes the place of what the file says.
  void apply_settings();
  void read_values();
  void write_defaults(Conversion& conversion);
  void write_profile(Conversion& conversion);
  void list_key(const std::string& name, Conversion& conversion) const;
  /// What `name` became; a long value that it decided together with another key stands there only.
  std::string lines_of(const std::string& name, const Fate& fate) const;
  Place place_of(const std::string& name) const;

  ForeignTool tool_;
  const Value& source_;
  std::filesystem::path file_;
  ConvertOptions options_;
  std::string template_;                   ///< text of the chat template that is written
  std::vector<std::string> needs_output_;  ///< keys that would be converted with a file for the template
  const ToolKeys& keys_;
  std::map<std::string, Fate> fates_;
  std::vector<std::string> inner_;             ///< places inside keys, in the order in which they came
  std::map<std::string, Value> profile_;       ///< by our key
  std::map<std::string, std::string> origin_;  ///< by our key: what stands in its comment
  std::map<std::string, std::string> default_reasons_;
  std::vector<std::string> notes_;
  mutable std::map<std::string, std::optional<PromptTokens>> prompt_tokens_;  ///< by model
};

/// `body` below the lines that say where it came from, and by which an edited file is known.
std::string with_conversion_header(const std::filesystem::path& source, ForeignTool tool, const std::string& body);

void convert_axolotl(Converter& converter);
void convert_llamafactory(Converter& converter);
void convert_trl(Converter& converter);
void convert_with(ForeignTool tool, Converter& converter);

}  // namespace lora_train
