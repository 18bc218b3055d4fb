#include "lora_train/report/run_log.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "figures.h"
#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
#include "lora_train/storage/run_names.h"
#include "step_fields.h"

namespace lora_train::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A link does not count: in a stranger's folder, it could bring a file of the reader into the table or page.
bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(fs::symlink_status(path, ignored));
}

constexpr std::size_t kLossWindows = 20;

constexpr std::size_t kMostCalibrationBins = 100;

/// Empty unless all are [count, sum of confidence, number right].
std::vector<CalibrationBin> bins_of(const Json& object) {
  const auto found = object.find("bins");
  std::vector<CalibrationBin> bins;
  if (found == object.end() || !found->is_array() || found->size() > kMostCalibrationBins) return bins;
  const auto is_count = [](const Json& number) { return number.is_number_unsigned(); };
  for (const Json& bin : *found) {
    if (!bin.is_array() || bin.size() != 3 || !is_count(bin[0]) || !bin[1].is_number() || !is_count(bin[2])) return {};
    bins.push_back({bin[0].get<long long>(), bin[1].get<double>(), bin[2].get<long long>()});
  }
  return bins;
}

/// Reads the lines in order.
class LineReader {
 public:
  explicit LineReader(RunRecord& run) : run_(run) {}

  /// False if the line is not a metrics line.
  bool add(const std::string& line) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) return false;
    const std::string event = text_of(object, "event");
    if (event == "start") start(object);
    if (const auto elapsed = number_of(object, "elapsed_s")) {
      process_s_ = std::max(process_s_, *elapsed);
    }
    spans(object);
    if (const auto times = times_of(object)) take(*times, event == "end");
    if (event == "train") train(object);
    if (event == "eval") eval(object);
    return !event.empty();
  }

  /// Call after the last line.
  void finish() {
    add_steps_since_spans();
    if (elapsed_s() > 0) run_.figures.wall_s = elapsed_s();
  }

 private:
  double elapsed_s() const { return earlier_s_ + process_s_; }

  /// The line has the run's earlier times. Older files lack them: then all lines of earlier processes count.
  void start(const Json& object) {
    add_steps_since_spans();
    const auto times = times_of(object);
    earlier_s_ = times ? std::max(0.0, times->wall_s() - number_of(object, "elapsed_s").value_or(0)) : elapsed_s();
    process_s_ = 0;
    run_.processes_s.push_back(earlier_s_);
    std::erase_if(run_.spans, [&](const LoggedSpan& span) { return span.from_s >= earlier_s_; });
    if (!run_.spans.empty()) run_.spans.back().to_s = std::min(run_.spans.back().to_s, earlier_s_);
    if (run_.name.empty()) run_.name = text_of(object, "run_name");
    run_.start_json = to_line(object);
    if (!run_.started_at) run_.started_at = number_of(object, "time");
    run_.world_size = whole_number_of(object, "world_size").value_or(1);
    if (const auto total = number_of(object, "total_steps")) run_.figures.total_steps = total;
  }

  /// For a run in progress, the phases would be outdated.
  void take(const RunTimes& times, bool is_end) {
    run_.phases_s = is_end ? times.named() : NamedSeconds();
    run_.figures.train_s = times[Phase::kTrain];
    run_.figures.cost_usd = times.cost_usd;
  }

  void add_span(const std::string& phase, double from_s, double to_s) {
    process_s_ = std::max(process_s_, to_s);
    if (to_s > from_s) run_.spans.push_back({phase, earlier_s_ + from_s, earlier_s_ + to_s});
  }

  void spans(const Json& object) {
    const auto found = object.find("spans");
    if (found == object.end() || !found->is_array()) return;
    for (const Json& span : *found) {
      if (!span.is_array() || span.size() != 3 || !span[0].is_string() || !span[1].is_number() || !span[2].is_number())
        continue;
      add_span(span[0].get<std::string>(), span[1].get<double>(), span[2].get<double>());
    }
    steps_from_s_.reset();
  }

  /// The steps that no line's span covers yet: the process is running, or was killed.
  void add_steps_since_spans() {
    if (steps_from_s_) add_span(name_of(Phase::kTrain), *steps_from_s_, steps_to_s_);
    steps_from_s_.reset();
  }

  void train(const Json& object) {
    LoggedStep logged;
    read_fields<StepRecord>(object, logged);
    if (logged.step < 1) return;
    steps_to_s_ = logged.elapsed_s;
    if (!steps_from_s_) steps_from_s_ = std::max(0.0, steps_to_s_ - logged.step_ms.value_or(0) / 1000);
    if (logged.train_s) {
      run_.figures.train_s = logged.train_s;
      run_.figures.cost_usd = logged.cost_usd;
    }
    // A step can have two lines if the run resumed before it; the later line counts.
    while (!run_.steps.empty() && run_.steps.back().step >= logged.step) run_.steps.pop_back();
    const LoggedStep before = run_.steps.empty() ? LoggedStep{} : run_.steps.back();
    logged.total_tokens =
        before.total_tokens + static_cast<double>(logged.tokens) * static_cast<double>(logged.step - before.step);
    logged.run_s = elapsed_s();
    if (!logged.loss_mean) logged.loss_mean = logged.loss;
    run_.steps.push_back(logged);
    run_.figures.epoch = logged.epoch;
  }

  void eval(const Json& object) {
    LoggedEval logged;
    logged.step = whole_number_of(object, "step").value_or(0);
    logged.name = text_of(object, "name");
    const std::string kind = text_of(object, "kind");
    logged.kind = from_string<TaskKind>(kind);
    if (!kind.empty() && !logged.kind) return;  // of another version
    std::erase_if(run_.evals, [&](const LoggedEval& other) {
      return other.step > logged.step || (other.step == logged.step && other.name == logged.name);
    });
    if (!run_.steps.empty() && logged.step > 0) {
      logged.total_tokens = run_.steps.back().total_tokens;
      logged.run_s = elapsed_s();
    }
    for (const EvalMetric& metric : all_eval_metrics()) logged.*metric.value = number_of(object, metric.name);
    logged.num_tokens = whole_number_of(object, "num_tokens").value_or(0);
    logged.num_rows = whole_number_of(object, "num_rows").value_or(0);
    logged.eval_s = number_of(object, "eval_s").value_or(0);
    logged.bins = bins_of(object);
    run_.evals.push_back(logged);
  }

  RunRecord& run_;
  double earlier_s_ = 0, process_s_ = 0;
  std::optional<double> steps_from_s_;  ///< in this process: the first step since the last line with spans
  double steps_to_s_ = 0;
};

