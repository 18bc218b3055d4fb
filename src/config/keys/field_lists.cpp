// Fields whose values are lists.

#include <algorithm>
#include <set>

#include "field_kinds.h"
#include "lora_train/base/kernel_names.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"

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

/// `name` is not among the members of an entry.
void report_unknown_member(const Value& value, const std::string& key, const std::string& name,
                           const std::vector<std::string>& known, Findings& findings) {
  const std::string near = nearest_name(name, known);
  findings.mistake(value.place, key,
                   fmt::format("unknown key. {}Known here: {}.",
                               near.empty() ? "" : fmt::format("Did you mean \"{}\"? ", near), join(known)));
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
                                "a map from our column names to those of the file, such as {prompt: question, "
                                "completion: answer}"));
    return;
  }
  for (const auto& [ours, theirs] : value.members) {
    if (theirs.is_null()) {
      spec.field_map[ours] = "";
    } else if (const auto text = read_text(theirs, fmt::format("{}.{}", key, ours), findings)) {
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
    read_dataset_member(name, member, fmt::format("{}.{}", key, name), spec, findings);
  }
  if (value.find("path") == nullptr)
    findings.mistake(value.place, key, "has no path. Name a file, a folder or a glob.");
  return spec;
}

Value write_dataset(const DatasetSpec& spec) {
  Value value = map_value(source_members(spec));
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
    findings.mistake(value.place, key, fmt::format("has no token. Expected {}.", expected));
  return token;
}

Value write_new_token(const NewToken& token) {
  if (token.init_text.empty() && token.normalized) return text_value(token.token);
  Value value = map_value({{"token", text_value(token.token)}});
  if (!token.init_text.empty()) value.members.push_back({"init_text", text_value(token.init_text)});
  if (!token.normalized) value.members.push_back({"normalized", bool_value(false)});
  return value;
}

bool is_every_linear(const std::string& text) { return text == "all" || text == "all-linear" || text == "all_linear"; }

// LLaMA-Factory spells a list as "q_proj,v_proj"; a comma outside {} has no use in a regex of module names.
bool is_comma_list(const std::string& text) {
  return text.find(',') != std::string::npos && text.find_first_of("{}()[]|*+?\\^$") == std::string::npos;
}

// The words of such a list; a trailing comma makes a list of one.
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
    findings.note(value.place, key, fmt::format("\"{}\" is read as a list of names", value.text));
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

template <class T, class Parse, class Write>
Field pattern_field(std::string name, Member<std::vector<std::pair<std::string, T>>> member, std::string expected,
                    std::string help, Parse parse, Write write) {
  using Pattern = std::vector<std::pair<std::string, T>>;
  const auto read = [=](const Value& value, Pattern& target, Findings& findings) {
    target.clear();
    if (!value.is_map() && !(value.is_list() && value.items.empty())) {
      findings.mistake(value.place, name, unexpected(value, "a map such as {q_proj: 8}"));
    }
    for (const auto& [pattern, entry] : value.members) {
      const auto number = entry.is_scalar() ? parse(entry.text) : std::nullopt;
      if (number && *number > 0) {
        target.emplace_back(pattern, *number);
      } else {
        findings.mistake(entry.place, fmt::format("{}.{}", name, pattern), unexpected(entry, expected));
      }
    }
  };
  const auto write_map = [write](const Pattern& patterns) {
    std::vector<Value::Member> members;
    for (const auto& [pattern, number] : patterns) members.push_back({pattern, write(number)});
    return map_value(std::move(members));
  };
  return list_field(name, "map of module name or regex to " + expected, std::move(help), std::move(member), read,
                    write_map);
}

KernelSetting read_kernel_setting(const Value& value, const std::string& key, Findings& findings) {
  const auto index = read_choice(value, names_of(KernelSetting{}), key, findings);
  return index ? static_cast<KernelSetting>(*index) : KernelSetting::kAuto;
}

Value write_kernels(const KernelChoices& choices) {
  if (choices.single.empty()) return text_value(to_string(choices.all));
  Value map = map_value({{"all", text_value(to_string(choices.all))}});
  for (const auto& [kernel, choice] : choices.single) map.members.push_back({kernel, text_value(to_string(choice))});
  return map;
}

using ConfidenceTokens = std::vector<std::pair<std::string, double>>;

const std::vector<std::string> kTaskMembers = {"name",      "kind",        "path",  "split", "subset",        "type",
                                               "field_map", "max_samples", "every", "regex", "max_new_tokens"};

