#include "lora_train/teach/distill.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/record_fields.h"
#include "lora_train/base/text.h"
#include "lora_train/data/read/dataset_files.h"
#include "lora_train/hub/http/url.h"
#include "lora_train/report/run_log.h"
#include "lora_train/storage/run_names.h"

template <>
constexpr auto lora_train::record_fields<lora_train::teach::TeacherPhase>() {
  using P = teach::TeacherPhase;
  return std::tuple{field("teacher", &P::teacher),
                    field("answers", &P::answers),
                    field("rows", &P::examples),
                    field("heldout_rows", &P::held_out_examples),
                    field("prompt_tokens", &P::prompt_tokens),
                    field("completion_tokens", &P::completion_tokens),
                    field("seconds", &P::seconds),
                    field("cost_usd", &P::cost_usd)};
}

namespace lora_train::teach {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The task that compares answers with the teacher's, and the dataset of its examples.
constexpr const char* kAgreement = "agreement";
constexpr const char* kHeldOut = "heldout";

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::optional<double> sum(const std::optional<double>& one, const std::optional<double>& other) {
  if (!one && !other) return std::nullopt;
  return one.value_or(0) + other.value_or(0);
}

double total_s(const DistillRecord& record) { return record.teacher.seconds + record.training_s.value_or(0); }

std::optional<double> total_cost(const DistillRecord& record) {
  return sum(record.teacher.cost_usd, record.training_cost_usd);
}

std::string share(const std::optional<double>& value) {
  return value ? fmt::format("{:.2f}%", 100 * *value) : std::string("not measured");
}

std::string table_line(const std::string& name, double seconds, const std::optional<double>& cost,
                       const std::string& what) {
  return fmt::format("{:<10} {:>12} {:>10}   {}\n", name, format_duration(seconds),
                     cost ? fmt::format("${:.2f}", *cost) : "no price", what);
}

/// The prompts of `distill`: those to train on, and those held out to compare the student with its teacher.
struct PromptSets {
  std::vector<data::ChatQuestion> training;
  std::vector<data::ChatQuestion> held_out;  ///< may be empty
};

std::vector<data::ChatQuestion> read_all(const std::vector<DatasetSpec>& specs, data::DatasetUse use,
                                         const std::string& prompt_template) {
  std::vector<data::ChatQuestion> all;
  for (const DatasetSpec& spec : specs) {
    const std::size_t begin = all.size();
    for (const auto& file : data::dataset_files(spec, use)) {
      std::vector<data::ChatQuestion> questions = data::read_questions(file, prompt_template);
      std::ranges::move(questions, std::back_inserter(all));
    }
    if (spec.max_samples) all.resize(std::min(all.size(), begin + static_cast<std::size_t>(*spec.max_samples)));
  }
  return all;
}

std::string place_in_order(const data::ChatQuestion& prompt, std::int64_t seed) {
  return hash128_hex(fmt::format("{}:{}", seed, prompt.messages));
}

/// Moves a part of the training prompts to the held-out ones.
void hold_out(PromptSets& sets, double val_set_size, std::int64_t seed) {
  std::set<std::string> order;
  for (const data::ChatQuestion& prompt : sets.training) order.insert(place_in_order(prompt, seed));
  const auto num_prompts = static_cast<double>(order.size());
  const double wanted = std::max(1.0, std::round(val_set_size < 1 ? val_set_size * num_prompts : val_set_size));
  if (wanted >= num_prompts) {
    throw ConfigError("val_set_size", "holds out all prompts: datasets has only {}.",
                      count_of(static_cast<std::int64_t>(num_prompts), "prompt"));
  }
  const std::string first_trained = *std::next(order.begin(), static_cast<std::ptrdiff_t>(wanted));
  const auto is_trained = [&](const data::ChatQuestion& prompt) {
    return place_in_order(prompt, seed) >= first_trained;
  };
  const auto held_out = std::stable_partition(sets.training.begin(), sets.training.end(), is_trained);
  std::move(held_out, sets.training.end(), std::back_inserter(sets.held_out));
  sets.training.erase(held_out, sets.training.end());
}

/// Reads the examples of datasets like data::read_questions. The held-out ones come from eval_datasets, or are the part
/// of datasets that val_set_size names, chosen by the text of the prompt and the seed, so that equal prompts stay
/// together. Throws as reading does, and ConfigError if val_set_size leaves nothing to train on.
PromptSets read_prompt_sets(const Profile& profile, const std::string& prompt_template) {
  const DataSection& data = profile.data;
  PromptSets sets;
  sets.training = read_all(data.datasets, data::DatasetUse::kTraining, prompt_template);
  sets.held_out = read_all(data.eval_datasets, data::DatasetUse::kEvaluation, prompt_template);
  if (data.val_set_size > 0) hold_out(sets, data.val_set_size, profile.run.seed);
  return sets;
}

fs::path record_file(const fs::path& output_dir) { return output_dir / "distill.json"; }

std::string examples_file(const Profile& profile, const char* name) {
  return (fs::path(profile.run.output_dir) / name).string();
}
std::string training_examples(const Profile& profile) { return examples_file(profile, "teacher.jsonl"); }
std::string held_out_examples(const Profile& profile) { return examples_file(profile, "teacher_heldout.jsonl"); }

bool holds_out(const DataSection& data) { return !data.eval_datasets.empty() || data.val_set_size > 0; }

/// Held-out prompts are answered once.
TeachRequest held_out_request(const DistillRequest& request) {
  TeachRequest teach = request.teach;
  teach.job.samples = 1;
  teach.filters.agree = 0;
  teach.filters.agree_on.clear();
  teach.job.output = held_out_examples(request.loaded.profile);
  return teach;
}

/// The profile that loads the teacher: the student's device and precision, without its adapter.
Profile profile_of_teacher(const Profile& student) {
  Profile profile = student;
  profile.model = ModelSection{};
  profile.model.path = student.teacher.teacher;
  profile.model.precision = student.model.precision;
  profile.adapter.init_adapter.clear();
  return profile;
}

class TeacherRun {
 public:
  explicit TeacherRun(const DistillRequest& request)
      : request_(request), profile_(request.loaded.profile), server_(server_options(request)) {
    const bool is_server = profile_.teacher.is_server();
    record_.output_dir = profile_.run.output_dir;
    record_.teacher.teacher = is_server ? hub::shown_url(profile_.teacher.teacher) : profile_.teacher.teacher;
    if (!is_server) teacher_ = request.open_teacher(profile_of_teacher(profile_));
  }

