#include "consistency.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "lora_train/base/text.h"
#include "lora_train/config/keys/field.h"

namespace lora_train {
namespace {

struct Check {
  const LoadedProfile& loaded;
  const Profile& profile;
  const std::map<std::string, Place>& places;
  Findings& findings;

  bool is_given(const std::string& key) const { return places.contains(key); }
  /// True if the value of `key` could not be read, so that it cannot be checked.
  bool is_wrong(const std::string& key) const { return findings.is_wrong(key); }
  /// True if a shipped profile set it.
  bool is_shipped(const std::string& key, const ProfileSources& sources) const {
    const std::filesystem::path folder = std::filesystem::path(place(key).file).parent_path();
    return std::ranges::count(sources.shipped, folder) > 0;
  }
  /// The place that a message about `key` names; empty if the key was not given.
  Place place(const std::string& key) const {
    const auto found = places.find(key);
    return found == places.end() ? Place{} : found->second;
  }
  void mistake(const std::string& key, const std::string& what) const { findings.mistake(place(key), key, what); }
  void warn(const std::string& key, const std::string& what) const { findings.warn(place(key), key, what); }
};

void check_required(const Check& check, const ProfileSources& sources) {
  const auto place = [&](const char* key) {  // of the key without a value, else the file
    const std::string& origin = check.loaded.origin.at(key);
    return origin == "default" || check.is_given(key)
               ? Place{sources.profiles.empty() ? "" : sources.profiles.back(), 0}
               : parse_place(origin);
  };
  if (sources.needs_model && check.profile.model.path.empty() && !check.is_given("model")) {
    check.findings.mistake(place("model"), "model",
                           "missing. Name a Hugging Face folder, or org/name from the local cache (`model: ...` or "
                           "--model).");
  }
  if (sources.needs_datasets && check.profile.data.datasets.empty() && !check.is_wrong("datasets")) {
    check.findings.mistake(place("datasets"), "datasets",
                           "missing. Name training data (`datasets: [{path: train.jsonl}]` or --train-data).");
  }
}

void check_batch(const Check& check) {
  const ScheduleSection& schedule = check.profile.schedule;
  const bool are_rows = schedule.batch_unit == BatchUnit::kRows || !check.profile.data.packing;
  if (!are_rows && schedule.gradient_accumulation_steps && !schedule.micro_batch_size &&
      !check.is_wrong("micro_batch_size")) {
    check.mistake("batch_unit",
                  "documents with gradient_accumulation_steps needs a number for micro_batch_size; or set "
                  "global_batch_size instead.");
  }
  if (are_rows && schedule.micro_batch_size && schedule.global_batch_size &&
      *schedule.global_batch_size % *schedule.micro_batch_size != 0) {
    const std::string key = check.is_given("micro_batch_size") ? "micro_batch_size" : "global_batch_size";
    check.warn(key,
               fmt::format("global_batch_size {} is not a multiple of micro_batch_size {}, so some micro-batches have "
                           "fewer rows, which costs time. The numbers are the same.",
                           *schedule.global_batch_size, *schedule.micro_batch_size));
  }
  if (!schedule.global_batch_size && !schedule.gradient_accumulation_steps && !check.is_wrong("global_batch_size") &&
      !check.is_wrong("gradient_accumulation_steps")) {
    check.mistake("global_batch_size", "not set, and neither is gradient_accumulation_steps. Set one of them.");
  }
  if (!schedule.num_epochs && !schedule.max_steps && !check.is_wrong("num_epochs") && !check.is_wrong("max_steps")) {
    check.mistake("num_epochs", "not set, and neither is max_steps. Set at least one of them.");
  }
}

void check_schedule(const Check& check) {
  const ScheduleSection& schedule = check.profile.schedule;
  if (schedule.lr_scaling != LrScaling::kNone && !schedule.lr_base_batch && !check.is_wrong("lr_base_batch")) {
    check.mistake("lr_scaling", "needs lr_base_batch, the rows per step for which learning_rate was chosen.");
  }
  const auto warn_if = [&](bool is_idle, const char* key, const std::string& why) {
    if (is_idle) check.warn(key, "has no effect " + why);
  };
  warn_if(schedule.lr_scaling == LrScaling::kNone && schedule.lr_base_batch && !check.is_wrong("lr_scaling"),
          "lr_base_batch", "without lr_scaling: sqrt or linear.");
  const bool has_warmup = (check.is_given("warmup_ratio") && schedule.warmup_ratio > 0) ||
                          (check.is_given("warmup_steps") && schedule.warmup_steps.value_or(0) > 0);
  warn_if(schedule.lr_scheduler_type == SchedulerKind::kConstant && has_warmup,
          check.is_given("warmup_steps") ? "warmup_steps" : "warmup_ratio",
          "with lr_scheduler_type: constant. Use constant_with_warmup.");
  const ObjectiveSection& objective = check.profile.objective;
  const bool has_teacher = objective.loss_type == LossType::kKl;
  warn_if(!has_teacher && objective.kd_alpha != ObjectiveSection{}.kd_alpha, "kd_alpha", "without loss_type: kl.");
  warn_if(!has_teacher && objective.kd_temperature != ObjectiveSection{}.kd_temperature, "kd_temperature",
          "without loss_type: kl.");
  warn_if(schedule.lr_scheduler_type != SchedulerKind::kCosineWithMinLr &&
              schedule.min_lr_ratio != ScheduleSection{}.min_lr_ratio,
          "min_lr_ratio",
          fmt::format("with lr_scheduler_type: {}. Use cosine_with_min_lr.", to_string(schedule.lr_scheduler_type)));
  if (schedule.warmup_steps && schedule.max_steps && *schedule.warmup_steps > *schedule.max_steps) {
    check.warn("warmup_steps", "is larger than max_steps: the learning rate never reaches its peak.");
  }
}

void check_adapter(const Check& check) {
  const Profile& profile = check.profile;
  if (profile.adapter.kind != AdapterKind::kNone || check.is_wrong("adapter")) return;
  if (profile.model.is_quantised()) {
    check.mistake("base_precision", to_string(profile.model.base_precision) +
                                        " weights cannot be trained. With adapter: none use bf16 or fp32.");
  }
  if (!profile.adapter.init_adapter.empty()) {
    check.mistake("init_adapter",
                  "there is no adapter with adapter: none. Use adapter: lora, or merge it into the model first "
                  "(lora-train merge).");
  }
  if (profile.optimizer.loraplus_lr_ratio) {
    check.mistake("loraplus_lr_ratio",
                  "there are no B matrices with adapter: none. Use adapter: lora, or remove the key.");
  }
  if (!profile.model.add_tokens.empty()) {
    check.mistake("add_tokens", "new rows are trained only together with an adapter. Use adapter: lora.");
  }
}

void check_new_tokens(const Check& check) {
  const ModelSection& model = check.profile.model;
  if (check.is_wrong("add_tokens") || check.is_wrong("token_init")) return;
  for (const NewToken& token : model.add_tokens) {
    if (model.token_init == TokenInit::kDescription && token.init_text.empty()) {
      check.mistake("add_tokens", "token_init: description needs an init_text for each token, and \"" + token.token +
                                      "\" has none. Write {token: \"" + token.token + "\", init_text: ...}.");
    }
    if (model.token_init != TokenInit::kDescription && !token.init_text.empty()) {
      check.mistake("add_tokens",
                    "init_text of \"" + token.token +
                        "\" has an effect only with token_init: description. Set it, or remove init_text.");
    }
  }
}

void check_evaluation(const Check& check, const ProfileSources& sources) {
  const DataSection& data = check.profile.data;
  const RunSection& run = check.profile.run;
  const bool has_eval = !data.eval_datasets.empty() || data.val_set_size > 0 ||
                        !check.profile.tasks.eval_tasks.empty() || check.is_wrong("eval_datasets") ||
                        check.is_wrong("val_set_size") || check.is_wrong("eval_tasks");
  const auto needs_data = [&](const std::string& key, bool is_set) {
    if (!is_set || has_eval) return;
    if (check.is_shipped(key, sources)) {
      check.findings.note(check.place(key), key,
                          "has no effect without evaluation data (eval_datasets, val_set_size or eval_tasks).");
    } else {
      check.mistake(key, "needs evaluation data. Give eval_datasets, val_set_size or eval_tasks.");
    }
  };
  needs_data("load_best_model_at_end", run.load_best_model_at_end);
  needs_data("early_stopping_patience", run.early_stopping_patience.has_value());
  const auto has_own_cadence = [](const EvalTask& task) { return task.every.has_value(); };
  if (has_eval && run.early_stopping_patience && run.eval_steps.kind == Cadence::Kind::kOff &&
      std::ranges::none_of(check.profile.tasks.eval_tasks, has_own_cadence)) {
    check.mistake("early_stopping_patience", "needs evaluations during the run. Set eval_steps.");
  }
  if (data.val_set_size >= 1 && data.val_set_size != static_cast<double>(static_cast<long long>(data.val_set_size))) {
    check.mistake("val_set_size",
                  "a value of 1 or more is a number of documents. Expected an integer, or a share below 1.");
  }
  if (!has_eval && check.is_given("eval_steps") && run.eval_steps != RunSection{}.eval_steps &&
      run.eval_steps.kind != Cadence::Kind::kOff) {
    check.warn("eval_steps", "has no effect without evaluation data (eval_datasets, val_set_size or eval_tasks).");
  }
  std::set<std::string> names;
  for (const auto& spec : data.eval_datasets) {
    if (!spec.name.empty() && !names.insert(spec.name).second) {
      check.mistake("eval_datasets", fmt::format("two datasets are named \"{}\". Give each its own name.", spec.name));
    }
  }
}

void check_tasks(const Check& check) {
  const TaskSection& section = check.profile.tasks;
  std::set<std::string> names;
  for (const auto& spec : check.profile.data.eval_datasets) names.insert(spec.name);
  bool reads_confidence = check.is_wrong("eval_tasks");
  for (std::size_t i = 0; i < section.eval_tasks.size(); ++i) {
    const EvalTask& task = section.eval_tasks[i];
    const std::string key = fmt::format("eval_tasks[{}]", i);
    if (task.name.empty() || check.is_wrong(key)) continue;
    if (!names.insert(task.name).second) {
      check.findings.mistake(check.place("eval_tasks"), key + ".name",
                             "another task or dataset is named \"" + task.name + "\". Give each its own name.");
    }
    if (task.kind != TaskKind::kConfidence) continue;
    reads_confidence = true;
    if (section.confidence_tokens.empty() && !check.is_wrong("confidence_tokens")) {
      check.findings.mistake(check.place("eval_tasks"), key,
                             "kind: confidence needs confidence_tokens, such as {<conf_0>: 0.0, <conf_100>: 1.0}.");
    }
  }
  if (!section.confidence_tokens.empty() && !reads_confidence)
    check.warn("confidence_tokens", "has no effect without an entry of eval_tasks with kind: confidence.");
}

void check_teacher(const Check& check) {
  const TeacherSection& section = check.profile.teacher;
  if (section.is_server() && !section.teacher.ends_with("/v1")) {
    check.mistake("teacher", fmt::format("got \"{}\", expected a URL that ends in /v1, such as http://host:8000/v1.",
                                         section.teacher));
  }
  if (!section.teacher.empty() || check.is_wrong("teacher")) return;
  const auto needs_teacher = [&](const char* key, const std::string& value) {
    if (!value.empty()) check.mistake(key, "needs a teacher: a URL, or a model folder.");
  };
  needs_teacher("teacher_system", section.teacher_system);
  needs_teacher("student_system", section.student_system);
}

void check_compute(const Check& check) {
  if (check.profile.model.mixes_precisions() && !check.is_wrong("precision")) {
    check.mistake("base_precision",
                  "one other than precision is not built yet. Leave base_precision out; it follows precision.");
  }
  const RunSection& run = check.profile.run;
  const bool recomputes_all = run.gradient_checkpointing == GradientCheckpointing::kAuto ||
                              run.gradient_checkpointing == GradientCheckpointing::kFull;
  if (run.mlp_tile_tokens.value_or(0) == 0 || recomputes_all || check.is_wrong("gradient_checkpointing")) return;
  check.mistake("mlp_tile_tokens",
                "a number needs full recomputation. Set gradient_checkpointing: full, or "
                "mlp_tile_tokens: auto or off.");
}

void check_target_gpu(const Check& check, const ProfileSources& sources) {
  const std::string& target = check.profile.run.target_gpu;
  if (target.empty() || !sources.why_not_gpu) return;
  if (const std::string why = sources.why_not_gpu(target); !why.empty()) check.mistake("target_gpu", why);
}

std::string folder_text(const Field& field, const Profile& profile) {
  const Value value = field.write(profile);
  if (value.is_null()) return "none";
  std::string text = value.text;
  if (text.starts_with('/') || text.starts_with('.')) {
    std::filesystem::path path(text);
    text = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  }
  std::replace(text.begin(), text.end(), '/', '-');
  return text;
}

}  // namespace

void check_consistency(const LoadedProfile& loaded, const ProfileSources& sources,
                       const std::map<std::string, Place>& places, Findings& findings) {
  const Check check{loaded, loaded.profile, places, findings};
  check_required(check, sources);
  check_batch(check);
  check_schedule(check);
  check_adapter(check);
  check_new_tokens(check);
  check_evaluation(check, sources);
  check_tasks(check);
  check_teacher(check);
  check_compute(check);
  check_target_gpu(check, sources);
}

void expand_output_dir(Profile& profile, const Place& place, Findings& findings) {
  const std::string given = profile.run.output_dir;
  std::string out;
  std::size_t at = 0;
  for (std::size_t open = given.find('{'); open != std::string::npos; open = given.find('{', at)) {
    const std::size_t close = given.find('}', open);
    if (close == std::string::npos) {
      findings.mistake(place, "output_dir", "\"" + given.substr(open) + "\" has no closing brace. Expected {key}.");
      return;
    }
    const std::string key = given.substr(open + 1, close - open - 1);
    const Field* field = key == "output_dir" ? nullptr : find_field(key);
    if (!field || !field->is_scalar) {
      const std::string near = nearest_name(key, field_names());
      findings.mistake(place, "output_dir",
                       "{" + key + "} " + (field ? "is a list or a map" : "is not a key") +
                           ". Expected a key with a single value, such as {learning_rate}." +
                           (field || near.empty() ? "" : fmt::format(" Did you mean {{{}}}?", near)));
      return;
    }
    const std::string text = folder_text(*field, profile);
    if (text.find_first_of("{}") != std::string::npos) {  // a written profile is expanded again when it is read
      findings.mistake(place, "output_dir", "{" + key + "} is \"" + text + "\"; a folder name cannot contain a brace.");
      return;
    }
    if (text == "." || text == ".." || text == "~") {
      findings.mistake(place, "output_dir", fmt::format("{{{}}} is \"{}\", which leads to another folder.", key, text));
      return;
    }
    out += given.substr(at, open - at) + text;
    at = close + 1;
  }
  profile.run.output_dir = out + given.substr(at);
}

}  // namespace lora_train