std::optional<std::int64_t> read_count(const Value& value, const std::string& key, Findings& findings) {
  const auto number = value.is_scalar() ? parse_integer(value.text) : std::nullopt;
  if (number && *number >= 1) return number;
  findings.mistake(value.place, key, unexpected(value, "an integer >= 1"));
  return std::nullopt;
}

void read_every(const Value& value, const std::string& key, EvalTask& task, Findings& findings) {
  const auto cadence = read_cadence(value, key, findings);
  if (!cadence) return;
  if (cadence->kind == Cadence::Kind::kOff) {
    findings.mistake(value.place, key,
                     unexpected(value, "a number of steps >= 1, a share of the run below 1, or epoch") +
                         " Leave it out to evaluate the task with eval_steps.");
    return;
  }
  task.every = cadence;
}

void read_task_member(const std::string& name, const Value& value, const std::string& key, EvalTask& task,
                      Findings& findings) {
  if (std::find(kTaskMembers.begin(), kTaskMembers.end(), name) == kTaskMembers.end()) {
    report_unknown_member(value, key, name, kTaskMembers, findings);
  } else if (value.is_null() && name != "name" && name != "kind" && name != "path") {
    return;
  } else if (name == "name") {
    task.name = read_text(value, key, findings).value_or("");
  } else if (name == "kind") {
    if (const auto kind = read_choice(value, names_of(TaskKind{}), key, findings))
      task.kind = static_cast<TaskKind>(*kind);
  } else if (name == "regex") {
    task.regex = read_text(value, key, findings).value_or("");
  } else if (name == "max_samples") {
    task.max_samples = read_count(value, key, findings);
  } else if (name == "max_new_tokens") {
    task.max_new_tokens = read_count(value, key, findings).value_or(task.max_new_tokens);
  } else if (name == "every") {
    read_every(value, key, task, findings);
  } else {
    read_dataset_member(name, value, key, task.data, findings);
  }
}

EvalTask read_task(const Value& value, const std::string& key, Findings& findings) {
  EvalTask task;
  if (!value.is_map()) {
    findings.mistake(value.place, key,
                     unexpected(value, "a map such as {name: math, kind: exact_match, path: test.jsonl}"));
    return task;
  }
  for (const auto& [name, member] : value.members) read_task_member(name, member, key + "." + name, task, findings);
  for (const char* required : {"name", "kind", "path"}) {
    if (value.find(required) == nullptr) {
      findings.mistake(value.place, fmt::format("{}.{}", key, required),
                       "missing. A task has a name, a kind (" + choice_text(names_of(TaskKind{})) + ") and a path.");
    }
  }
  if (task.kind != TaskKind::kChoices) return task;
  for (const char* idle : {"regex", "max_new_tokens"}) {
    if (const Value* given = value.find(idle); given != nullptr && !given->is_null())
      findings.mistake(given->place, fmt::format("{}.{}", key, idle), "has no effect on kind: choices. Remove it.");
  }
  return task;
}

Value write_task(const EvalTask& task) {
  Value value = map_value({{"name", text_value(task.name)}, {"kind", text_value(to_string(task.kind))}});
  for (auto& member : source_members(task.data)) value.members.push_back(std::move(member));
  if (task.max_samples) value.members.push_back({"max_samples", integer_value(*task.max_samples)});
  if (task.every) value.members.push_back({"every", write_cadence(*task.every)});
  if (!task.regex.empty()) value.members.push_back({"regex", text_value(task.regex)});
  if (task.kind != TaskKind::kChoices) value.members.push_back({"max_new_tokens", integer_value(task.max_new_tokens)});
  return value;
}

void read_confidence_tokens(const Value& value, const std::string& key, ConfidenceTokens& tokens, Findings& findings) {
  tokens.clear();
  if (!value.is_map() && !(value.is_list() && value.items.empty())) {
    findings.mistake(value.place, key, unexpected(value, "a map such as {<conf_0>: 0.0, <conf_100>: 1.0}"));
    return;
  }
  for (const auto& [token, probability] : value.members) {
    const auto number = probability.is_scalar() ? parse_number(probability.text) : std::nullopt;
    if (number && *number >= 0 && *number <= 1) {
      tokens.emplace_back(token, *number);
    } else {
      findings.mistake(probability.place, key + "." + token, unexpected(probability, "a probability from 0 to 1"));
    }
  }
  if (value.members.size() == 1) {
    findings.mistake(
        value.place, key,
        "has only one token, which says the same about every answer. Give two or more, such as {<conf_0>: 0.0, "
        "<conf_100>: 1.0}.");
  }
}

Value write_confidence_tokens(const ConfidenceTokens& tokens) {
  Value map = map_value({});
  for (const auto& [token, probability] : tokens) map.members.push_back({token, number_value(probability)});
  return map;
}

}  // namespace

