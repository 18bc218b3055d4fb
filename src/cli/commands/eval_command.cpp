// lora-train eval: the base or an adapter on the evaluation data.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/generation_flags.h"
#include "flags/open_model.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/run_marker.h"
#include "lora_train/storage/run_names.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

nlohmann::ordered_json as_json(const evaluate::EvalResult& result) {
  auto line = nlohmann::ordered_json::parse(report::to_json(result));
  if (const auto& choices = result.choices) {
    line["acc"] = choices->accuracy;
    line["acc_norm"] = choices->normalized_accuracy;
    line["choices_ece"] = choices->ece;
    line["brier"] = choices->brier;
    line["num_rows"] = choices->num_rows;
  }
  if (const auto& match = result.exact_match) {
    line["exact_match"] = match->rate;
    line["num_matched"] = match->num_matched;
    line["num_answers"] = match->num_answers;
    line["num_cut"] = match->num_cut;
  }
  if (result.num_cut > 0) line["num_rows_cut"] = result.num_cut;
  if (result.num_lost > 0) line["num_rows_lost"] = result.num_lost;
  return line;
}

nlohmann::ordered_json as_json(const evaluate::TaskResult& task) {
  auto line = nlohmann::ordered_json::parse(report::to_json(task));
  if (task.num_cut > 0) line["num_cut"] = task.num_cut;
  if (!task.bins.empty()) line["bins"] = nlohmann::ordered_json::array();
  for (const auto& bin : task.bins) line["bins"].push_back({bin.count, bin.confidence, bin.num_right});
  return line;
}

/// The line of eval_answers.jsonl, with the model's reading of the confidence tokens.
nlohmann::ordered_json as_json(const evaluate::TaskAnswer& answer) {
  auto line = nlohmann::ordered_json::parse(report::to_json(answer.answer));
  line.erase("step");
  if (const auto& reading = answer.reading) {
    line["most_likely"] = reading->most_likely;
    line["logits"] = reading->logits;
  }
  return line;
}

/// A table with a line per result.
template <class Result>
struct Table {
  const std::vector<Result>& results;
  std::vector<std::vector<std::string>> columns = {};  ///< a heading and the cells

  void add(const std::string& head, const auto& cell) {
    columns.push_back({head});
    for (const auto& result : results) columns.back().push_back(cell(result));
  }

  void add_unless_zero(const std::string& head, const auto& number) {
    if (std::ranges::all_of(results, [&](const auto& r) { return number(r) == 0; })) return;
    add(head, [&](const auto& r) { return format_count(number(r)); });
  }

  void print() const {
    for (std::size_t row = 0; row <= results.size(); ++row) {
      std::string line;
      for (const auto& column : columns) {
        std::size_t width = 0;
        for (const auto& cell : column) width = std::max(width, cell.size());
        const std::string padding(width - column[row].size(), ' ');
        line += line.empty() ? column[row] + padding : fmt::format("  {}{}", padding, column[row]);
      }
      print_line(line);
    }
  }
};

void print_table(const std::vector<evaluate::EvalResult>& results) {
  Table<evaluate::EvalResult> table{results};
  table.add("name", [](const auto& r) { return r.name; });
  table.add("loss", [](const auto& r) { return fmt::format("{:.4f}", *r.loss); });
  table.add("perplexity", [](const auto& r) {
    return *r.perplexity < 1000 ? fmt::format("{:.4f}", *r.perplexity) : format_count(std::llround(*r.perplexity));
  });
  table.add("token accuracy", [](const auto& r) { return fmt::format("{:.2f}%", 100 * *r.token_accuracy); });
  table.add("ece", [](const auto& r) { return fmt::format("{:.4f}", *r.ece); });
  table.add("tokens", [](const auto& r) { return format_count(r.num_tokens); });
  if (results.front().choices) {
    table.add("acc", [](const auto& r) { return fmt::format("{:.2f}%", 100 * r.choices->accuracy); });
    table.add("acc_norm", [](const auto& r) { return fmt::format("{:.2f}%", 100 * r.choices->normalized_accuracy); });
    table.add("choices ece", [](const auto& r) { return fmt::format("{:.4f}", r.choices->ece); });
    table.add("brier", [](const auto& r) { return fmt::format("{:.4f}", r.choices->brier); });
    table.add("examples", [](const auto& r) { return format_count(r.choices->num_rows); });
  }
  if (results.front().exact_match) {
    table.add("exact match", [](const auto& r) { return fmt::format("{:.2f}%", 100 * r.exact_match->rate); });
    table.add("answers", [](const auto& r) { return format_count(r.exact_match->num_answers); });
    table.add_unless_zero("answers cut", [](const auto& r) { return r.exact_match->num_cut; });
  }
  table.add_unless_zero("examples cut", [](const auto& r) { return r.num_cut; });
  table.add_unless_zero("examples lost", [](const auto& r) { return r.num_lost; });
  table.print();
}

