// Axolotl's `datasets`.

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "converter.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"
#include "lora_train/data/first_examples.h"
#include "tool_keys.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

/// Axolotl also accepts human and gpt in messages. They are left out if a local file has none.
void map_default_roles(DataEntry& entry, const std::filesystem::path& file) {
  const bool is_known = !data::example_keys(file, 1).empty();
  for (const auto& [ours, theirs] : {std::pair{"user", "human"}, {"assistant", "gpt"}}) {
    if (!is_known || data::has_string(file, theirs)) entry.map(ours, theirs);
  }
}

/// Maps names in `roles` of the dataset that are not known anyway; field_map takes one for each role. Returns a name
/// that has no place.
std::optional<std::string> map_roles(DataEntry& entry, const Value& roles) {
  std::set<std::string> named;
  for (const auto& [target, sources] : roles.members) {
    const bool has_place = target == "user" || target == "assistant" || target == "tool";
    for (const auto& source : items_of(sources)) {
      if (DataEntry().map_role(target, source.text)) continue;
      if (!has_place || !named.insert(target).second) return source.text;
      entry.map(target, source.text);
    }
  }
  return std::nullopt;
}

/// Axolotl reads whether a message is trained from the field `theirs` (message_field_training; empty: from none), and
/// lora-train from `train` and `weight`. Returns the fields that messages have, or may have, and that stay unread:
/// "train and weight".
std::string map_training(DataEntry& entry, const std::string& theirs, const std::filesystem::path& file) {
  const std::string read = theirs.empty() || theirs == "weight" ? theirs : "train";
  if (read == "train") entry.map("train", theirs);
  const bool is_known = !data::example_keys(file, 1).empty();
  std::vector<std::string> unread;
  for (const char* field : {"train", "weight"}) {
    if (field == read || (is_known && !data::has_string(file, field))) continue;
    entry.leave_unread(field);
    unread.emplace_back(field);
  }
  return join(unread, " and ");
}

/// One entry, which becomes one entry of ours for each file that it names.
class EntryConverter {
 public:
  EntryConverter(Converter& converter, const std::string& key, std::size_t index, const Value& source)
      : converter_(converter), key_(key), prefix_(fmt::format("{}[{}].", key, index)), source_(source) {}

  std::vector<DataEntry> convert() {
    DataEntry entry;
    entry.path = text("path");
    convert_type(entry);
    decide_others();
    if (is_left_out_) return {};
    std::vector<DataEntry> entries;
    if (is_hub_dataset(entry.path) && find("data_files") == nullptr) {
      take_from_hub(entry);
      return {entry};
    }
    for (const char* name : {"name", "revision"}) {
      if (find(name)) refuse(name, "Only Hub datasets have it. Name the files of that version as path.");
    }
    for (const auto& path : paths(entry.path)) {
      entries.push_back(entry);
      entries.back().path = path;
    }
    return entries;
  }

 private:
  const Value* find(const std::string& name) const {
    const Value* value = source_.find(name);
    return value && !value->is_null() ? value : nullptr;
  }
  std::string text(const std::string& name, const std::string& otherwise = "") const {
    return source_.text_of(name, otherwise);
  }
  void refuse(const std::string& name, const std::string& advice) { converter_.refuse(prefix_ + name, advice); }
  void drop(const std::string& name, const std::string& reason) {
    converter_.note(prefix_ + name, "dropped: " + reason);
  }

  void take_from_hub(DataEntry& entry) {
    const std::string split = text("split", "train");
    if (const std::string problem = split_problem(split); !problem.empty()) refuse("split", problem);
    if (split != "train" || key_ != "datasets") entry.split = split;  // train is what training takes anyway
    entry.subset = text("name");
    if (find("revision")) entry.path += "@" + text("revision");
  }

  std::vector<std::string> paths(const std::string& path) {
    const std::string split = text("split", "train");
    std::error_code code;
    const bool is_folder = fs::is_directory(path, code);
    if (const Value* files = find("data_files")) {
      const bool is_builder = path == "json" || path == "csv" || path == "text";
      if (!is_folder && !is_builder) refuse("data_files", "Download the dataset and name its files as path.");
      std::vector<std::string> found;
      for (const auto& file : items_of(*files)) {
        found.push_back(is_folder ? (fs::path(path) / file.text).string() : file.text);
      }
      return found;
    }
    if (is_folder) {
      if (const auto found = split_path(path, split)) return {*found};
    }
    if (split != "train") refuse("split", "Name the file of the split as path.");
    return {path};
  }

