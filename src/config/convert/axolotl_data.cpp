// Axolotl's `datasets`.
#include "axolotl_data.h"

#include <algorithm>
#include <map>
#include <set>

#include "chat_templates.h"
#include "lora_train/base/text.h"
#include "lora_train/config/scalar.h"

namespace lora_train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIdleEntryKeys[] = {"ds_type",      "trust_remote_code", "preprocess_shards",
                                          "conversation", "field_human",       "field_model"};
constexpr const char* kTrainingEntryKeys[] = {"train_on_eos",         "train_on_eot",   "roles_to_train",
                                              "drop_system_message",  "split_thinking", "field_thinking",
                                              "template_thinking_key"};
constexpr const char* kRefusedEntryKeys[] = {"input_transform", "input_format", "message_field_training_detail",
                                             "logprobs_field", "temperature"};
constexpr const char* kConvertedEntryKeys[] = {"path",
                                               "type",
                                               "split",
                                               "name",
                                               "revision",
                                               "data_files",
                                               "field",
                                               "field_messages",
                                               "field_system",
                                               "field_tools",
                                               "message_property_mappings",
                                               "message_field_role",
                                               "message_field_content",
                                               "message_field_training",
                                               "roles",
                                               "chat_template",
                                               "chat_template_jinja"};

/// The first chat dataset that leaves its template to the tokenizer, where the file has none for all; empty if there is none.
std::string chat_without_template(const Converter& converter) {
  if (converter.find("chat_template")) return {};
  for (const char* key : {"datasets", "test_datasets"}) {
    const Value* list = converter.find(key);
    for (std::size_t i = 0; list && i < list->items.size(); ++i) {
      const Value &entry = list->items[i], *type = entry.find("type"), *name = entry.find("chat_template");
      const bool is_chat = type && type->is_scalar() && type->text.starts_with("chat_template");
      if (is_chat && (!name || name->is_null())) return std::string(key) + "[" + std::to_string(i) + "]";
    }
  }
  return {};
}

/// One entry, which becomes one entry of ours for each file that it names.
class EntryConverter {
 public:
  EntryConverter(Converter& converter, const std::string& key, std::size_t index, const Value& source)
      : converter_(converter), key_(key), prefix_(key + "[" + std::to_string(index) + "]."), source_(source) {}

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
      if (find(name)) refuse(name, "Only a dataset of the Hub has it: name the files of that version as path.");
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
    const Value* value = find(name);
    return value && value->is_scalar() ? value->text : otherwise;
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
      for (const auto& file : files->is_list() ? files->items : std::vector<Value>{*files}) {
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
    const std::string name = type && type->is_scalar() ? type->text : "";
    const std::string base = name.substr(0, name.find_first_of(".:"));
    if (type && type->is_map()) {
      convert_own_prompt(entry, *type);
    } else if (name.empty()) {
      entry.type = "pretokenized";
    } else if (base == "chat_template" || base == "chat_template_multimodal") {
      convert_chat(entry);
    } else if (base == "sharegpt") {
      entry.type = "sharegpt";
      entry.map("conversations", text("field_messages"));
    } else if (name == "alpaca" || name == "alpaca:chat" || name == "alpaca:instruct" || name == "alpaca_w_system") {
      entry.type = "alpaca";
      converter_.note(prefix_ + "type",
                      "the model's chat template writes the prompt here, not the text \"### Instruction:\"");
    } else if (base == "completion" || base == "pretrain") {
      entry.type = "text";
      entry.map("text", text("field"));
      converter_.note(prefix_ + "type",
                      "rows longer than sequence_len are not cut into several; overlength decides about them");
    } else {
      leave_out("type", name + " is not built. Write the rows as `messages`, or with `prompt` and `completion`.");
    }
  }

  /// Without its type, the rows would be read as something else.
  void leave_out(const std::string& name, const std::string& advice) {
    refuse(name, advice + " The dataset is left out.");
    is_left_out_ = true;
  }

