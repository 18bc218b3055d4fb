// Fields whose values are lists.

#include <algorithm>
#include <set>

#include "field_kinds.h"
#include "lora_train/base/kernel_names.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

template <class E>
Value write_choice(E value) {
  return text_value(to_string(value));
}

std::optional<DatasetType> read_dataset_type(const Value& value, const std::string& key, Findings& findings) {
  Value word = value;
  std::replace(word.text.begin(), word.text.end(), '-', '_');
  word.text = lower_case(word.text);
  const std::string given = word.text;
  if (given == "chat" || given == "chatml" || given == "chat_template" || given == "openai") word.text = "messages";
  if (given == "completion") word.text = "text";
  if (given == "conversations") word.text = "sharegpt";
  const auto type = read_choice<DatasetType>(word, key, findings);
  if (type && given != word.text)
    findings.note(value.place, key, fmt::format("\"{}\" is read as \"{}\"", value.text, word.text));
  return type;
}

std::optional<std::string> read_text(const Value& value, const std::string& key, Findings& findings) {
  if (value.is_scalar() && !value.text.empty()) return value.text;
  refuse_value(value, key, "text", findings);
  return std::nullopt;
}

std::optional<std::int64_t> read_count(const Value& value, const std::string& key, Findings& findings) {
  const auto number = value.is_scalar() ? parse_integer(value.text) : std::nullopt;
  if (number && *number >= 1) return number;
  refuse_value(value, key, "an integer >= 1", findings);
  return std::nullopt;
}

/// A member of an entry of a list: how it is read, and written (null: left out).
template <class Entry>
struct EntryMember {
  std::string name;
  std::function<void(const Value&, const std::string& key, Entry&, Findings&)> read;
  std::function<Value(const Entry&)> write;
  bool is_required = false;
};

template <class Entry>
using EntryMembers = std::vector<EntryMember<Entry>>;

template <class Entry>
std::vector<std::string> names_of_members(const EntryMembers<Entry>& members) {
  std::vector<std::string> names;
  for (const auto& member : members) names.push_back(member.name);
  return names;
}

template <class Entry>
void read_members(const EntryMembers<Entry>& members, const Value& map, const std::string& key, Entry& entry,
                  Findings& findings) {
  for (const auto& [name, value] : map.members) {
    const std::string place = fmt::format("{}.{}", key, name);
    const auto found = std::ranges::find(members, name, &EntryMember<Entry>::name);
    if (found == members.end()) {
      const std::vector<std::string> known = names_of_members(members);
      findings.mistake(
          value.place, place,
          fmt::format("unknown key.{} Known here: {}.", did_you_mean(nearest_names(name, known)), join(known)));
    } else if (!value.is_null() || found->is_required) {
      found->read(value, place, entry, findings);
    }
  }
}

template <class Entry>
Value write_members(const EntryMembers<Entry>& members, const Entry& entry) {
  Value map = map_value({});
  for (const auto& member : members) {
    if (Value value = member.write(entry); !value.is_null()) map.members.push_back({member.name, std::move(value)});
  }
  return map;
}

/// kOptional: null has no effect, and the default is not written. kWritten: it is.
enum class Presence { kOptional, kWritten, kRequired };

/// `read(value, key, findings)` returns nothing if it reports a mistake.
template <class Entry, class T>
EntryMember<Entry> member_of(std::string name, T Entry::*member, auto read, auto write,
                             Presence presence = Presence::kOptional) {
  return {std::move(name),
          [=](const Value& value, const std::string& key, Entry& entry, Findings& findings) {
            if (auto result = read(value, key, findings)) entry.*member = *std::move(result);
          },
          [=](const Entry& entry) {
            const bool is_silent = presence == Presence::kOptional && entry.*member == Entry().*member;
            return is_silent ? null_value() : write(entry.*member);
          },
          presence == Presence::kRequired};
}

/// "?" for what cannot be read, so that it is not missing as well.
std::optional<std::string> read_name(const Value& value, const std::string& key, Findings& findings) {
  return read_text(value, key, findings).value_or("?");
}

std::optional<bool> read_switch(const Value& value, const std::string& key, Findings& findings) {
  const auto is_on = value.is_scalar() ? parse_bool(value.text) : std::nullopt;
  if (!is_on) refuse_value(value, key, "true or false", findings);
  return is_on;
}

Value write_count(const std::optional<std::int64_t>& count) { return integer_value(*count); }

using FieldMap = std::map<std::string, std::string>;