  int run() {
    PromptSets prompts = read_prompt_sets(profile_, request_.prompt_template);
    log_info("{} for training, {} held out", count_of(prompts.training.size(), "prompt"),
             format_count(prompts.held_out.size()));
    make_folders(record_.output_dir);
    earlier_ = read_teacher_phase(record_.output_dir);
    const auto begin = std::chrono::steady_clock::now();
    const auto save = [&] {
      const std::chrono::duration<double> now = std::chrono::steady_clock::now() - begin;
      add_up(asked_ > 0 ? now.count() : 0);
      write_record(record_);
    };
    try {
      const int code = ask_both(std::move(prompts));
      save();
      return code;
    } catch (...) {
      server_.log_end();
      save();
      throw;
    }
  }

 private:
  static ServerOptions server_options(const DistillRequest& request) {
    ServerOptions options = request.server;
    options.url = request.loaded.profile.teacher.teacher;
    options.model = request.teach.teacher_model;
    if (options.model.empty()) options.model = model_of_answers(training_examples(request.loaded.profile));
    options.log = examples_file(request.loaded.profile, "teacher.log");
    return options;
  }

  int ask_both(PromptSets prompts) {
    TeachRequest training = request_.teach;
    training.job.output = training_examples(profile_);
    const TeachResult trained = ask(training, std::move(prompts.training));
    record_.teacher.examples = trained.examples.num_written;
    if (trained.exit_code != 0 || !holds_out(profile_.data)) return trained.exit_code;
    TeachRequest held_out = held_out_request(request_);
    if (held_out.teacher_model.empty()) held_out.teacher_model = model_of_answers(training.job.output);
    const TeachResult result = ask(held_out, std::move(prompts.held_out));
    record_.teacher.held_out_examples = result.examples.num_written;
    return result.exit_code;
  }

  TeachResult ask(const TeachRequest& teach, std::vector<data::ChatQuestion> prompts) {
    TeachInput input{std::move(prompts)};
    input.before_asking = [this] {
      ++asked_;
      if (profile_.teacher.is_server()) server_.get_ready();
    };
    const TeachResult result =
        profile_.teacher.is_server()
            ? teach_by_server(profile_.teacher.teacher, teach, request_.sampling, std::move(input), request_.quiet)
            : teach_by_model(*teacher_, teach, request_.sampling, std::move(input), request_.quiet);
    TeacherPhase& phase = record_.teacher;
    phase.answers += result.examples.num_answers;
    phase.prompt_tokens += result.examples.prompt_tokens;
    phase.completion_tokens += result.examples.completion_tokens;
    return result;
  }