void fill_losses(RunRecord& run) {
  const std::size_t window = std::max<std::size_t>(1, run.steps.size() / kLossWindows);
  double loss_sum = 0, num_labels = 0;
  const auto add = [&](const LoggedStep& step, double sign) {
    if (!step.loss_mean) return;
    loss_sum += sign * *step.loss_mean * step.num_labels();
    num_labels += sign * step.num_labels();
  };
  RunFigures& figures = run.figures;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    add(run.steps[i], 1);
    if (i >= window) add(run.steps[i - window], -1);
    figures.last_train_loss = num_labels > 0.5 ? std::optional<double>(loss_sum / num_labels) : std::nullopt;
    if (i + 1 < window || !figures.last_train_loss) continue;
    figures.best_train_loss =
        std::min(figures.best_train_loss.value_or(*figures.last_train_loss), *figures.last_train_loss);
  }
}

void fill_evals(RunRecord& run) {
  RunFigures& figures = run.figures;
  for (const auto& eval : mean_evals(run.evals)) {
    figures.eval_loss = eval.loss;
    figures.token_accuracy = eval.token_accuracy;
    figures.perplexity = eval.loss ? std::optional(std::exp(*eval.loss)) : std::nullopt;
    if (eval.step == 0 || !eval.loss || (figures.best_eval_loss && *figures.best_eval_loss <= *eval.loss)) continue;
    figures.best_eval_loss = eval.loss;
    figures.best_step = static_cast<double>(eval.step);
  }
}

void fill_speed(RunRecord& run) {
  double steps_s = 0, tokens = 0;
  double before = 0;
  long long step_before = 0;
  for (const auto& step : run.steps) {
    const double of_step = (step.total_tokens - before) / static_cast<double>(step.step - step_before);
    if (step.step_ms && *step.step_ms > 0) {
      steps_s += *step.step_ms / 1000;
      tokens += of_step;
    }
    before = step.total_tokens;
    step_before = step.step;
    if (step.memory_gib) {
      run.figures.peak_memory_gib = std::max(run.figures.peak_memory_gib.value_or(0), *step.memory_gib);
    }
  }
  if (run.figures.train_s && *run.figures.train_s > 0) {
    run.figures.tokens_per_s = run.figures.tokens.value_or(0) / *run.figures.train_s;
  } else if (steps_s > 0) {
    run.figures.tokens_per_s = tokens / steps_s;
  }
}

