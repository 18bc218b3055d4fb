// Fields of evaluation tasks: eval_tasks and confidence_tokens.
#include <algorithm>

#include "field_kinds.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/scalar.h"

namespace lora_train {
namespace {

using ConfidenceTokens = std::vector<std::pair<std::string, double>>;

const std::vector<std::string> kTaskMembers = {"name",      "kind",        "path",  "split", "subset",        "type",
                                               "field_map", "max_samples", "every", "regex", "max_new_tokens"};

void read_text_member(const Value& value, const std::string& key, std::string& target, Findings& findings) {
  if (value.is_scalar() && !value.text.empty()) {
    target = value.text;
  } else {
    findings.mistake(value.place, key, unexpected(value, "text"));
  }
}

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
    const std::string near = nearest_name(name, kTaskMembers);
    findings.mistake(value.place, key,
                     "unknown key. " + (near.empty() ? "" : "Did you mean \"" + near + "\"? ") +
                         "Known here: " + join(kTaskMembers) + ".");
  } else if (value.is_null() && name != "name" && name != "kind" && name != "path") {
    return;
  } else if (name == "name") {
    read_text_member(value, key, task.name, findings);
  } else if (name == "kind") {
    if (const auto kind = read_choice(value, names_of(TaskKind{}), key, findings))
      task.kind = static_cast<TaskKind>(*kind);
  } else if (name == "regex") {
    read_text_member(value, key, task.regex, findings);
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
      findings.mistake(value.place, key + "." + required,
                       "missing. A task has a name, a kind (" + choice_text(names_of(TaskKind{})) + ") and a path.");
    }
  }
  if (task.kind != TaskKind::kChoices) return task;
  for (const char* idle : {"regex", "max_new_tokens"}) {
    if (const Value* given = value.find(idle); given != nullptr && !given->is_null())
      findings.mistake(given->place, key + "." + idle, "has no effect on kind: choices. Remove it.");
  }
  return task;
}

Value write_task(const EvalTask& task) {
  Value value;
  value.kind = Value::Kind::kMap;
  value.members = {{"name", text_value(task.name)}, {"kind", text_value(to_string(task.kind))}};
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
    findings.mistake(value.place, key,
                     "has one token, which says the same of every answer. Give two or more, such as {<conf_0>: 0.0, "
                     "<conf_100>: 1.0}.");
  }
}

Value write_confidence_tokens(const ConfidenceTokens& tokens) {
  Value map;
  map.kind = Value::Kind::kMap;
  for (const auto& [token, probability] : tokens) map.members.push_back({token, number_value(probability)});
  return map;
}

}  // namespace

Field eval_tasks_field(std::string name, Member<std::vector<EvalTask>> member, std::string help) {
  const auto read = [name](const Value& value, std::vector<EvalTask>& target, Findings& findings) {
    target.clear();
    if (!value.is_list()) {
      findings.mistake(value.place, name, unexpected(value, "a list of {name, kind, path}"));
      return;
    }
    for (std::size_t i = 0; i < value.items.size(); ++i)
      target.push_back(read_task(value.items[i], name + "[" + std::to_string(i) + "]", findings));
  };
  const auto write = [](const std::vector<EvalTask>& tasks) {
    Value list = list_value({});
    for (const auto& task : tasks) list.items.push_back(write_task(task));
    return list;
  };
  return list_field(name, "list of {" + join(kTaskMembers) + "}", std::move(help), std::move(member), read, write);
}

Field confidence_tokens_field(std::string name, Member<ConfidenceTokens> member, std::string help) {
  const auto read = [name](const Value& value, ConfidenceTokens& target, Findings& findings) {
    read_confidence_tokens(value, name, target, findings);
  };
  return list_field(name, "map of token to probability", std::move(help), std::move(member), read,
                    write_confidence_tokens);
}

}  // namespace lora_train