  /// The cost of tokens, or of this machine's GPUs that the teacher used.
  void add_up(double seconds) {
    TeacherPhase& phase = record_.teacher;
    phase.seconds = earlier_.seconds + seconds;
    if (const auto cost = request_.teach.prices.cost(phase)) {
      phase.cost_usd = cost;
      return;
    }
    const bool is_here = server_.is_started() || !profile_.teacher.is_server();
    const auto price = is_here ? profile_.run.gpu_price_per_hour : std::nullopt;
    const double num_gpus = profile_.teacher.is_server() ? static_cast<double>(server_.num_gpus()) : 1;
    phase.cost_usd = earlier_.cost_usd;
    if (price) phase.cost_usd = earlier_.cost_usd.value_or(0) + *price * num_gpus * seconds / 3600;
  }

  const DistillRequest& request_;
  const Profile& profile_;
  std::unique_ptr<LocalTeacher> teacher_;  ///< null: a server
  TeacherServer server_;
  DistillRecord record_;
  TeacherPhase earlier_;
  int asked_ = 0;  ///< prompt sets, out of both, with open questions
};

/// The given profile, without the keys that distill replaces.
ProfileSources sources_as_given(const ProfileSources& given) {
  ProfileSources sources = given;
  std::erase_if(sources.overrides, [](const Override& setting) {
    const std::string key = setting.path.substr(0, setting.path.find_first_of(".["));  // of "datasets[0].path"
    const bool is_data = key == "datasets" || key == "eval_datasets";
    return (setting.literal && is_data) || key == "teacher" || key == "teacher_system" || key == "student_system";
  });
  for (const char* const key : {"teacher", "teacher_system", "student_system"})
    sources.overrides.push_back({key, "null", "distill"});
  return sources;
}

}  // namespace

TeacherPhase read_teacher_phase(const fs::path& output_dir) {
  TeacherPhase phase;
  const fs::path file = record_file(output_dir);
  if (path_kind(file) == PathKind::kNone) return phase;
  const Json record = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  try {
    get_fields(record.at("teacher"), phase);
  } catch (const Json::exception&) {
    throw ConfigError(file.string(), "was not written by distill: name another output_dir, or move the file");
  }
  return phase;
}

void write_record(const DistillRecord& record) {
  write_file_atomic(record_file(record.output_dir), to_json(record) + "\n");
}

void add_training(DistillRecord& record) {
  const report::RunRecord run = report::read_run(record.output_dir);
  record.training_s = run.figures.wall_s;
  record.training_cost_usd = run.figures.cost_usd;
  record.steps = run.figures.step;
  record.eval_loss = run.figures.eval_loss;
  if (!run.adapter.empty()) record.adapter = run.adapter;
  for (const report::LoggedEval& eval : run.evals) {
    if (eval.name != kAgreement || !eval.kind) continue;
    if (eval.step == 0) record.agreement_before = eval.accuracy;
    const bool is_of_result = run.adapter_step ? eval.step == *run.adapter_step : eval.step > 0;
    if (is_of_result) record.agreement_after = eval.accuracy;
  }
}