/// Fills steps, evals and all figures that the lines contain. Ignores an incomplete last line. Returns the problem with
/// the file; empty: none.
std::string read_metrics(const fs::path& path, RunRecord& run) {
  if (!is_file(path)) return "no metrics.jsonl";  // also excludes devices, which might be endless
  std::ifstream file(path, std::ios::binary);
  if (!file) return "metrics.jsonl cannot be read";
  LineReader reader(run);
  long long number = 0, num_bad = 0, first_bad = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (file.eof()) break;  // no newline: being written, or torn
    if (line.empty() || reader.add(line)) continue;
    if (num_bad++ == 0) first_bad = number;
  }
  if (!run.steps.empty()) {
    run.figures.step = static_cast<double>(run.steps.back().step);
    run.figures.tokens = run.steps.back().total_tokens;
  }
  reader.finish();
  fill_losses(run);
  fill_evals(run);
  fill_speed(run);
  if (num_bad == 0) return number == 0 ? "metrics.jsonl is empty" : "";
  return fmt::format("metrics.jsonl:{} is not a metrics line{}", first_bad,
                     num_bad > 1 ? fmt::format(" ({} such lines)", num_bad) : "");
}

void add_reason(RunRecord& run, const std::string& reason) {
  if (reason.empty()) return;
  run.reason += (run.reason.empty() ? "" : "; ") + reason;
}

/// True if a process holds the lock of the folder. Reads /proc/locks instead of trying the lock, which could make a run
/// that is starting fail.
bool is_locked(const fs::path& folder) {
  struct stat file {};
  if (::stat((folder / storage::kLockFile).c_str(), &file) != 0) return false;
  const std::string id = fmt::format(" {:02x}:{:02x}:{} ", major(file.st_dev), minor(file.st_dev), file.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    if (line.find("FLOCK") != std::string::npos && line.find(id) != std::string::npos) return true;
  }
  return false;
}

void read_profile(RunRecord& run) {
  const fs::path file = run.folder / storage::kProfileFile;
  if (!is_file(file)) return;
  try {
    const Json profile = Json::parse(to_json(load_written_profile(file)));
    for (const auto& [key, value] : profile.items()) run.profile.emplace_back(key, value.dump());
    run.name = text_of(profile, "run_name");
  } catch (const Error& error) {
    add_reason(run, error.where() == file.string() ? "profile.yaml: " + error.message() : error.what());
  }
}

/// Figures from the summary, which cover the whole run, replace those from metrics.jsonl.
void apply_summary(RunRecord& run, const Json& summary) {
  RunFigures& figures = run.figures;
  const auto take = [&](std::optional<double>& figure, const char* key) {
    if (const auto number = number_of(summary, key)) figure = number;
  };
  for (const Figure& figure : report::figures()) {
    if (figure.is_of_summary) take(figures.*figure.value, figure.name);
  }
  const auto step = number_of(summary, "step"), tokens = number_of(summary, "tokens");
  if (step && (*step > 0 || !figures.step)) take(figures.step, "step"), take(figures.epoch, "epoch");
  if (tokens && *tokens > 0) {
    // If not all steps are logged, the sum over the lines is an estimate.
    const double scale = figures.tokens && *figures.tokens > 0 && !run.steps.empty() && step &&
                                 static_cast<double>(run.steps.back().step) == *step
                             ? *tokens / *figures.tokens
                             : 1;
    for (auto& line : run.steps) line.total_tokens *= scale;
    for (auto& line : run.evals) line.total_tokens *= scale;
    figures.tokens = tokens;
  }
  const auto rate = number_of(summary, "tokens_per_s");
  if (rate && *rate > 0) figures.tokens_per_s = rate;
  if (const auto times = times_of(summary)) run.phases_s = times->named();
  run.gpu = text_of(summary, "gpu");
  run.num_gpus = number_of(summary, "num_gpus").value_or(0);
  for (const auto& [phase, seconds] : seconds_of(summary, "startup_s").value_or(NamedSeconds()))
    run.startup_s += seconds;
  run.adapter = text_of(summary, "adapter");
  run.adapter_step = whole_number_of(summary, "adapter_step");
}

constexpr int kMaxRunDepth = 4;  // depth of runs below the named folder

