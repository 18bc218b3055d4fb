#include "lora_train/report/run_log.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <fstream>

#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
#include "read_metrics.h"

namespace lora_train::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A link is none: in a stranger's folder, it could bring a file of the reader into the table or page.
bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(fs::symlink_status(path, ignored));
}

/// Natural order: "r8" before "r16", and "0.001" before "0.01". Digits without a leading zero compare as a number.
bool is_before(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto take_digits = [&](std::string_view& text) {
    std::size_t end = 0;
    while (end < text.size() && is_digit(text[end])) ++end;
    const std::string_view digits = text.substr(0, end);
    text.remove_prefix(end);
    return digits;
  };
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_digits(a), y = take_digits(b);
      const bool are_numbers = x.front() != '0' && y.front() != '0';
      if (x != y) return are_numbers && x.size() != y.size() ? x.size() < y.size() : x < y;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

void add_reason(RunRecord& run, const std::string& reason) {
  if (reason.empty()) return;
  run.reason += (run.reason.empty() ? "" : "; ") + reason;
}

/// Whether a process holds the lock of the folder. Reads /proc/locks instead of trying the lock, which could make a run that is
/// starting fail.
bool is_locked(const fs::path& folder) {
  struct stat file {};
  if (::stat((folder / kLockFile).c_str(), &file) != 0) return false;
  const std::string id = string_printf(" %02x:%02x:%llu ", major(file.st_dev), minor(file.st_dev),
                                       static_cast<unsigned long long>(file.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    if (line.find("FLOCK") != std::string::npos && line.find(id) != std::string::npos) return true;
  }
  return false;
}

void read_profile(RunRecord& run) {
  const fs::path file = run.folder / "profile.yaml";
  if (!is_file(file)) return;
  try {
    const Json profile = Json::parse(to_json(load_written_profile(file)));
    for (const auto& [key, value] : profile.items()) run.profile.emplace_back(key, value.dump());
    run.name = text_of(profile, "run_name");
  } catch (const Error& error) {
    add_reason(run, error.where() == file.string() ? "profile.yaml: " + error.message() : error.what());
  }
}

/// Figures from the summary, which are those of the whole run, replace those from metrics.jsonl.
void apply_summary(RunRecord& run, const Json& summary) {
  RunFigures& figures = run.figures;
  const auto take = [&](std::optional<double>& figure, const char* key) {
    if (const auto number = number_of(summary, key)) figure = number;
  };
  for (const auto& [figure, key] : {std::pair{&figures.total_steps, "total_steps"},
                                    {&figures.train_loss, "train_loss"},
                                    {&figures.eval_loss, "eval_loss"},
                                    {&figures.best_eval_loss, "best_eval_loss"},
                                    {&figures.best_step, "best_step"},
                                    {&figures.wall_s, "wall_s"},
                                    {&figures.train_s, "train_s"},
                                    {&figures.cost_usd, "cost_usd"},
                                    {&figures.peak_memory_gib, "peak_memory_gib"},
                                    {&figures.peak_host_memory_gib, "peak_host_memory_gib"}}) {
    take(*figure, key);
  }
  const auto step = number_of(summary, "step"), tokens = number_of(summary, "tokens");
  if (step && (*step > 0 || !figures.step)) take(figures.step, "step"), take(figures.epoch, "epoch");
  if (tokens && *tokens > 0) {
    // If not all steps are logged, the sum over the lines is an estimate.
    const double scale = figures.tokens && *figures.tokens > 0 && !run.steps.empty() && step &&
                                 static_cast<double>(run.steps.back().step) == *step
                             ? *tokens / *figures.tokens
                             : 1;
    for (auto& line : run.steps) line.tokens *= scale;
    for (auto& line : run.evals) line.tokens *= scale;
    figures.tokens = tokens;
  }
  const auto rate = number_of(summary, "tokens_per_s");
  if (rate && *rate > 0) figures.tokens_per_s = rate;
  if (const auto times = times_of(summary)) run.phases_s = times->named();
  run.num_gpus = number_of(summary, "num_gpus").value_or(0);
}

constexpr int kMaxRunDepth = 4;  // of runs below the folder that is named

/// Runs in folders of runs, in no order: a sweep may lie in the folder of a run. A link is followed to a run, and no further. A run
/// that --overwrite put aside is in a hidden folder.
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
  const fs::path file = run.folder / "summary.json";
  if (!is_file(file)) {
    run.status = is_locked(run.folder) ? "running" : "unfinished";
    if (run.status == "unfinished") {
      add_reason(run, "no summary.json: its process was killed, or runs on another machine");
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
    return add_reason(run, "summary.json is not the summary of a run");
  }
  run.summary_json = summary.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (run.name.empty()) run.name = text_of(summary, "run_name");
  if (run.status != "done") run.reason = text_of(summary, "reason") + (run.reason.empty() ? "" : "; " + run.reason);
  apply_summary(run, summary);
}

}  // namespace

bool is_run_folder(const fs::path& folder) {
  return is_file(folder / "metrics.jsonl") || is_file(folder / "summary.json") || is_file(folder / "run.log");
}

std::vector<fs::path> find_runs(const fs::path& folder) {
  std::vector<fs::path> runs;
  add_runs(folder, kMaxRunDepth, runs);
  std::sort(runs.begin(), runs.end(),
            [](const fs::path& a, const fs::path& b) { return is_before(a.string(), b.string()); });
  return runs;
}

std::string gpu_of(const RunRecord& run) {
  const Json summary = Json::parse(run.summary_json, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() ? text_of(summary, "gpu") : "";
}

RunRecord read_run(const fs::path& folder) {
  RunRecord run;
  run.folder = folder;
  read_profile(run);
  const MetricsFile metrics = read_metrics(folder / "metrics.jsonl", run);
  const bool has_lines = is_file(folder / "metrics.jsonl");
  if (has_lines) add_reason(run, metrics.problem);
  read_summary(run);
  run.document_losses = read_document_losses(folder / kDocumentLossesFile);
  if (const fs::path file = folder / kEvalAnswersFile; is_file(file)) run.answers = read_answers(file);
  // A run that ended early may not have written these files.
  const bool is_late = has_lines || run.status == "done" || run.status == "broken";
  if (is_late && !is_file(folder / "profile.yaml")) add_reason(run, "no profile.yaml");
  if (is_late && !has_lines) add_reason(run, metrics.problem);
  if (run.name.empty()) {
    std::error_code ignored;
    run.name = fs::weakly_canonical(folder, ignored).filename().string();
  }
  for (const char* name : {"profile.yaml", "metrics.jsonl", "summary.json"}) {
    std::error_code ignored;
    if (fs::is_symlink(folder / name, ignored))
      add_reason(run, std::string(name) + " is a link, which is not followed");
  }
  return run;
}

}  // namespace lora_train::report