std::string to_json(const DistillRecord& record) {
  Json teacher;
  put_fields(teacher, record.teacher);
  const Json json = {{"output_dir", record.output_dir},
                     {"teacher", teacher},
                     {"training",
                      {{"steps", or_null(record.steps)},
                       {"eval_loss", or_null(record.eval_loss)},
                       {"seconds", or_null(record.training_s)},
                       {"cost_usd", or_null(record.training_cost_usd)}}},
                     {"agreement",
                      {{"rows", record.teacher.held_out_examples},
                       {"before", or_null(record.agreement_before)},
                       {"after", or_null(record.agreement_after)}}},
                     {"seconds", total_s(record)},
                     {"cost_usd", or_null(total_cost(record))},
                     {"adapter", record.adapter.empty() ? Json() : Json(record.adapter)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_table(const DistillRecord& record) {
  const TeacherPhase& teacher = record.teacher;
  std::string training = fmt::format("{} on {}", count_of(static_cast<std::int64_t>(record.steps.value_or(0)), "step"),
                                     count_of(teacher.examples, "example"));
  if (record.eval_loss) training += fmt::format(", loss {:.4f} on the held-out ones", *record.eval_loss);
  std::string text = fmt::format("{:<10} {:>12} {:>10}\n", "phase", "time", "cost");
  text += table_line("teacher", teacher.seconds, teacher.cost_usd,
                     fmt::format("{}, {} prompt and {} answer tokens", count_of(teacher.answers, "answer"),
                                 format_count(teacher.prompt_tokens), format_count(teacher.completion_tokens)));
  text += table_line("training", record.training_s.value_or(0), record.training_cost_usd, training);
  text += table_line("all", total_s(record), total_cost(record), "");
  text = text.substr(0, text.find_last_not_of(" \n") + 1) + "\n";
  if (teacher.held_out_examples > 0) {
    text += "agreement with the teacher on " + count_of(teacher.held_out_examples, "held-out prompt") + ": " +
            share(record.agreement_before) + " before training, " + share(record.agreement_after) + " after\n";
  } else {
    text +=
        "no prompts are held out, so the student is not compared with its teacher: give eval_datasets or "
        "val_set_size\n";
  }
  if (record.adapter.empty()) return text;
  const bool is_model = fs::path(record.adapter).filename() == storage::kModelFolder;
  text += fmt::format("result: {}; try it: {}\nreport: {}\n", record.adapter,
                      shell_line({"lora-train", "chat", is_model ? "--model" : "--adapter",
                                  is_model ? record.adapter : record.output_dir}),
                      (fs::path(record.output_dir) / storage::kPageFile).string());
  return text;
}

int run_teacher_phase(const DistillRequest& request) { return TeacherRun(request).run(); }

ProfileSources sources_of_training(const DistillRequest& request) {
  const Profile& profile = request.loaded.profile;
  ProfileSources sources = sources_as_given(request.sources);
  const auto set = [&](const char* key, const Json& value) {
    sources.overrides.push_back({key, value.dump(), "distill"});
  };
  set("datasets", Json::array({{{"path", training_examples(profile)}}}));
  if (holds_out(profile.data)) {
    set("eval_datasets", Json::array({{{"path", held_out_examples(profile)}, {"name", kHeldOut}}}));
    Json task = {{"name", kAgreement}, {"kind", "exact_match"}, {"path", held_out_examples(profile)}};
    task["max_new_tokens"] = request.teach.max_tokens;
    if (!request.match.empty()) task["regex"] = request.match;
    set("eval_tasks[+]", task);
  }
  return sources;
}

void add_agreement_task(LoadedProfile& loaded, Findings& findings) {
  Profile& profile = loaded.profile;
  if (!holds_out(profile.data)) return;
  for (const EvalTask& task : profile.tasks.eval_tasks) {
    if (task.name != kAgreement && task.name != kHeldOut) continue;
    findings.mistake(parse_place(loaded.origin.at("eval_tasks")), "eval_tasks",
                     fmt::format("\"{}\" is a name that distill uses. Give the task another one.", task.name));
    return;
  }
  EvalTask task;
  task.name = kAgreement;
  task.data = (profile.data.eval_datasets.empty() ? profile.data.datasets : profile.data.eval_datasets).front();
  profile.tasks.eval_tasks.push_back(task);
}

void check_prompt_specs(const LoadedProfile& loaded, Findings& findings) {
  const DataSection& data = loaded.profile.data;
  for (const auto& [key, specs] : {std::pair("datasets", &data.datasets), {"eval_datasets", &data.eval_datasets}}) {
    const Place place = parse_place(loaded.origin.at(key));
    for (std::size_t i = 0; i < specs->size(); ++i) {
      const DatasetSpec& spec = (*specs)[i];
      const std::string entry = fmt::format("{}[{}]", key, i);
      const auto refuse = [&](const char* member, const char* instead) {
        findings.mistake(place, fmt::format("{}.{}", entry, member),
                         std::string("is for examples with answers, but distill reads prompts. ") + instead);
      };
      if (spec.type != DatasetType::kAuto) refuse("type", "Remove it.");
      if (!spec.field_map.empty()) refuse("field_map", "Give --template FILE, which makes the prompt from the fields.");
      if (spec.weight != 1) refuse("weight", "Remove it, or give --samples N.");
    }
  }
}

}  // namespace lora_train::teach
