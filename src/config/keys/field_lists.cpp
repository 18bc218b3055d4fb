// Fields whose values are lists.
#include <algorithm>
#include <set>

#include "field_kinds.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/scalar.h"

namespace lora_train {
namespace {

std::optional<DatasetType> read_dataset_type(const Value& value, const std::string& key, Findings& findings) {
  Value word = value;
  std::replace(word.text.begin(), word.text.end(), '-', '_');
  word.text = lower_case(word.text);
  const std::string given = word.text;
  if (given == "chat" || given == "chatml" || given == "chat_template" || given == "openai") word.text = "messages";
  if (given == "completion") word.text = "text";
  if (given == "conversations") word.text = "sharegpt";
  const auto index = read_choice(word, names_of(DatasetType{}), key, findings);
  if (!index) return std::nullopt;
  if (given != word.text) findings.note(value.place, key, "\"" + value.text + "\" is read as \"" + word.text + "\"");
  return static_cast<DatasetType>(*index);
}

std::optional<std::string> read_text(const Value& value, const std::string& key, Findings& findings) {
  if (value.is_scalar() && !value.text.empty()) return value.text;
  findings.mistake(value.place, key, unexpected(value, "text"));
  return std::nullopt;
}

void read_field_map(const Value& value, const std::string& key, DatasetSpec& spec, Findings& findings) {
  if (!value.is_map()) {
    findings.mistake(value.place, key,
                     unexpected(value,
                                "a map from our column names to those of the file, such as "
                                "{prompt: question, completion: answer}"));
    return;
  }
  for (const auto& [ours, theirs] : value.members) {
    if (theirs.is_null()) {
      spec.field_map[ours] = "";
    } else if (const auto text = read_text(theirs, key + "." + ours, findings)) {
      spec.field_map[ours] = *text;
    }
  }
}

DatasetSpec read_dataset(const Value& value, const std::string& key, Findings& findings) {
  DatasetSpec spec;
  if (value.is_scalar() && !value.text.empty()) {
    spec.path = value.text;
    return spec;
  }
  if (!value.is_map()) {
    findings.mistake(value.place, key, unexpected(value, "a file, or a map such as {path: train.jsonl, type: auto}"));
    return spec;
  }
  for (const auto& [name, member] : value.members) {
    read_dataset_member(name, member, key + "." + name, spec, findings);
  }
  if (value.find("path") == nullptr)
    findings.mistake(value.place, key, "has no path. Name a file, a folder or a glob.");
  return spec;
}

Value write_dataset(const DatasetSpec& spec) {
  Value value;
  value.kind = Value::Kind::kMap;
  value.members = source_members(spec);
  if (spec.weight != 1.0) value.members.push_back({"weight", number_value(spec.weight)});
  if (!spec.name.empty()) value.members.push_back({"name", text_value(spec.name)});
  if (spec.max_samples) value.members.push_back({"max_samples", integer_value(*spec.max_samples)});
  return value;
}

Value list_of(const auto& items, const auto& write) {
  Value list = list_value({});
  for (const auto& item : items) list.items.push_back(write(item));
  return list;
}

// A list, or one value that stands for a list of one.
std::vector<Value> items_of(const Value& value) {
  if (value.is_list()) return value.items;
  return value.is_null() ? std::vector<Value>{} : std::vector<Value>{value};
}

std::vector<std::string> read_texts(const Value& value, const std::string& key, Findings& findings) {
  std::vector<std::string> texts;
  for (const auto& item : items_of(value)) {
    if (auto text = read_text(item, key, findings)) texts.push_back(std::move(*text));
  }
  return texts;
}

Value write_texts(const std::vector<std::string>& texts) { return list_of(texts, text_value); }

NewToken read_new_token(const Value& value, const std::string& key, Findings& findings) {
  const auto expected = "a name such as <conf_0>, or {token: <conf_0>, init_text: unsure}";
  NewToken token;
  if (value.is_scalar() && !value.text.empty()) {
    token.token = value.text;
  } else if (!value.is_map()) {
    findings.mistake(value.place, key, unexpected(value, expected));
    return token;
  }
  for (const auto& [member, entry] : value.members) {
    if (member == "token") {
      token.token = read_text(entry, key + ".token", findings).value_or("?");
    } else if (member == "init_text") {
      if (!entry.is_null()) token.init_text = read_text(entry, key + ".init_text", findings).value_or("?");
    } else if (member == "normalized") {
      const auto is_normalized = entry.is_scalar() ? parse_bool(entry.text) : std::nullopt;
      token.normalized = is_normalized.value_or(true);
      if (!is_normalized) findings.mistake(entry.place, key + ".normalized", unexpected(entry, "true or false"));
    } else {
      findings.mistake(entry.place, key + "." + member, "unknown key. Known here: token, init_text, normalized.");
    }
  }
  if (token.token.empty() && !value.is_scalar())
    findings.mistake(value.place, key, "has no token. Expected " + std::string(expected) + ".");
  return token;
}

Value write_new_token(const NewToken& token) {
  if (token.init_text.empty() && token.normalized) return text_value(token.token);
  Value value;
  value.kind = Value::Kind::kMap;
  value.members = {{"token", text_value(token.token)}};
  if (!token.init_text.empty()) value.members.push_back({"init_text", text_value(token.init_text)});
  if (!token.normalized) value.members.push_back({"normalized", bool_value(false)});
  return value;
}

bool is_every_linear(const std::string& text) { return text == "all" || text == "all-linear" || text == "all_linear"; }

// LLaMA-Factory spells a list as "q_proj,v_proj"; a comma outside {} has no use in a regex of module names.
bool is_comma_list(const std::string& text) {
  return text.find(',') != std::string::npos && text.find_first_of("{}()[]|*+?\\^$") == std::string::npos;
}

// The words of such a list; a comma at the end makes a list of one.
std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> words = {""};
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != ' ') {
      words.back() += c;
    }
  }
  std::erase(words, "");
  return words;
}