/// Each task fills the columns of its kind.
void print_table(const std::vector<evaluate::TaskResult>& tasks) {
  Table<evaluate::TaskResult> table{tasks};
  table.add("task", [](const auto& task) { return task.name; });
  table.add("kind", [](const auto& task) { return to_string(*task.kind); });
  for (const auto& metric : report::eval_metrics(TaskKind::kConfidence)) {  // has the other kinds' metrics too
    const auto has_it = [&](const auto& task) {
      return std::ranges::count(report::eval_metrics(task.kind), std::string_view(metric.name),
                                &report::EvalMetric::name) > 0;
    };
    if (std::ranges::none_of(tasks, has_it)) continue;
    table.add(metric.name,
              [&](const auto& task) { return has_it(task) ? report::format_eval_figure(metric, task) : ""; });
  }
  table.add("examples", [](const auto& task) { return format_count(task.num_rows); });
  table.add_unless_zero("answers cut", [](const auto& task) { return task.num_cut; });
  table.print();
}

bool is_of_answers(std::string_view start) { return start.starts_with(R"({"name":)"); }

void write_answers(const std::string& file, const std::vector<evaluate::TaskResult>& tasks) {
  std::string text;
  for (const auto& task : tasks) {
    for (const auto& answer : task.answers) text += to_line(as_json(answer)) + "\n";
  }
  write_result(file, text);
}

/// Uses the run's own data unless a profile names other data.
void add_own_profile(ProfileFlags& flags, const std::string& adapter) {
  const std::filesystem::path profile = std::filesystem::path(adapter) / storage::kProfileFile;
  std::error_code code;
  if (adapter.empty() || flags.has_profile() || !storage::read_marker(adapter) ||
      !std::filesystem::exists(profile, code))
    return;
  log_info("profile: {}, the run's own", profile.string());
  flags.add_profile(profile.string());
}

void check_flags(const CommandParser& parser, const evaluate::EvalFlags& tasks, bool has_max_new_tokens) {
  if (tasks.choices && tasks.exact_match) parser.refuse("--choices", "give --choices or --exact-match, not both.");
  if (has_max_new_tokens && !tasks.exact_match) parser.refuse("--max-new-tokens", "needs --exact-match.");
}

evaluate::Evaluation evaluate(const evaluate::EvalRequest& request) {
  try {
    return load_engine().evaluate(request);
  } catch (const StopError& stop) {
    if (request.world.rank > 0) throw PeerError(stop.where(), stop.message(), stop.kind(), stop.exit_code());
    throw StopError(stop.where(), "asked to stop; no figures, since they need the whole evaluation");
  }
}

/// The flags of the command.
struct EvalCommandFlags {
  std::string adapter, answers_file;
  evaluate::EvalFlags tasks;
  bool allow_other_base = false;
};

