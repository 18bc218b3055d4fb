#include "consistency.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/layers.h"

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
  /// Nothing is concluded from a value that could not be read.
  void mistake_if(bool is_it, const std::string& key, const std::string& what) const {
    if (is_it && !is_wrong(key)) findings.mistake(place(key), key, what);
  }
  void warn_if(bool is_it, const std::string& key, const std::string& what) const {
    if (is_it) findings.warn(place(key), key, what);
  }
};

void check_required(const Check& check, const ProfileSources& sources) {
  const auto require = [&](bool is_missing, const std::string& key, const std::string& what) {
    if (!is_missing || check.is_wrong(key)) return;
    const std::string& origin = check.loaded.origin.at(key);  // of the key without a value, else the file
    const std::string file = sources.profiles.empty() ? "" : sources.profiles.back();
    check.findings.mistake(origin == "default" ? Place{file, 0} : parse_place(origin), key, "missing. " + what);
  };
  require(sources.needs_model && check.profile.model.path.empty(), "model",
          "Name a Hugging Face folder, or org/name from the local cache (`model: ...` or --model).");
  require(sources.needs_datasets && check.profile.data.datasets.empty(), "datasets",
          "Name training data (`datasets: [{path: train.jsonl}]` or --train-data).");
}

void check_batch(const Check& check) {
  const ScheduleSection& schedule = check.profile.schedule;
  const auto &rows = schedule.micro_batch_size, &batch = schedule.global_batch_size,
             &passes = schedule.gradient_accumulation_steps;
  const bool are_rows = schedule.batch_unit == BatchUnit::kRows || !check.profile.data.packing;
  check.mistake_if(!are_rows && passes && !rows && !check.is_wrong("micro_batch_size"), "batch_unit",
                   "documents with gradient_accumulation_steps needs a number for micro_batch_size; or set "
                   "global_batch_size instead.");
  if (are_rows && rows && batch && *batch % *rows != 0) {
    check.warn_if(
        true, check.is_given("micro_batch_size") ? "micro_batch_size" : "global_batch_size",
        fmt::format("global_batch_size {} is not a multiple of micro_batch_size {}, so some micro-batches have "
                    "fewer rows, which costs time. The numbers are the same.",
                    *batch, *rows));
  }
  check.mistake_if(!batch && !passes && !check.is_wrong("gradient_accumulation_steps"), "global_batch_size",
                   "not set, and neither is gradient_accumulation_steps. Set one of them.");
  check.mistake_if(!schedule.num_epochs && !schedule.max_steps && !check.is_wrong("max_steps"), "num_epochs",
                   "not set, and neither is max_steps. Set at least one of them.");
}

void check_schedule(const Check& check) {
  const ScheduleSection& schedule = check.profile.schedule;
  const SchedulerKind kind = schedule.lr_scheduler_type;
  const bool scales = schedule.lr_scaling != LrScaling::kNone;
  check.mistake_if(scales && !schedule.lr_base_batch && !check.is_wrong("lr_base_batch"), "lr_scaling",
                   "needs lr_base_batch, the rows per step for which learning_rate was chosen.");
  check.warn_if(!scales && schedule.lr_base_batch && !check.is_wrong("lr_scaling"), "lr_base_batch",
                "has no effect without lr_scaling: sqrt or linear.");
  const bool has_warmup = (check.is_given("warmup_ratio") && schedule.warmup_ratio > 0) ||
                          (check.is_given("warmup_steps") && schedule.warmup_steps.value_or(0) > 0);
  check.warn_if(kind == SchedulerKind::kConstant && has_warmup,
                check.is_given("warmup_steps") ? "warmup_steps" : "warmup_ratio",
                "has no effect with lr_scheduler_type: constant. Use constant_with_warmup.");
  const ObjectiveSection& objective = check.profile.objective;
  const bool has_teacher = objective.loss_type == LossType::kKl;
  constexpr const char* kWithoutTeacher = "has no effect without loss_type: kl.";
  check.warn_if(!has_teacher && objective.kd_alpha != ObjectiveSection{}.kd_alpha, "kd_alpha", kWithoutTeacher);
  check.warn_if(!has_teacher && objective.kd_temperature != ObjectiveSection{}.kd_temperature, "kd_temperature",
                kWithoutTeacher);
  check.warn_if(kind != SchedulerKind::kCosineWithMinLr && schedule.min_lr_ratio != ScheduleSection{}.min_lr_ratio,
                "min_lr_ratio",
                fmt::format("has no effect with lr_scheduler_type: {}. Use cosine_with_min_lr.", to_string(kind)));
  check.warn_if(schedule.warmup_steps && schedule.max_steps && *schedule.warmup_steps > *schedule.max_steps,
                "warmup_steps", "is larger than max_steps: the learning rate never reaches its peak.");
}

void check_adapter(const Check& check) {
  const Profile& profile = check.profile;
  if (profile.adapter.kind != AdapterKind::kNone || check.is_wrong("adapter")) return;
  check.mistake_if(
      profile.model.is_quantised(), "base_precision",
      to_string(profile.model.base_precision) + " weights cannot be trained. With adapter: none use bf16 or fp32.");
  check.mistake_if(!profile.adapter.init_adapter.empty(), "init_adapter",
                   "there is no adapter with adapter: none. Use adapter: lora, or merge it into the model first "
                   "(lora-train merge).");
  check.mistake_if(profile.optimizer.loraplus_lr_ratio.has_value(), "loraplus_lr_ratio",
                   "there are no B matrices with adapter: none. Use adapter: lora, or remove the key.");
  check.mistake_if(!profile.model.add_tokens.empty(), "add_tokens",
                   "new rows are trained only together with an adapter. Use adapter: lora.");
}