/// Finds runs in nested folders, unordered: a sweep may be in the folder of a run. Follows a link to a run, but no
/// further. A run that --overwrite put aside is in a hidden folder.
void add_runs(const fs::path& folder, int depth, std::vector<fs::path>& runs) {
  if (is_run_folder(folder)) runs.push_back(folder);
  if (depth == 0) return;
  std::error_code ignored;
  for (const auto& child : fs::directory_iterator(folder, fs::directory_options::skip_permission_denied, ignored)) {
    if (!child.is_directory(ignored) || child.path().filename().string().starts_with('.')) continue;
    add_runs(child.path(), child.is_symlink(ignored) ? 0 : depth - 1, runs);
  }
}

void read_summary(RunRecord& run) {
  const fs::path file = run.folder / storage::kSummaryFile;
  if (!is_file(file)) {
    run.status = is_locked(run.folder) ? "running" : "unfinished";
    if (run.status == "unfinished") {
      add_reason(run, "no summary.json: the run was killed, or is running on another machine");
    }
    return;
  }
  Json summary;
  try {
    summary = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  } catch (const IoError& error) {
    add_reason(run, error.what());
  }
  run.status = summary.is_object() ? text_of(summary, "status") : "";
  if (run.status.empty()) {
    run.status = "broken";
    return add_reason(run, "summary.json is not a run summary");
  }
  run.summary_json = to_line(summary);
  if (run.name.empty()) run.name = text_of(summary, "run_name");
  if (run.status != "done") run.reason = text_of(summary, "reason") + (run.reason.empty() ? "" : "; " + run.reason);
  apply_summary(run, summary);
}

}  // namespace

std::vector<LoggedEval> mean_evals(const std::vector<LoggedEval>& evals) {
  std::vector<LoggedEval> losses;
  std::copy_if(evals.begin(), evals.end(), std::back_inserter(losses), [](const auto& eval) { return !eval.kind; });
  std::vector<LoggedEval> means;
  double loss_weight = 0, loss = 0, weight = 0, accuracy = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const LoggedEval& eval = losses[i];
    if (eval.loss) {
      loss_weight += eval.weight();
      loss += *eval.loss * eval.weight();
    }
    if (eval.token_accuracy) {
      weight += eval.weight();
      accuracy += *eval.token_accuracy * eval.weight();
    }
    if (i + 1 < losses.size() && losses[i + 1].step == eval.step) continue;
    LoggedEval mean;
    mean.step = eval.step;
    mean.total_tokens = eval.total_tokens;
    mean.run_s = eval.run_s;
    if (loss_weight > 0) mean.loss = loss / loss_weight;
    if (weight > 0) mean.token_accuracy = accuracy / weight;
    means.push_back(mean);
    loss_weight = loss = weight = accuracy = 0;
  }
  return means;
}

bool is_run_folder(const fs::path& folder) {
  return is_file(folder / storage::kMetricsFile) || is_file(folder / storage::kSummaryFile) ||
         is_file(folder / storage::kLogFile);
}

std::vector<fs::path> find_runs(const fs::path& folder) {
  std::vector<fs::path> runs;
  add_runs(folder, kMaxRunDepth, runs);
  // Natural order: "r8" before "r16", and "0.001" before "0.01".
  std::ranges::sort(runs, [](const fs::path& a, const fs::path& b) { return ::strverscmp(a.c_str(), b.c_str()) < 0; });
  return runs;
}

RunRecord read_run(const fs::path& folder) {
  RunRecord run;
  run.folder = folder;
  read_profile(run);
  const std::string problem = read_metrics(folder / storage::kMetricsFile, run);
  const bool has_lines = is_file(folder / storage::kMetricsFile);
  if (has_lines) add_reason(run, problem);
  read_summary(run);
  run.document_losses = read_document_losses(folder / storage::kDocumentLossesFile);
  if (const fs::path file = folder / storage::kEvalAnswersFile; is_file(file)) run.answers = read_answers(file);
  // A run that ended early may not have written these files.
  const bool is_late = has_lines || run.status == "done" || run.status == "broken";
  if (is_late && !is_file(folder / storage::kProfileFile)) add_reason(run, "no profile.yaml");
  if (is_late && !has_lines) add_reason(run, problem);
  if (run.name.empty()) {
    std::error_code ignored;
    run.name = fs::weakly_canonical(folder, ignored).filename().string();
  }
  for (const char* name : {storage::kProfileFile, storage::kMetricsFile, storage::kSummaryFile}) {
    std::error_code ignored;
    if (fs::is_symlink(folder / name, ignored))
      add_reason(run, std::string(name) + " is a link, which is not followed");
  }
  return run;
}

}  // namespace lora_train::report
