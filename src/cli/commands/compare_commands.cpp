// Commands on several runs, side by side: compare, ablate, sweep.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/open_model.h"
#include "flags/profile_check.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/python_packages.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/launch/world.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/report/ablation/ablation_report.h"
#include "lora_train/report/comparison.h"
#include "lora_train/report/run_log.h"
#include "lora_train/report/run_page.h"
#include "lora_train/storage/model_file.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {

// compare: runs side by side, from their output folders.
namespace {

namespace fs = std::filesystem;

/// A folder after --csv was meant as a DIR.
void take_back_folder(std::string& file, std::vector<std::string>& folders) {
  if (file.empty() || !fs::is_directory(file)) return;
  folders.push_back(file);
  file.clear();
}

}  // namespace

int run_compare(const std::vector<std::string>& arguments) {
  CommandParser parser("compare",
                       "Shows the results of runs and the profile keys that differ, side by side. A DIR is the "
                       "output_dir of a run, or a folder of such folders.");
  std::vector<std::string> folders, columns;
  std::string sort_key, csv_file, html_file;
  bool is_reversed = false, writes_reports = false;
  parser.add("DIR", folders, "", "output folders of runs, or folders that contain some");
  parser.add("--sort", sort_key, "KEY",
             "sort by a column, such as eval_loss, tokens_per_s or learning_rate; -KEY: largest first");
  parser.add_flag("--reverse", is_reversed, "with --sort: largest first");
  parser
      .add("--columns", columns, "A,B,C",
           "the columns to show, such as learning_rate,eval_loss: results and keys of the profile")
      ->delimiter(',')
      ->allow_extra_args(false);
  const CLI::Option* const csv =
      parser.add("--csv", csv_file, "FILE", "write CSV to FILE, or to stdout")->expected(0, 1);
  parser.add("--html", html_file, "FILE", "write a page with all curves, for a browser");
  parser.add_flag("--report", writes_reports,
                  "rewrite report.html and curves.png of each run, for example while it runs or after it was killed");
  if (!parser.parse(arguments)) return 0;
  take_back_folder(csv_file, folders);
  const bool prints_csv = csv->count() > 0 && csv_file.empty();
  if (folders.empty()) parser.refuse("DIR", "missing; expected one or more folders.");
  if (prints_csv && parser.common().json) parser.refuse("--csv", "cannot share stdout with --json; give --csv a FILE.");
  if (is_reversed && sort_key.empty()) parser.refuse("--reverse", "needs --sort KEY, whose order it reverses.");
  parser.refuse_special_file("--csv", csv_file);
  parser.refuse_special_file("--html", html_file);
  refuse_foreign("compare", csv_file, report::is_comparison_csv);
  refuse_foreign("compare", html_file, report::is_comparison_page);

  report::Comparison comparison = report::compare_runs(find_all_runs(folders));
  for (const auto& run : comparison.runs) {
    if (writes_reports) report::write_report(run.folder);
  }
  if (!columns.empty()) report::choose_columns(comparison, columns);
  if (is_reversed) sort_key = sort_key.starts_with("-") ? sort_key.substr(1) : "-" + sort_key;
  if (!sort_key.empty()) report::sort_runs(comparison, sort_key);
  if (!csv_file.empty()) write_result(csv_file, report::comparison_csv(comparison));
  if (!html_file.empty()) write_result(html_file, report::comparison_page(comparison));
  if (parser.common().json) {
    print_text(report::comparison_json(comparison));
  } else if (prints_csv) {
    print_text(report::comparison_csv(comparison));
  } else {
    print_raw(report::comparison_table(comparison, stdout_width(), stdout_has_color()));
  }
  return 0;
}

// ablate: measures the effect of each setting of a profile, with one short run per setting.
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

constexpr int kStopped = static_cast<int>(ExitCode::kStopped);