LoraTargets read_targets(const Value& value, const std::string& key, Findings& findings) {
  LoraTargets targets;
  if (value.is_scalar() && !is_every_linear(value.text) && !is_comma_list(value.text)) {
    targets.kind = LoraTargets::Kind::kRegex;
    targets.regex = read_text(value, key, findings).value_or("?");
    return targets;
  }
  std::vector<std::string> names = read_texts(value, key, findings);
  if (value.is_scalar() && is_comma_list(value.text)) {
    names = split_at_commas(value.text);
    findings.note(value.place, key, "\"" + value.text + "\" is read as a list of names");
  }
  if ((value.is_list() && value.items.empty()) || (value.is_scalar() && names.empty())) {
    findings.mistake(value.place, key, "an empty list. Expected all-linear, names of linears, or a regex.");
  } else if (names.size() == 1 && is_every_linear(names.front())) {
    return targets;
  }
  targets.kind = LoraTargets::Kind::kList;
  targets.names = std::move(names);
  return targets;
}

// A name that YAML would read back as a regex or a list must stay a list, so a list is always written as one.
Value write_targets(const LoraTargets& targets) {
  if (targets.kind == LoraTargets::Kind::kAllLinear) return text_value("all-linear");
  return targets.kind == LoraTargets::Kind::kRegex ? text_value(targets.regex) : write_texts(targets.names);
}

}  // namespace

void read_dataset_member(const std::string& name, const Value& value, const std::string& key, DatasetSpec& spec,
                         Findings& findings) {
  static const std::vector<std::string> known = {"path",      "split",  "subset", "type",
                                                 "field_map", "weight", "name",   "max_samples"};
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string near = nearest_name(name, known);
    findings.mistake(
        value.place, key,
        "unknown key. " + (near.empty() ? "" : "Did you mean \"" + near + "\"? ") + "Known here: " + join(known) + ".");
  } else if (value.is_null() && name != "path") {
    return;
  } else if (name == "path") {
    spec.path = read_text(value, key, findings).value_or("?");
  } else if (name == "name") {
    spec.name = read_text(value, key, findings).value_or("");
  } else if (name == "split") {
    spec.split = read_text(value, key, findings).value_or("");
  } else if (name == "subset") {
    spec.subset = read_text(value, key, findings).value_or("");
  } else if (name == "type") {
    spec.type = read_dataset_type(value, key, findings).value_or(DatasetType::kAuto);
  } else if (name == "field_map") {
    read_field_map(value, key, spec, findings);
  } else if (name == "max_samples") {
    spec.max_samples = value.is_scalar() ? parse_integer(value.text) : std::nullopt;
    if (spec.max_samples.value_or(0) < 1) findings.mistake(value.place, key, unexpected(value, "a whole number > 0"));
  } else {
    const auto weight = value.is_scalar() ? parse_number(value.text) : std::nullopt;
    if (weight && *weight > 0) {
      spec.weight = *weight;
    } else {
      findings.mistake(value.place, key, unexpected(value, "a number > 0"));
    }
  }
}

std::vector<Value::Member> source_members(const DatasetSpec& spec) {
  std::vector<Value::Member> members = {{"path", text_value(spec.path)}};
  if (!spec.split.empty()) members.push_back({"split", text_value(spec.split)});
  if (!spec.subset.empty()) members.push_back({"subset", text_value(spec.subset)});
  members.push_back({"type", text_value(to_string(spec.type))});
  if (spec.field_map.empty()) return members;
  Value map;
  map.kind = Value::Kind::kMap;
  for (const auto& [ours, theirs] : spec.field_map) {
    map.members.push_back({ours, theirs.empty() ? null_value() : text_value(theirs)});
  }
  members.push_back({"field_map", std::move(map)});
  return members;
}