  void convert_type(DataEntry& entry) {
    const Value* type = find("type");
    const std::string name = text("type");
    const std::string base = name.substr(0, name.find_first_of(".:"));
    if (type && type->is_map()) {
      convert_own_prompt(entry, *type);
    } else if (name.empty()) {
      entry.type = DatasetType::kPretokenized;
    } else if (base == "chat_template" || base == "chat_template_multimodal") {
      convert_chat(entry);
    } else if (base == "sharegpt") {
      convert_sharegpt(entry);
    } else if (base.starts_with("alpaca") || base == "gpteacher") {
      take_instructions(entry, name);
    } else if (base == "completion" || base == "pretrain") {
      entry.type = DatasetType::kText;
      entry.map("text", text("field"));
      converter_.note(prefix_ + "type",
                      "examples longer than sequence_len are not split; overlength decides about them");
    } else {
      leave_out("type",
                name + " is not supported. Write the examples as `messages`, or with `prompt` and `completion`.");
    }
  }

  /// Without its type, the examples would be read as something else.
  void leave_out(const std::string& name, const std::string& advice) {
    refuse(name, advice + " The dataset is left out.");
    is_left_out_ = true;
  }

  /// A prompt without words of its own is an example with prompt and completion.
  void convert_own_prompt(DataEntry& entry, const Value& type) {
    if (!type.text_of("field").empty()) return leave_out("type", "reads whole texts from field. Use type: completion.");
    const bool has_system =
        !type.text_of("system_prompt").empty() || has_column(type.text_of("field_system", "system"));
    if (type.text_of("format") != "{instruction}" || type.text_of("no_input_format") != "{instruction}" || has_system)
      return leave_out("type",
                       "has a format of its own, which is not converted. Write the examples as `prompt` and "
                       "`completion`; or use type: chat_template.");
    entry.type = DatasetType::kPromptCompletion;
    converter_.note(prefix_ + "type", "prompt and answer are tokenised together here");
    entry.map("prompt", type.text_of("field_instruction", "instruction"));
    entry.map("completion", type.text_of("field_output", "output"));
  }

  /// Axolotl's words around them are not ours.
  void take_instructions(DataEntry& entry, const std::string& name) {
    entry.type = DatasetType::kAlpaca;
    if (name.starts_with("gpteacher")) entry.map("output", "response");
    for (const char* column : {"system", "history"}) {
      const bool is_read = std::string_view(column) == "system" && name.starts_with("alpaca_w_system");
      if (!is_read && (has_column(column) || columns_->empty())) entry.leave_unread(column);
    }
    refuse("type", name +
                       " writes prompts in words of its own (\"### Instruction:\"), which are not converted. Set by "
                       "hand: a .jinja file with these words as chat_template. Without it, the examples are written "
                       "with the chat template of the run: --allow-refused " +
                       prefix_ + "type.");
  }

  bool has_column(const std::string& name) {
    if (!columns_) columns_ = data::example_keys(text("path"));
    return std::ranges::count(*columns_, name) > 0;
  }

  void convert_sharegpt(DataEntry& entry) {
    entry.type = DatasetType::kSharegpt;
    entry.map("conversations", text("field_messages"));
    take_training(entry);
    converter_.note(
        prefix_ + "type",
        fmt::format("Axolotl 0.19 refuses sharegpt and asks for chat_template, so the dataset is read as that, with "
                    "field_messages: {} and message_property_mappings: {{role: from, content: value}}",
                    text("field_messages", "conversations")));
  }

  void convert_chat(DataEntry& entry) {
    std::map<std::string, std::string> properties = {{"role", text("message_field_role", "role")},
                                                     {"content", text("message_field_content", "content")}};
    if (const Value* mapping = find("message_property_mappings")) {
      for (const auto& [ours, theirs] : mapping->members) {
        if (ours == "role" || ours == "content") {
          properties[ours] = theirs.text;
        } else if (ours != theirs.text) {
          refuse("message_property_mappings",
                 fmt::format("Only role and content can have other names. Rename {} in the examples.", theirs.text));
        }
      }
    }
    const std::string messages = text("field_messages", "messages");
    if (properties["role"] == "from" || find("roles")) {  // ShareGPT's layout knows human, gpt and the like
      entry.type = DatasetType::kSharegpt;
      entry.map("conversations", messages);
      const bool has_our_names = properties["role"] == "role" && properties["content"] == "content";
      if (!has_our_names) {
        entry.map("from", properties["role"]);
        entry.map("value", properties["content"]);
      }
      take_roles(entry);
    } else {
      entry.type = DatasetType::kMessages;
      entry.map("messages", messages);
      entry.map("role", properties["role"]);
      entry.map("content", properties["content"]);
      map_default_roles(entry, text("path"));
    }
    map_system(entry);
    entry.map("tools", text("field_tools"));
    take_training(entry);
  }

