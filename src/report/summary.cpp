#include "lora_train/report/summary.h"

#include <filesystem>

#include "figures.h"
#include "json_fields.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;

Json ledger_object(const data::Ledger& ledger, long long num_held_out) {
  Json reasons = Json::object();
  for (const data::LedgerEntry& entry : ledger.entries) {
    reasons[data::name_of(entry.reason)] = {{"count", entry.count}, {"first", or_null(entry.first_source)}};
  }
  const data::ThoughtCounts& thoughts = ledger.thoughts;
  return {{"total", ledger.total},
          {"kept", ledger.kept},
          {"held_out", num_held_out},
          {"reasons", reasons},
          {"thoughts", {{"kept", thoughts.kept}, {"dropped", thoughts.dropped}, {"empty", thoughts.empty}}}};
}

Json to_object(const std::vector<EvalFigures>& tasks) {
  Json object = Json::object();
  for (const EvalFigures& task : tasks) put_figures(object[task.name] = Json::object(), task);
  return object;
}

Json to_object(const StepCapture& capture) {
  return {{"recorded", capture.recorded}, {"reason", or_null(capture.reason)}};
}

/// "0.12 Wh", "430 Wh", "1.25 kWh"
std::string format_watt_hours(double amount) {
  if (amount >= 1000) return fmt::format("{:.2f} kWh", amount / 1000);
  return fmt::format("{:.{}f} Wh", amount, amount < 10 ? 2 : 0);
}

}  // namespace

std::string to_json(const StepCapture& capture) { return to_line(to_object(capture)); }

std::string to_json(const RunSummary& summary) {
  Json object = {
      {"status", summary.status},
      {"exit_code", summary.exit_code},
      {"reason", summary.reason},
      {"step", summary.step},
      {"total_steps", summary.total_steps},
      {"epoch", summary.epoch},
      {"train_loss", or_null(summary.train_loss)},
      {"eval_loss", or_null(summary.eval_loss)},
      {"best_eval_loss", or_null(summary.best_eval_loss)},
      {"best_step", or_null(summary.best_step)},
      {"best_metric", or_null(summary.best_metric)},
      {"eval_tasks", to_object(summary.eval_tasks)},
      {"tokens", summary.tokens},
      {"supervised_tokens", summary.supervised_tokens},
      {"tokens_per_s", summary.tokens_per_s},
      {"steps_per_s", summary.steps_per_s},
      {"wall_s", summary.wall_s},
      {"train_s", summary.train_s},
      {"eval_share", summary.eval_share},
      {"phases_s", to_object(summary.phases_s)},
      {"startup_s", to_object(summary.startup_s)},
      {"peak_memory_gib", or_null(summary.peak_memory_gib)},
      {"startup_peak_memory_gib", or_null(summary.startup_peak_memory_gib)},
      {"peak_host_memory_gib", summary.peak_host_memory_gib},
      {"gpu", or_null(summary.gpu)},
      {"num_gpus", summary.num_gpus},
      {"cuda_graphs", to_object(summary.cuda_graphs)},
      {"cost_usd", or_null(summary.cost_usd)},
      {"energy_wh", or_null(summary.usage.energy_wh)},
      {"mean_gpu_utilization", or_null(summary.usage.mean_gpu_utilization())},
      {"cpu_s", or_null(summary.usage.cpu_s)},
      {"ledger", ledger_object(summary.ledger, summary.num_held_out)},
      {"adapter", or_null(summary.adapter)},
      {"adapter_step", or_null(summary.adapter_step)},
      {"run_name", summary.run_name},
      {"profile_hash", summary.profile_hash},
      {"version", summary.version},
  };
  put_price(object, summary.price);
  if (summary.error) {
    object["error"] = {
        {"kind", summary.error->kind}, {"message", summary.error->message}, {"where", summary.error->where}};
  }
  return to_line(object);
}