Field datasets_field(std::string name, Member<std::vector<DatasetSpec>> member, std::string help) {
  const auto read = [name](const Value& value, std::vector<DatasetSpec>& target, Findings& findings) {
    target.clear();
    const auto items = items_of(value);
    for (std::size_t i = 0; i < items.size(); ++i) {
      target.push_back(read_dataset(items[i], name + "[" + std::to_string(i) + "]", findings));
    }
  };
  return list_field(name, "list of {path, split, subset, type, field_map, weight, name, max_samples}", std::move(help),
                    std::move(member), read,
                    [](const std::vector<DatasetSpec>& specs) { return list_of(specs, write_dataset); });
}

Field targets_field(std::string name, Member<LoraTargets> member, std::string help) {
  const auto read = [name](const Value& value, LoraTargets& target, Findings& findings) {
    target = read_targets(value, name, findings);
  };
  Field field = list_field(name, "all-linear, a list of names, or a regex that matches whole names", std::move(help),
                           std::move(member), read, write_targets);
  field.takes_commas = true;
  return field;
}

Field new_tokens_field(std::string name, Member<std::vector<NewToken>> member, std::string help) {
  const auto read = [name](const Value& value, std::vector<NewToken>& target, Findings& findings) {
    target.clear();
    std::set<std::string> seen;
    const auto items = value.is_map() ? std::vector<Value>{value} : items_of(value);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string key = name + "[" + std::to_string(i) + "]";
      NewToken token = read_new_token(items[i], key, findings);
      if (!token.token.empty() && !seen.insert(token.token).second) {
        findings.mistake(items[i].place, key, "\"" + token.token + "\" is listed twice. Name each token once.");
      }
      target.push_back(std::move(token));
    }
  };
  return list_field(name, "list of names or {token, init_text, normalized}", std::move(help), std::move(member), read,
                    [](const std::vector<NewToken>& tokens) { return list_of(tokens, write_new_token); });
}

/// The command reads metrics.jsonl with MLflow's own API, which takes the metrics to wherever MLFLOW_TRACKING_URI points.
constexpr const char* kMlflow =
    "a run never touches the network, so it does not report to mlflow. Use tensorboard or none; then this logs the "
    "run: "
    "python3 -c \"import json, mlflow; [mlflow.log_metrics({'/'.join(filter(None, (r['event'], r.get('name'), k))): v "
    "for k, v in "
    "r.items() if type(v) in (int, float) and k != 'step'}, step=r['step']) for r in map(json.loads, "
    "open('OUTPUT_DIR/metrics.jsonl')) if r['event'] in ('train', 'eval')]\"";

Field reporters_field(std::string name, Member<std::vector<Reporter>> member, std::string help) {
  const auto read = [name](const Value& value, std::vector<Reporter>& target, Findings& findings) {
    target.clear();
    std::vector<Value> items = items_of(value);
    if (value.is_scalar() && is_comma_list(value.text)) {
      items.clear();
      for (const std::string& word : split_at_commas(value.text)) {
        items.push_back(text_value(word));
        items.back().place = value.place;
      }
    }
    for (const auto& item : items) {
      const std::string word = item.is_scalar() ? lower_case(item.text) : "";
      if (word == "tensorboard") {
        if (target.empty()) target.push_back(Reporter::kTensorboard);
      } else if (word == "wandb") {
        findings.mistake(item.place, name,
                         "a run never touches the network, so it does not report to wandb. Use tensorboard, "
                         "then `wandb sync OUTPUT_DIR/tensorboard` uploads it.");
      } else if (word == "mlflow") {
        findings.mistake(item.place, name, kMlflow);
      } else if (word != "none" && word != "off" && word != "false") {
        findings.mistake(item.place, name,
                         unexpected(item, "tensorboard or none") +
                             " Other trackers import the TensorBoard files in OUTPUT_DIR/tensorboard (`wandb sync "
                             "OUTPUT_DIR/tensorboard`, "
                             "`aim convert tensorboard --logdir OUTPUT_DIR/tensorboard`).");
      }
    }
  };
  Field field =
      list_field(name, "list of tensorboard, or none", std::move(help), std::move(member), read,
                 [](const std::vector<Reporter>& reporters) {
                   return list_of(reporters, [](Reporter reporter) { return text_value(to_string(reporter)); });
                 });
  field.takes_commas = true;
  return field;
}

}  // namespace lora_train
