#include "lora_train/metrics/summary.h"

#include "json_number.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

namespace lora_train::metrics {
namespace {

using Json = nlohmann::ordered_json;

Json to_object(const Ledger& ledger) {
  Json reasons = Json::object();
  for (const auto& reason : ledger.reasons) {
    reasons[reason.reason] = {{"count", reason.count}, {"first", or_null(reason.first)}};
  }
  return {{"total", ledger.total}, {"kept", ledger.kept}, {"reasons", reasons}};
}

Json to_object(const std::vector<std::pair<std::string, double>>& seconds) {
  Json object = Json::object();
  for (const auto& [phase, value] : seconds) object[phase] = value;
  return object;
}

Json to_object(const StepCapture& capture) {
  return {{"recorded", capture.recorded}, {"reason", or_null(capture.reason)}};
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
      {"tokens", summary.tokens},
      {"supervised_tokens", summary.supervised_tokens},
      {"tokens_per_s", summary.tokens_per_s},
      {"steps_per_s", summary.steps_per_s},
      {"wall_s", summary.wall_s},
      {"train_s", summary.train_s},
      {"startup_s", to_object(summary.startup_s)},
      {"peak_memory_gib", or_null(summary.peak_memory_gib)},
      {"peak_host_memory_gib", summary.peak_host_memory_gib},
      {"gpu", or_null(summary.gpu)},
      {"num_gpus", summary.num_gpus},
      {"cuda_graphs", to_object(summary.cuda_graphs)},
      {"cost_usd", or_null(summary.cost_usd)},
      {"ledger", to_object(summary.ledger)},
      {"adapter", or_null(summary.adapter)},
      {"run_name", summary.run_name},
      {"profile_hash", summary.profile_hash},
      {"version", summary.version},
  };
  if (summary.error) {
    object["error"] = {
        {"kind", summary.error->kind}, {"message", summary.error->message}, {"where", summary.error->where}};
  }
  return to_line(object);
}

std::string in_words(const RunSummary& summary) {
  const std::string steps = std::to_string(summary.step) + " of " + std::to_string(summary.total_steps);
  if (summary.status == "stopped") {
    return "stopped (" + summary.reason + ") " + (summary.step > 0 ? "at step " + steps : "before the end of step 1") +
           "; the same command resumes the run";
  }
  std::string text = "done: " + steps + " steps, " + format_count(summary.tokens) + " tokens, " +
                     format_duration(summary.train_s) + " of training";
  if (summary.train_loss) text += string_printf(", train_loss %.4g", *summary.train_loss);
  if (summary.eval_loss) text += string_printf(", eval_loss %.4g", *summary.eval_loss);
  return text + (summary.adapter.empty() ? "" : "; written to " + summary.adapter);
}

void write_summary(const std::filesystem::path& path, const RunSummary& summary) {
  write_file_atomic(path, to_json(summary) + "\n");
}

}  // namespace lora_train::metrics