std::string in_words(const RunSummary& summary) {
  const std::string steps = fmt::format("{} of {}", summary.step, summary.total_steps);
  if (summary.status == "stopped") {
    const std::string where = summary.step == 0          ? "before the end of step 1"
                              : summary.total_steps == 0 ? fmt::format("after step {}", summary.step)
                                                         : "at step " + steps;
    return fmt::format("stopped ({}) {}; the same command resumes the run", summary.reason, where);
  }
  const bool ends_early = summary.total_steps > summary.step && !summary.reason.empty();
  std::string text = "done: " + steps + " steps" + (ends_early ? fmt::format(" ({})", summary.reason) : "") + ", " +
                     format_count(summary.tokens) + " tokens, " + format_duration(summary.train_s) + " of training";
  if (summary.train_loss) text += fmt::format(", train_loss {:.4g}", *summary.train_loss);
  const bool is_earlier = !summary.adapter.empty() && summary.adapter_step && *summary.adapter_step != summary.step;
  if (summary.eval_loss) {
    text += fmt::format(", eval_loss {:.4g}{}", *summary.eval_loss, is_earlier ? " after the last step" : "");
  }
  for (const EvalFigures& task : summary.eval_tasks) {
    text += fmt::format(", {} accuracy {:.2f}%", task.name, 100 * task.accuracy.value_or(0));
    if (task.kind == TaskKind::kConfidence) text += fmt::format(" ece {:.4f}", task.ece.value_or(0));
  }
  if (summary.adapter.empty()) return text;
  return fmt::format("{}{} written to {}", text, is_earlier ? fmt::format("; step {} is", *summary.adapter_step) : ";",
                     summary.adapter);
}

std::vector<std::string> next_commands(const RunSummary& summary, const std::string& output_dir,
                                       const std::vector<std::string>& prompt) {
  if (summary.status != "done" || summary.adapter.empty()) return {};
  const bool is_model = std::filesystem::path(summary.adapter).filename() == storage::kModelFolder;
  std::vector<std::string> generate = {"lora-train", "generate", is_model ? "--model" : "--adapter",
                                       is_model ? summary.adapter : output_dir};
  generate.insert(generate.end(), prompt.begin(), prompt.end());
  std::vector<std::string> commands = {shell_line(generate)};
  if (!is_model)
    commands.push_back(
        shell_line({"lora-train", "merge", "--adapter", output_dir, "--output-dir", output_dir + "-merged"}));
  return commands;
}

void set_times(RunSummary& summary, const RunTimes& times) {
  summary.wall_s = times.wall_s();
  summary.train_s = times[Phase::kTrain];
  summary.eval_share = summary.wall_s > 0 ? times[Phase::kEvaluate] / summary.wall_s : 0;
  summary.phases_s = times.named();
  summary.cost_usd = times.cost_usd;
  summary.usage = times.usage;
  if (summary.train_s <= 0) return;
  summary.tokens_per_s = static_cast<double>(summary.tokens - summary.untimed_tokens) / summary.train_s;
  summary.steps_per_s = static_cast<double>(summary.step - summary.untimed_steps) / summary.train_s;
}

std::string times_in_words(const RunSummary& summary) {
  const auto seconds_in_words = [](double seconds) { return format_figure(seconds, FigureKind::kSeconds); };
  std::string phases;
  for (const auto& [name, seconds] : summary.phases_s) {
    if (seconds < 0.05) continue;
    phases += fmt::format("{}{} {}", phases.empty() ? ": " : ", ", name, seconds_in_words(seconds));
    if (name == name_of(Phase::kTrain) || name == name_of(Phase::kEvaluate))
      phases += fmt::format(" ({:.0f}%)", 100 * seconds / summary.wall_s);
  }
  std::string text = fmt::format("time: {}{}", seconds_in_words(summary.wall_s), phases);
  if (summary.tokens_per_s > 0)
    text += fmt::format("; {} tokens a second in steps", format_figure(summary.tokens_per_s, FigureKind::kCount));
  if (summary.cost_usd) text += "; " + format_dollars(*summary.cost_usd);
  if (summary.cost_usd && summary.price) text += " at " + summary.price->in_words();
  if (summary.usage.energy_wh) text += "; " + format_watt_hours(*summary.usage.energy_wh);
  if (const auto utilization = summary.usage.mean_gpu_utilization())
    text += fmt::format("; GPU{} busy {:.0f}% of the time", summary.num_gpus > 1 ? "s" : "", *utilization);
  return text;
}

void write_summary(const std::filesystem::path& path, const RunSummary& summary) {
  write_file_atomic(path, to_json(summary) + "\n");
}

}  // namespace lora_train::report