void read_dataset_member(const std::string& name, const Value& value, const std::string& key, DatasetSpec& spec,
                         Findings& findings) {
  static const std::vector<std::string> known = {"path",      "split",  "subset", "type",
                                                 "field_map", "weight", "name",   "max_samples"};
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    report_unknown_member(value, key, name, known, findings);
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
  Value map = map_value({});
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
      target.push_back(read_dataset(items[i], fmt::format("{}[{}]", name, i), findings));
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
      const std::string key = fmt::format("{}[{}]", name, i);
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

/// The command reads metrics.jsonl with MLflow's own API, which sends the metrics to MLFLOW_TRACKING_URI.
constexpr const char* kMlflow =
    "runs work offline and do not report to mlflow. Use tensorboard or none; afterwards, this logs the run: python3 -c "
    "\"import json, mlflow; [mlflow.log_metrics({'/'.join(filter(None, (r['event'], r.get('name'), k))): v for k, v in "
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
                         "runs work offline and do not report to wandb. Use tensorboard; afterwards, `wandb sync "
                         "OUTPUT_DIR/tensorboard` uploads it.");
      } else if (word == "mlflow") {
        findings.mistake(item.place, name, kMlflow);
      } else if (word != "none" && word != "off" && word != "false") {
        findings.mistake(item.place, name,
                         unexpected(item, "tensorboard or none") +
                             " Other trackers import the TensorBoard files in OUTPUT_DIR/tensorboard (`wandb sync "
                             "OUTPUT_DIR/tensorboard`, `aim convert tensorboard --logdir OUTPUT_DIR/tensorboard`).");
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

Field rank_pattern_field(std::string name, Member<std::vector<std::pair<std::string, std::int64_t>>> member,
                         std::string help) {
  const Range range = Range::between(1, kMaxLoraRank);
  const auto parse = [range](const std::string& text) {
    const auto number = parse_integer(text);
    return number && range.holds(static_cast<double>(*number)) ? number : std::nullopt;
  };
  return pattern_field(std::move(name), std::move(member), "an integer " + range.text(), std::move(help), parse,
                       integer_value);
}

Field alpha_pattern_field(std::string name, Member<std::vector<std::pair<std::string, double>>> member,
                          std::string help) {
  return pattern_field(std::move(name), std::move(member), "a number > 0", std::move(help), parse_number, number_value);
}

Field kernels_field(std::string name, Member<KernelChoices> member, std::string help) {
  const auto read = [name](const Value& value, KernelChoices& choices, Findings& findings) {
    choices = {};
    if (!value.is_map()) choices.all = read_kernel_setting(value, name, findings);
    const std::vector<std::string> known(kKernelNames.begin(), kKernelNames.end());
    for (const auto& [kernel, entry] : value.members) {
      const std::string key = fmt::format("{}.{}", name, kernel);
      if (kernel == "all") {
        choices.all = read_kernel_setting(entry, key, findings);
      } else if (std::find(known.begin(), known.end(), kernel) != known.end()) {
        choices.single.emplace_back(kernel, read_kernel_setting(entry, key, findings));
      } else {
        findings.mistake(entry.place, key, fmt::format("unknown kernel. Known: all, {}.", join(known)));
      }
    }
  };
  return list_field(name, choice_text(names_of(KernelSetting{})) + ", or a map of kernel to one of these",
                    std::move(help), std::move(member), read, write_kernels);
}

Field eval_tasks_field(std::string name, Member<std::vector<EvalTask>> member, std::string help) {
  const auto read = [name](const Value& value, std::vector<EvalTask>& target, Findings& findings) {
    target.clear();
    if (!value.is_list()) {
      findings.mistake(value.place, name, unexpected(value, "a list of {name, kind, path}"));
      return;
    }
    for (std::size_t i = 0; i < value.items.size(); ++i)
      target.push_back(read_task(value.items[i], fmt::format("{}[{}]", name, i), findings));
  };
  return list_field(name, "list of {" + join(kTaskMembers) + "}", std::move(help), std::move(member), read,
                    [](const std::vector<EvalTask>& tasks) { return list_of(tasks, write_task); });
}

Field confidence_tokens_field(std::string name, Member<ConfidenceTokens> member, std::string help) {
  const auto read = [name](const Value& value, ConfidenceTokens& target, Findings& findings) {
    read_confidence_tokens(value, name, target, findings);
  };
  return list_field(name, "map of token to probability", std::move(help), std::move(member), read,
                    write_confidence_tokens);
}

}  // namespace lora_train