  /// A prompt without words of its own is a row with prompt and completion; Axolotl's defaults end it with a space.
  void convert_own_prompt(DataEntry& entry, const Value& type) {
    const auto said = [&](const char* name, const char* otherwise) {
      const Value* value = type.find(name);
      return value && !value->is_null() ? value->text : std::string(otherwise);
    };
    const std::string advice = " Write the finished prompts into the rows, as `prompt` and `completion`.";
    for (const auto& [name, otherwise] :
         {std::pair{"format", "{instruction} {input} "}, {"no_input_format", "{instruction} "}}) {
      if (const std::string format = said(name, otherwise); format != "{instruction}") {
        return leave_out("type", std::string(name) + " is \"" + format +
                                     "\", and only \"{instruction}\" has a counterpart (field_map: {prompt: " +
                                     said("field_instruction", "instruction") +
                                     ", completion: " + said("field_output", "output") + "})." + advice);
      }
    }
    const auto keys = first_row_keys(text("path"));
    if (!said("system_prompt", "").empty() || std::ranges::count(keys, said("field_system", "system")) > 0) {
      return leave_out("type", "has a system prompt, for which plain prompts have no place." + advice);
    }
    if (!said("field", "").empty()) return leave_out("type", "reads whole texts from field: use type: completion.");
    entry.type = "prompt_completion";
    converter_.note(prefix_ + "type", "prompt and answer are tokenised together here");
    entry.map("prompt", said("field_instruction", "instruction"));
    entry.map("completion", said("field_output", "output"));
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
                 "Only role and content can have other names. Rename " + theirs.text + " in the rows.");
        }
      }
    }
    const std::string messages = text("field_messages", "messages");
    if (properties["role"] == "from" || find("roles")) {  // ShareGPT's layout knows human, gpt and the like
      entry.type = "sharegpt";
      entry.map("conversations", messages);
      const bool has_our_names = properties["role"] == "role" && properties["content"] == "content";
      if (!has_our_names) {
        entry.map("from", properties["role"]);
        entry.map("value", properties["content"]);
      }
      map_roles(entry);
    } else {
      entry.type = "messages";
      entry.map("messages", messages);
      entry.map("role", properties["role"]);
      entry.map("content", properties["content"]);
    }
    entry.map("system", text("field_system"));
    entry.map("tools", text("field_tools"));
    entry.map("train", text("message_field_training"));
  }

  /// Names that are not known anyway; field_map takes one for each role.
  void map_roles(DataEntry& entry) {
    static const std::map<std::string, std::set<std::string>> known = {
        {"user", {"human", "user"}},
        {"assistant", {"gpt", "assistant"}},
        {"system", {"system"}},
        {"tool", {"tool", "observation", "function_response"}}};
    const Value* roles = find("roles");
    if (!roles) return;
    std::set<std::string> named;
    for (const auto& [target, sources] : roles->members) {
      const auto found = known.find(target);
      for (const auto& source : sources.is_list() ? sources.items : std::vector<Value>{sources}) {
        if (found != known.end() && found->second.contains(source.text)) continue;
        if (found == known.end() || target == "system" || !named.insert(target).second) {
          refuse("roles",
                 "Beside human, user, gpt, assistant, system, tool and observation, user, assistant and tool "
                 "have one more name each. Rename " +
                     source.text + " in the rows.");
          return;
        }
        entry.map(target, source.text);
      }
    }
  }

  /// The keys that say how a chat is trained, and those that no one reads.
  void decide_others() {
    for (const auto& [name, value] : source_.members) {
      if (value.is_null()) continue;
      if (std::ranges::count(kIdleEntryKeys, name) > 0) {
        drop(name, "the rows themselves say it");
      } else if (!decide_training(name, value) && std::ranges::count(kConvertedEntryKeys, name) == 0) {
        refuse(name, advice_for(name));
      }
    }
  }

  bool decide_training(const std::string& name, const Value& value) {
    const std::string same = "asks for what is done anyway";
    if (name == "train_on_eos" || name == "train_on_eot") {
      if (value.text == "turn")
        drop(name, "turn " + same);
      else
        refuse(name, "The end of a trained turn is trained, and no other. Remove it.");
    } else if (name == "roles_to_train") {
      const bool is_assistant =
          value.items.size() == 1 && (value.items[0].text == "assistant" || value.items[0].text == "gpt");
      if (is_assistant)
        drop(name, value.items[0].text + " " + same);
      else
        refuse(name, "Use loss_on: assistant, last, completion or all; or mark turns with `train` in the rows.");
    } else if (name == "chat_template") {
      convert_template(value.text);
    } else if (name == "drop_system_message" || name == "split_thinking") {
      if (parse_bool(value.text) == false)
        drop(name, "false " + same);
      else
        refuse(name, "Take the text out of the rows instead.");
    } else if (name == "field_thinking" || name == "template_thinking_key") {
      if (value.text == "reasoning_content")
        drop(name, value.text + " " + same);
      else
        refuse(name, "The template gets a message as it is in the row. Rename the field there.");
    } else {
      return false;
    }
    return true;
  }

  void convert_template(const std::string& name) {
    const std::string whole = converter_.text_or("chat_template", "tokenizer_default");
    if (name == whole || (name == "jinja" && converter_.find("chat_template_jinja"))) {
      drop("chat_template", "is the template of the whole run");
    } else if (const std::string other = chat_without_template(converter_); !other.empty()) {
      refuse("chat_template", other +
                                  " names none, so Axolotl takes the tokenizer's own there. A run has one template "
                                  "for all data: name it as chat_template of the whole file.");
    } else if (converter_.find("chat_template") || is_other_template(name)) {
      refuse("chat_template", "A run has one template for all data. Name it as chat_template.");
    } else {
      convert_axolotl_template(converter_, key_, name, text("chat_template_jinja"), prefix_);
    }
  }

  /// Whether an earlier dataset has decided for another one; text in the file itself is compared when it is set.
  bool is_other_template(const std::string& name) const {
    const std::string ours = name == "tokenizer_default" ? "tokenizer" : builtin_template(name);
    return name != "jinja" && converter_.is_set("chat_template") && !converter_.is_set_to("chat_template", ours);
  }

  static std::string advice_for(const std::string& name) {
    if (name == "shards" || name == "shards_idx") return "Use a part of the files instead.";
    if (std::ranges::count(kRefusedEntryKeys, name) > 0)
      return "Change the rows instead: docs/data.md has the layouts.";
    std::vector<std::string> known(std::begin(kIdleEntryKeys), std::end(kIdleEntryKeys));
    known.insert(known.end(), std::begin(kConvertedEntryKeys), std::end(kConvertedEntryKeys));
    known.insert(known.end(), std::begin(kTrainingEntryKeys), std::end(kTrainingEntryKeys));
    return "is no key of a dataset of Axolotl." + did_you_mean(nearest_names(name, known));
  }

  Converter& converter_;
  std::string key_, prefix_;
  const Value& source_;
  bool is_left_out_ = false;
};

}  // namespace