void check_new_tokens(const Check& check) {
  const ModelSection& model = check.profile.model;
  const bool needs_text = model.token_init == TokenInit::kDescription;
  for (const NewToken& token : model.add_tokens) {
    check.mistake_if(needs_text == token.init_text.empty() && !check.is_wrong("token_init"), "add_tokens",
                     fmt::format("\"{}\" has {} init_text. Expected one for each token with token_init: description, "
                                 "and none without.",
                                 token.token, needs_text ? "no" : "an"));
  }
}

void check_evaluation(const Check& check, const ProfileSources& sources) {
  constexpr const char* kWithoutData =
      "has no effect without evaluation data (eval_datasets, val_set_size or eval_tasks).";
  const DataSection& data = check.profile.data;
  const RunSection& run = check.profile.run;
  const std::vector<EvalTask>& tasks = check.profile.tasks.eval_tasks;
  const bool has_eval = !data.eval_datasets.empty() || data.val_set_size > 0 || !tasks.empty() ||
                        check.is_wrong("eval_datasets") || check.is_wrong("val_set_size") ||
                        check.is_wrong("eval_tasks");
  const auto needs_data = [&](const std::string& key, bool is_set) {
    if (!is_set || has_eval) return;
    if (check.is_shipped(key, sources)) return check.findings.note(check.place(key), key, kWithoutData);
    check.mistake_if(true, key, "needs evaluation data. Give eval_datasets, val_set_size or eval_tasks.");
  };
  const bool never_evaluates = run.eval_steps.kind == Cadence::Kind::kOff;
  needs_data("load_best_model_at_end", run.load_best_model_at_end);
  needs_data("early_stopping_patience", run.early_stopping_patience.has_value());
  const auto has_own_cadence = [](const EvalTask& task) { return task.every.has_value(); };
  check.mistake_if(
      has_eval && run.early_stopping_patience && never_evaluates && std::ranges::none_of(tasks, has_own_cadence),
      "early_stopping_patience", "needs evaluations during the run. Set eval_steps.");
  check.mistake_if(data.val_set_size >= 1 && data.val_set_size != std::floor(data.val_set_size), "val_set_size",
                   "a value of 1 or more is a number of documents. Expected an integer, or a share below 1.");
  check.warn_if(
      !has_eval && check.is_given("eval_steps") && run.eval_steps != RunSection{}.eval_steps && !never_evaluates,
      "eval_steps", kWithoutData);
  std::set<std::string> names;
  for (const auto& spec : data.eval_datasets) {
    if (spec.name.empty() || names.insert(spec.name).second) continue;
    check.findings.mistake(check.place("eval_datasets"), "eval_datasets",
                           fmt::format("two datasets are named \"{}\". Give each its own name.", spec.name));
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
  check.warn_if(!section.confidence_tokens.empty() && !reads_confidence, "confidence_tokens",
                "has no effect without an entry of eval_tasks with kind: confidence.");
}

void check_teacher(const Check& check) {
  const TeacherSection& section = check.profile.teacher;
  check.mistake_if(
      section.is_server() && !section.teacher.ends_with("/v1"), "teacher",
      fmt::format("got \"{}\", expected a URL that ends in /v1, such as http://host:8000/v1.", section.teacher));
  const bool has_none = section.teacher.empty() && !check.is_wrong("teacher");
  constexpr const char* kNeedsTeacher = "needs a teacher: a URL, or a model folder.";
  check.mistake_if(has_none && !section.teacher_system.empty(), "teacher_system", kNeedsTeacher);
  check.mistake_if(has_none && !section.student_system.empty(), "student_system", kNeedsTeacher);
}

void check_compute(const Check& check, const ProfileSources& sources) {
  check.mistake_if(check.profile.model.mixes_precisions() && !check.is_wrong("precision"), "base_precision",
                   "one other than precision is not built yet. Leave base_precision out; it follows precision.");
  const RunSection& run = check.profile.run;
  const bool recomputes_all = run.gradient_checkpointing == GradientCheckpointing::kAuto ||
                              run.gradient_checkpointing == GradientCheckpointing::kFull;
  check.mistake_if(
      run.mlp_tile_tokens.value_or(0) != 0 && !recomputes_all && !check.is_wrong("gradient_checkpointing"),
      "mlp_tile_tokens",
      "a number needs full recomputation. Set gradient_checkpointing: full, or mlp_tile_tokens: auto or off.");
  if (run.target_gpu.empty() || !sources.why_not_gpu) return;
  const std::string why = sources.why_not_gpu(run.target_gpu);
  check.mistake_if(!why.empty(), "target_gpu", why);
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
  check_compute(check, sources);
}

void expand_output_dir(Profile& profile, const Place& place, Findings& findings) {
  const auto value_of = [&](const std::string& key) {
    const Field* field = key == "output_dir" ? nullptr : find_field(key);
    if (!field || !field->is_scalar) {
      throw ConfigError("", "{{{}}} is {}. Expected a key with a single value, such as {{learning_rate}}.{}", key,
                        field ? "a list or a map" : "not a key",
                        field ? "" : did_you_mean(nearest_names(key, field_names())));
    }
    const std::string text = folder_text(*field, profile);
    if (text.find_first_of("{}") != std::string::npos)  // a written profile is expanded again when it is read
      throw ConfigError("", "{{{}}} is \"{}\"; a folder name cannot contain a brace.", key, text);
    if (text == "." || text == ".." || text == "~")
      throw ConfigError("", "{{{}}} is \"{}\", which leads to another folder.", key, text);
    return text;
  };
  try {
    profile.run.output_dir = replace_braced(profile.run.output_dir, "{", value_of);
  } catch (const ConfigError& error) {
    findings.mistake(place, "output_dir", error.message());
  }
}

}  // namespace lora_train