  /// A column next to the messages, which Axolotl puts before them. Type sharegpt reads one of this name anyway.
  void map_system(DataEntry& entry) {
    const std::string system = text("field_system", "system");
    if (entry.type == DatasetType::kMessages && has_column(system)) {
      entry.field_map["system"] = system;
    } else {
      entry.map("system", system);
    }
  }

  void take_roles(DataEntry& entry) {
    const Value* roles = find("roles");
    const auto problem = roles ? map_roles(entry, *roles) : std::nullopt;
    if (!problem) return;
    refuse("roles",
           fmt::format("user, assistant and tool can each have only one name other than the usual ones (human, user, "
                       "gpt, assistant, system, tool, observation). Rename {} in the examples.",
                       *problem));
  }

  void take_training(DataEntry& entry) {
    const std::string field = text("message_field_training");
    const std::string unread = map_training(entry, field, text("path"));
    if (unread.empty()) return;
    converter_.note(prefix_ + "message_field_training",
                    fmt::format("{}, so Axolotl does not read {} in a message; null in field_map does the same here",
                                field.empty() ? "is not set" : "is " + field, unread));
  }

  void decide_others() {
    const auto& keys = converter_.tool().entry_keys;
    for (const auto& [name, value] : source_.members) {
      const auto rule = keys.find(name);
      if (value.is_null()) continue;
      if (rule == keys.end()) {
        refuse(name, "is not a key of an Axolotl dataset." + did_you_mean(nearest_names(name, names_of_keys(keys))));
      } else if (const auto reason = idle_reason(rule->second, value)) {
        drop(name, *reason);
      } else if (rule->second.kind == KeyRule::Kind::kRefused) {
        refuse(name, rule->second.text);
      } else if (name == "roles_to_train") {
        decide_roles(value);
      } else if (name == "chat_template") {
        convert_template(value.text);
      }
    }
  }

  void decide_roles(const Value& roles) {
    const std::string only = roles.items.size() == 1 ? roles.items[0].text : "";
    if (only == "assistant" || only == "gpt") return drop("roles_to_train", only + " matches what happens anyway");
    refuse("roles_to_train",
           "Use loss_on: assistant, last, completion or all; or mark turns with `train` in the examples.");
  }

  void convert_template(const std::string& name) {
    const std::string whole = converter_.text_or("chat_template", "tokenizer_default");
    if (name == whole || (name == "jinja" && converter_.find("chat_template_jinja"))) {
      drop("chat_template", "is the template of the whole run");
    } else if (const std::string other = chat_without_template(converter_); !other.empty()) {
      refuse("chat_template", other +
                                  " names none, so Axolotl uses the tokenizer's own there. A run has one template for "
                                  "all data: name it as chat_template of the whole file.");
    } else if (converter_.find("chat_template") || is_other_template(name)) {
      refuse("chat_template", "A run has one template for all data. Name it as chat_template.");
    } else {
      convert_axolotl_template(converter_, key_, name, text("chat_template_jinja"), prefix_);
    }
  }

  /// True if an earlier dataset has chosen another one; text in the file itself is compared when it is set.
  bool is_other_template(const std::string& name) const {
    const std::string ours = name == "tokenizer_default" ? "tokenizer" : converter_.template_for(name);
    return name != "jinja" && converter_.is_set("chat_template") && !converter_.is_set_to("chat_template", ours);
  }

  Converter& converter_;
  std::string key_, prefix_;
  const Value& source_;
  bool is_left_out_ = false;
  std::optional<std::vector<std::string>> columns_ = {};  ///< of the examples, once asked for
};

}  // namespace

std::vector<DataEntry> convert_axolotl_datasets(Converter& converter, const std::string& key) {
  std::vector<DataEntry> entries;
  const Value* list = converter.find(key);
  if (!list) return entries;
  const auto items = items_of(*list);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_map()) {
      converter.refuse(key, "expected a list of maps with path and type.");
      return {};
    }
    for (auto& entry : EntryConverter(converter, key, i, items[i]).convert()) entries.push_back(std::move(entry));
  }
  if (entries.empty() && !items.empty()) converter.refuse(key, "no dataset is left. Name your data as `datasets`.");
  return entries;
}

}  // namespace lora_train