evaluate::EvalRequest make_request(const CommandParser& parser, ProfileFlags& profile_flags, EvalCommandFlags& flags) {
  add_own_profile(profile_flags, flags.adapter);
  LoadedProfile loaded = load_with_adapter(profile_flags, flags.adapter);
  const DataSection& data = loaded.profile.data;
  const bool has_split = data.val_set_size > 0 && !data.datasets.empty();
  const bool has_tasks = !loaded.profile.tasks.eval_tasks.empty();
  if (data.eval_datasets.empty() && !has_split && !has_tasks) {
    throw ConfigError("eval_datasets",
                      "nothing to evaluate on; expected eval_datasets, --eval-data FILE, eval_tasks, or datasets with "
                      "val_set_size.");
  }
  if (!flags.answers_file.empty() && !has_tasks) parser.refuse("--answers", "needs eval_tasks in the profile.");
  refuse_foreign("eval", flags.answers_file, is_of_answers);
  if (!flags.adapter.empty()) {
    check_adapter_base(flags.adapter, storage::resolve_model(loaded.profile.model.path), flags.allow_other_base);
  }
  return {.profile = loaded.profile,
          .adapter = flags.adapter,
          .flags = flags.tasks,
          .with_answers = !flags.answers_file.empty(),
          .quiet = parser.common().quiet};
}

void print_results(const evaluate::Evaluation& results, bool json) {
  if (json) {
    for (const auto& result : results.sets) print_line(to_line(as_json(result)));
    for (const auto& task : results.tasks) print_line(to_line(as_json(task)));
    return;
  }
  if (!results.sets.empty()) print_table(results.sets);
  if (!results.sets.empty() && !results.tasks.empty()) print_line("");
  if (!results.tasks.empty()) print_table(results.tasks);
}

}  // namespace

int run_eval(const std::vector<std::string>& arguments) {
  const launch::World world = launch::world_from(process_environment);
  keep_stop_requests(world.launcher != launch::Launcher::kNone);
  CommandParser parser("eval",
                       "Measures loss, token accuracy, calibration error and answers of a model, with or without an "
                       "adapter, on eval_datasets and eval_tasks.");
  ProfileFlags profile_flags(parser,
                             {kModelFlag,
                              kEvalDataFlag,
                              {"--max-samples", "eval_max_samples", "use at most this many examples of each dataset"}});
  EvalCommandFlags flags;
  parser.add("--adapter", flags.adapter, "DIR",
             "PEFT folder, or output_dir of a run; without it the base model is evaluated");
  add_allow_other_base(parser, flags.allow_other_base);
  parser.add_flag("--choices", flags.tasks.choices,
                  "multiple choice on examples {\"prompt\" or \"messages\", \"choices\": [...], \"answer\": "
                  "index or text}: accuracy, calibration and Brier score");
  const CLI::Option* const exact_match = parser
                                             .add("--exact-match", flags.tasks.answer_regex, "[REGEX]",
                                                  "compare greedy answers with the examples' own; a regex "
                                                  "extracts the answer from both: '#### (-?[0-9.,]+)'")
                                             ->expected(0, 1);
  const CLI::Option* const max_new_tokens =
      parser.add_integer("--max-new-tokens", flags.tasks.max_new_tokens, 1, kMaxNewTokens,
                         "maximum number of tokens per --exact-match answer (default 256)");
  parser.add("--answers", flags.answers_file, "FILE", "write the model's answers to eval_tasks into this .jsonl file");
  const RanksFlag ranks(parser, world, "split the examples across N processes on this host, one per GPU");
  if (!parser.parse(arguments)) return 0;
  flags.tasks.exact_match = exact_match->count() > 0;
  check_flags(parser, flags.tasks, max_new_tokens->count() > 0);

  if (ranks.starts_ranks()) return ranks.start("eval", arguments);
  evaluate::EvalRequest request;
  try {
    request = make_request(parser, profile_flags, flags);
  } catch (...) {
    if (world.size == 1) throw;
    request.failure = std::current_exception();
  }
  request.world = world;
  const evaluate::Evaluation results = evaluate(request);
  if (world.rank > 0) return 0;
  if (!flags.answers_file.empty()) write_answers(flags.answers_file, results.tasks);
  print_results(results, parser.common().json);
  return 0;
}

}  // namespace lora_train::cli