std::optional<FieldMap> read_field_map(const Value& value, const std::string& key, Findings& findings) {
  FieldMap map;
  if (!value.is_map()) {
    refuse_value(value, key,
                 "a map from our column names to those of the file, such as {instruction: question, output: answer}",
                 findings);
  }
  for (const auto& [ours, theirs] : value.members) {
    if (theirs.is_null()) {
      map[ours] = "";
    } else if (const auto text = read_text(theirs, fmt::format("{}.{}", key, ours), findings)) {
      map[ours] = *text;
    }
  }
  return map;
}

Value write_field_map(const FieldMap& names) {
  Value map = map_value({});
  for (const auto& [ours, theirs] : names)
    map.members.push_back({ours, theirs.empty() ? null_value() : text_value(theirs)});
  return map;
}

std::optional<double> read_weight(const Value& value, const std::string& key, Findings& findings) {
  const auto weight = value.is_scalar() ? parse_number(value.text) : std::nullopt;
  if (weight && *weight > 0) return weight;
  refuse_value(value, key, "a number > 0", findings);
  return std::nullopt;
}

/// The members that say where examples come from, and how they are read.
const EntryMembers<DatasetSpec>& source_members() {
  static const EntryMembers<DatasetSpec> members = {
      member_of("path", &DatasetSpec::path, read_name, text_value, Presence::kRequired),
      member_of("split", &DatasetSpec::split, read_text, text_value),
      member_of("subset", &DatasetSpec::subset, read_text, text_value),
      member_of("type", &DatasetSpec::type, read_dataset_type, write_choice<DatasetType>, Presence::kWritten),
      member_of("field_map", &DatasetSpec::field_map, read_field_map, write_field_map)};
  return members;
}

const EntryMembers<DatasetSpec>& dataset_members() {
  static const EntryMembers<DatasetSpec> members = [] {
    EntryMembers<DatasetSpec> all = source_members();
    all.push_back(member_of("weight", &DatasetSpec::weight, read_weight, number_value));
    all.push_back(member_of("name", &DatasetSpec::name, read_text, text_value));
    all.push_back(member_of("max_samples", &DatasetSpec::max_samples, read_count, write_count));
    all.push_back(
        member_of("null_fields", &DatasetSpec::null_fields, read_choice<NullFields>, write_choice<NullFields>));
    return all;
  }();
  return members;
}

DatasetSpec read_dataset(const Value& value, const std::string& key, Findings& findings) {
  DatasetSpec spec;
  if (value.is_scalar() && !value.text.empty()) {
    spec.path = value.text;
    return spec;
  }
  if (!value.is_map()) {
    refuse_value(value, key, "a file, or a map such as {path: train.jsonl, type: auto}", findings);
    return spec;
  }
  read_members(dataset_members(), value, key, spec, findings);
  if (value.find("path") == nullptr)
    findings.mistake(value.place, key, "has no path. Name a file, a folder or a glob.");
  return spec;
}

/// Each item, read with its place: "datasets[0]".
auto read_each(const std::vector<Value>& items, const std::string& name, const auto& read, Findings& findings) {
  std::vector<decltype(read(items[0], name, findings))> entries;
  for (std::size_t i = 0; i < items.size(); ++i)
    entries.push_back(read(items[i], fmt::format("{}[{}]", name, i), findings));
  return entries;
}

Value list_of(const auto& items, const auto& write) {
  Value list = list_value({});
  for (const auto& item : items) list.items.push_back(write(item));
  return list;
}

const EntryMembers<NewToken>& token_members() {
  static const EntryMembers<NewToken> members = {
      member_of("token", &NewToken::token, read_name, text_value, Presence::kRequired),
      member_of("init_text", &NewToken::init_text, read_text, text_value),
      member_of("normalized", &NewToken::normalized, read_switch, bool_value)};
  return members;
}

NewToken read_new_token(const Value& value, const std::string& key, Findings& findings) {
  const auto expected = "a name such as <conf_0>, or {token: <conf_0>, init_text: unsure}";
  NewToken token;
  if (value.is_scalar() && !value.text.empty()) {
    token.token = value.text;
  } else if (!value.is_map()) {
    refuse_value(value, key, expected, findings);
    return token;
  }
  read_members(token_members(), value, key, token, findings);
  if (token.token.empty() && !value.is_scalar())
    findings.mistake(value.place, key, fmt::format("has no token. Expected {}.", expected));
  return token;
}

Value write_new_token(const NewToken& token) {
  const bool is_name = token.init_text.empty() && token.normalized;
  return is_name ? text_value(token.token) : write_members(token_members(), token);
}

bool is_every_linear(const std::string& text) { return text == "all" || text == "all-linear" || text == "all_linear"; }

// LLaMA-Factory spells a list as "q_proj,v_proj"; a comma outside {} has no use in a regex of module names.
bool is_comma_list(const std::string& text) {
  return text.find(',') != std::string::npos && text.find_first_of("{}()[]|*+?\\^$") == std::string::npos;
}