void convert_axolotl_template(Converter& converter, const std::string& key, const std::string& name,
                              const std::string& jinja, const std::string& prefix) {
  if (name == "tokenizer_default") {
    converter.set(key, "chat_template", "tokenizer");
  } else if (name.starts_with("tokenizer_default_fallback_")) {
    converter.set(key, "chat_template", "tokenizer");
    converter.note("chat_template", "without a template of the model's own the run fails: then set " +
                                        builtin_template(name.substr(27)));
  } else if (name == "jinja") {
    if (jinja.find('\n') == std::string::npos && jinja.ends_with(".jinja")) {
      converter.set("chat_template_jinja", "chat_template", jinja);
      if (converter.find("chat_template")) converter.share("chat_template", "chat_template");
    } else {
      converter.set_template(prefix + "chat_template_jinja", jinja);
      if (!converter.find("chat_template")) return;
      if (converter.is_refused("chat_template_jinja"))
        converter.drop("chat_template", "jinja: chat_template_jinja decides");
      else
        converter.share("chat_template", "chat_template");
    }
  } else if (const std::string ours = builtin_template(name); !ours.empty()) {
    converter.set(key, "chat_template", ours);
  } else {
    converter.refuse(prefix + "chat_template",
                     name + " is not built. Use the model's own (tokenizer), or save it to a .jinja file.");
  }
}

std::vector<DataEntry> convert_axolotl_datasets(Converter& converter, const std::string& key) {
  std::vector<DataEntry> entries;
  const Value* list = converter.find(key);
  if (!list) return entries;
  const auto items = list->is_list() ? list->items : std::vector<Value>{*list};
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