/// A folder for the runs: the user's, which is kept, or a temporary one.
class Workplace {
 public:
  explicit Workplace(const std::string& kept) : path_(kept), is_kept_(!kept.empty()) {
    if (is_kept_) {
      make_folders(path_);
      return;
    }
    std::string name = (fs::temp_directory_path() / "lora-train-ablate-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_with(name, "cannot create the folder of the runs");
    path_ = name;
  }
  ~Workplace() {
    std::error_code ignored;
    if (!is_kept_) fs::remove_all(path_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  const fs::path& path() const { return path_; }
  bool is_kept() const { return is_kept_; }

 private:
  fs::path path_;
  bool is_kept_;
};

/// Starts runs of this program and measures them.
class Runs {
 public:
  Runs(std::vector<std::string> profile_arguments, int num_ranks, const Workplace& workplace)
      : arguments_(std::move(profile_arguments)), num_ranks_(num_ranks), workplace_(workplace) {}

  fs::path token_folder() const { return tokens_.path() / "tokens"; }

  /// Returns the folder and the exit code. Throws StopError if the run was stopped, Killed if a second signal came.
  std::pair<fs::path, int> run(const std::string& name, const Values& values) {
    std::string folder_name = fmt::format("{}-", num_runs_++);
    for (const char c : name) folder_name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    const fs::path folder = workplace_.path() / folder_name;
    remove_tree(token_folder());
    std::vector<std::string> command = {"train"};
    command.insert(command.end(), arguments_.begin(), arguments_.end());
    for (const auto& [key, value] : values) command.insert(command.end(), {"--set", fmt::format("{}={}", key, value)});
    command.insert(command.end(), {"--set", "run_name=" + name, "--output-dir", folder.string(), "--overwrite",
                                   "--log-level", "error", "--quiet"});
    bool has_signal = false;
    const int code = start_program(command, num_ranks_, &has_signal);
    if (has_signal || code == kStopped) throw StopError("a signal", "the run of a setting was stopped");
    throw_if_stop_requested();
    return {folder, code};
  }

  /// Call it after reading a run: its checkpoint and adapter may be large.
  void forget(const fs::path& folder) const {
    if (!workplace_.is_kept()) remove_tree(folder);
  }

 private:
  std::vector<std::string> arguments_;
  int num_ranks_;
  const Workplace& workplace_;
  const Workplace tokens_{""};  ///< separate from the kept folder: it is emptied before each run
  int num_runs_ = 0;
};

struct Probe {
  long long documents_per_step = 0;
  bool is_gpu = false;
};

/// Runs one step of the profile to learn its document count and device. This also fills the token cache and reads the
/// weights, so that no setting has to.
Probe probe_profile(Runs& runs) {
  const auto [folder, code] = runs.run("probe", {{"max_steps", "1"},
                                                 {"num_epochs", "null"},
                                                 {"logging_steps", "1"},
                                                 {"report_to", "none"},
                                                 {"eval_on_start", "false"},
                                                 {"eval_tasks", "[]"},
                                                 {"metric_for_best_model", "null"},
                                                 {"load_best_model_at_end", "false"},
                                                 {"early_stopping_patience", "null"},
                                                 {"resume_from_checkpoint", "none"}});
  const report::RunRecord run = report::read_run(folder);
  runs.forget(folder);
  if (code != 0 || run.steps.empty())
    throw ConfigError("--profile", "does not train as it is, so there is nothing to compare: see above" +
                                       (run.reason.empty() ? "" : fmt::format(" ({})", run.reason)));
  return {run.steps.front().num_documents, run.num_gpus > 0};
}

std::vector<report::Measurement> measure_all(const std::vector<report::Setting>& settings, const Values& shared,
                                             long long num_steps, Runs& runs) {
  std::vector<report::Measurement> measurements;
  for (const report::Setting& setting : settings) {
    log_info("setting {} of {}: {}", measurements.size() + 1, settings.size(), setting.name);
    Values values = setting.values;
    values.insert(values.end(), shared.begin(), shared.end());
    const auto [folder, code] = runs.run(setting.name, values);
    measurements.push_back(report::measure(setting, folder, code, num_steps));
    runs.forget(folder);
  }
  return measurements;
}

}  // namespace

int run_ablate(const std::vector<std::string>& arguments) try {
  keep_stop_requests();
  CommandParser parser(
      "ablate",
      "Measures the effect of each setting on this machine: trains the profile for a few steps in fp32 with nothing "
      "switched on, then again with one more setting each time, always on the same documents.");
  const ProfileFlags flags(parser, {kModelFlag, kTrainDataFlag, kEvalDataFlag});
  constexpr std::int64_t kMostSteps = 1'000'000;
  long long num_steps = 20;
  int num_ranks = 1;
  std::string html_file, png_file, kept;
  parser.add_integer("--steps", num_steps, 3, kMostSteps, "steps per setting (default 20)");
  parser.add_integer("--nproc", num_ranks, 1, 1024, "ranks per run, one per GPU");
  parser.add("--html", html_file, "FILE", "write a page with table and chart");
  parser.add("--png", png_file, "FILE", "write the chart as a picture");
  parser.add("--keep", kept, "DIR", "keep the runs in this folder, for compare");
  if (!parser.parse(arguments)) return 0;
  parser.refuse_special_file("--html", html_file);
  parser.refuse_special_file("--png", png_file);
  refuse_foreign("ablate", html_file, report::is_ablation_page);
  refuse_foreign("ablate", png_file, [](std::string_view start) { return start.starts_with("\x89PNG"); });
  if (launch::world_from(process_environment).size > 1)
    parser.refuse("--nproc", "give it here instead of starting several processes: each run starts its own ranks.");
  Findings findings;
  const LoadedProfile loaded = load_and_log(flags.sources(), findings);
  check_inputs(loaded, {}, findings);
  findings.throw_mistakes();

  const Workplace workplace(kept);
  Runs runs(as_arguments(flags.sources()), num_ranks, workplace);
  log_info("running one step of the profile to fill caches and count documents");
  const Probe probe = probe_profile(runs);
  const model::ModelConfig config = model::read_model_config(storage::resolve_model(loaded.profile.model.path).folder);
  report::LadderOptions options{.is_gpu = probe.is_gpu,
                                .stores_quantised = config.quantization.format != model::LinearFormat::kPlain,
                                .num_steps = num_steps,
                                .no_token_cache = runs.token_folder().string()};
  const auto settings = report::make_ladder(loaded.profile, options);
  report::Ablation result{
      .num_steps = num_steps, .documents_per_step = probe.documents_per_step, .note = report::left_out(options)};
  result.measurements =
      measure_all(settings, report::shared_values(num_steps, probe.documents_per_step), num_steps, runs);
  if (report::baseline(result.measurements) == nullptr)
    throw ConfigError("--profile", "no setting could be measured: see above");
  report::check_same_work(result.measurements);
  if (!html_file.empty()) write_result(html_file, report::ablation_page(result));
  if (!png_file.empty()) write_result(png_file, report::to_png(report::ablation_chart(result)));
  print_text(parser.common().json ? report::ablation_json(result) : report::ablation_table(result));
  return 0;
} catch (const Killed& killed) {
  return killed.exit_code;
}

// sweep: runs lib/sweep.sh, a shell script, with this program.
int run_sweep(const std::vector<std::string>& arguments) {
  const std::filesystem::path script = program_folder() / "lib" / "sweep.sh";
  if (!std::filesystem::exists(script)) {
    throw ConfigError(script.string(), "is missing; expected lib/ next to lora-train. Copy the whole folder.");
  }
  std::vector<std::string> words = {"bash", script.string(), "--program",
                                    std::filesystem::read_symlink("/proc/self/exe").string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp("bash", argv.data());
  throw ConfigError("bash", "cannot be started: {}. A sweep is a shell script.", std::strerror(errno));
}

}  // namespace lora_train::cli