LoraTargets read_targets(const Value& value, const std::string& key, Findings& findings) {
  LoraTargets targets;
  if (value.is_scalar() && !is_every_linear(value.text) && !is_comma_list(value.text)) {
    targets.kind = LoraTargets::Kind::kRegex;
    targets.regex = read_text(value, key, findings).value_or("?");
    return targets;
  }
  std::vector<std::string> names;
  for (const auto& item : items_of(value)) {
    if (auto text = read_text(item, key, findings)) names.push_back(std::move(*text));
  }
  if (value.is_scalar() && is_comma_list(value.text)) {
    names = names_in(value);
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
  return targets.kind == LoraTargets::Kind::kRegex ? text_value(targets.regex) : list_of(targets.names, text_value);
}

/// A map of names to numbers. `parse` gives nothing for a number that is not as `expected`.
template <class T, class Parse, class Write>
Field numbers_field(std::string name, Member<std::vector<std::pair<std::string, T>>> member, std::string values,
                    std::string help, std::string expected, std::string example, Parse parse, Write write) {
  using Numbers = std::vector<std::pair<std::string, T>>;
  const auto read = [=](const Value& value, Numbers& target, Findings& findings) {
    target.clear();
    if (!value.is_map() && !(value.is_list() && value.items.empty()))
      refuse_value(value, name, "a map such as " + example, findings);
    for (const auto& [entry, given] : value.members) {
      if (const auto number = given.is_scalar() ? parse(given.text) : std::nullopt) {
        target.emplace_back(entry, *number);
      } else {
        refuse_value(given, fmt::format("{}.{}", name, entry), expected, findings);
      }
    }
  };
  const auto write_map = [write](const Numbers& numbers) {
    Value map = map_value({});
    for (const auto& [entry, number] : numbers) map.members.push_back({entry, write(number)});
    return map;
  };
  return list_field(name, std::move(values), std::move(help), std::move(member), read, write_map);
}

std::optional<double> within(const Range& range, std::optional<double> number) {
  return number && range.holds(*number) ? number : std::nullopt;
}

Value write_kernels(const KernelChoices& choices) {
  if (choices.single.empty()) return text_value(to_string(choices.all));
  Value map = map_value({{"all", text_value(to_string(choices.all))}});
  for (const auto& [kernel, choice] : choices.single) map.members.push_back({kernel, text_value(to_string(choice))});
  return map;
}

std::optional<Cadence> read_every(const Value& value, const std::string& key, Findings& findings) {
  const auto cadence = read_cadence(value, key, findings);
  if (!cadence || cadence->kind != Cadence::Kind::kOff) return cadence;
  findings.mistake(value.place, key,
                   unexpected(value, "a number of steps >= 1, a share of the run below 1, or epoch") +
                       " Leave it out to evaluate the task with eval_steps.");
  return std::nullopt;
}

EntryMembers<EvalTask> task_member_list() {
  EntryMembers<EvalTask> members = {
      member_of("name", &EvalTask::name, read_name, text_value, Presence::kRequired),
      member_of("kind", &EvalTask::kind, read_choice<TaskKind>, write_choice<TaskKind>, Presence::kRequired)};
  for (const auto& source : source_members()) {
    members.push_back({source.name,
                       [&source](const Value& value, const std::string& key, EvalTask& task, Findings& findings) {
                         source.read(value, key, task.data, findings);
                       },
                       [&source](const EvalTask& task) { return source.write(task.data); }, source.is_required});
  }
  members.push_back(member_of("max_samples", &EvalTask::max_samples, read_count, write_count));
  members.push_back(member_of("every", &EvalTask::every, read_every,
                              [](const std::optional<Cadence>& every) { return write_cadence(*every); }));
  members.push_back(member_of("regex", &EvalTask::regex, read_text, text_value));
  members.push_back(
      member_of("max_new_tokens", &EvalTask::max_new_tokens, read_count, integer_value, Presence::kWritten));
  return members;
}

const EntryMembers<EvalTask>& task_members() {
  static const EntryMembers<EvalTask> members = task_member_list();
  return members;
}

EvalTask read_task(const Value& value, const std::string& key, Findings& findings) {
  EvalTask task;
  if (!value.is_map()) {
    refuse_value(value, key, "a map such as {name: math, kind: exact_match, path: test.jsonl}", findings);
    return task;
  }
  read_members(task_members(), value, key, task, findings);
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

}  // namespace

Value write_dataset(const DatasetSpec& spec) { return write_members(dataset_members(), spec); }

Field datasets_field(std::string name, Member<std::vector<DatasetSpec>> member, std::string help) {
  const auto read = [name](const Value& value, std::vector<DatasetSpec>& target, Findings& findings) {
    target = read_each(items_of(value), name, read_dataset, findings);
  };
  return list_field(name, fmt::format("list of {{{}}}", join(names_of_members(dataset_members()))), std::move(help),
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
    std::set<std::string> seen;
    const auto read_once = [&](const Value& item, const std::string& key, Findings&) {
      NewToken token = read_new_token(item, key, findings);
      if (!token.token.empty() && !seen.insert(token.token).second)
        findings.mistake(item.place, key, fmt::format("\"{}\" is listed twice. Name each token once.", token.token));
      return token;
    };
    target = read_each(items_of(value), name, read_once, findings);
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
      for (const std::string& word : names_in(value)) {
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
                 [](const std::vector<Reporter>& reporters) { return list_of(reporters, write_choice<Reporter>); });
  field.takes_commas = true;
  return field;
}

Field rank_pattern_field(std::string name, Member<std::vector<std::pair<std::string, std::int64_t>>> member,
                         std::string help) {
  const Range range = Range::between(1, kMaxLoraRank);
  const std::string expected = "an integer " + range.text();
  const auto parse = [range](const std::string& text) {
    const auto number = parse_integer(text);
    return number && range.holds(static_cast<double>(*number)) ? number : std::nullopt;
  };
  return numbers_field(std::move(name), std::move(member), "map of module name or regex to " + expected,
                       std::move(help), expected, "{q_proj: 8}", parse, integer_value);
}

Field alpha_pattern_field(std::string name, Member<std::vector<std::pair<std::string, double>>> member,
                          std::string help) {
  return numbers_field(
      std::move(name), std::move(member), "map of module name or regex to a number > 0", std::move(help),
      "a number > 0", "{q_proj: 8}",
      [](const std::string& text) { return within(Range::above(0), parse_number(text)); }, number_value);
}

Field kernels_field(std::string name, Member<KernelChoices> member, std::string help) {
  const auto read = [name](const Value& value, KernelChoices& choices, Findings& findings) {
    choices = {};
    if (!value.is_map()) choices.all = read_choice<KernelSetting>(value, name, findings).value_or(KernelSetting::kAuto);
    const std::vector<std::string> known(kKernelNames.begin(), kKernelNames.end());
    for (const auto& [kernel, entry] : value.members) {
      const std::string key = fmt::format("{}.{}", name, kernel);
      if (kernel != "all" && std::ranges::count(known, kernel) == 0) {
        findings.mistake(entry.place, key, fmt::format("unknown kernel. Known: all, {}.", join(known)));
      } else if (const auto setting = read_choice<KernelSetting>(entry, key, findings)) {
        kernel == "all" ? void(choices.all = *setting) : void(choices.single.emplace_back(kernel, *setting));
      }
    }
  };
  return list_field(name, choice_text(names_of(KernelSetting{})) + ", or a map of kernel to one of these",
                    std::move(help), std::move(member), read, write_kernels);
}

Field eval_tasks_field(std::string name, Member<std::vector<EvalTask>> member, std::string help) {
  const auto read = [name](const Value& value, std::vector<EvalTask>& target, Findings& findings) {
    if (!value.is_list()) refuse_value(value, name, "a list of {name, kind, path}", findings);
    target = read_each(value.items, name, read_task, findings);
  };
  const auto write = [](const std::vector<EvalTask>& tasks) {
    return list_of(tasks, [](const EvalTask& task) {
      Value value = write_members(task_members(), task);
      if (task.kind == TaskKind::kChoices) value.members.pop_back();  // max_new_tokens
      return value;
    });
  };
  return list_field(name, fmt::format("list of {{{}}}", join(names_of_members(task_members()))), std::move(help),
                    std::move(member), read, write);
}

Field confidence_tokens_field(std::string name, Member<std::vector<std::pair<std::string, double>>> member,
                              std::string help) {
  Field field = numbers_field(
      name, std::move(member), "map of token to probability", std::move(help), "a probability from 0 to 1",
      "{<conf_0>: 0.0, <conf_100>: 1.0}",
      [](const std::string& text) { return within(Range::between(0, 1), parse_number(text)); }, number_value);
  field.read = [name, inner = std::move(field.read)](const Value& value, Profile& profile, Findings& findings) {
    inner(value, profile, findings);
    if (value.members.size() != 1) return;
    findings.mistake(value.place, name,
                     "has only one token, which says the same about every answer. Give two or more, such as {<conf_0>: "
                     "0.0, <conf_100>: 1.0}.");
  };
  return field;
}

}  // namespace lora_train
