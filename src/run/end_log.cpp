#include "end_log.h"

#include <filesystem>

#include "lora_train/base/log.h"
#include "lora_train/data/first_rows.h"

namespace lora_train::run {
namespace {

/// Flags of `generate` that ask the result something: a short prompt that was held out, else one of the training data.
std::vector<std::string> prompt_for_result(const DataSection& section) {
  std::optional<data::ShortPrompt> prompt;
  if (!section.eval_datasets.empty())
    prompt = data::first_short_prompt(section.eval_datasets.front(), data::DatasetUse::kEvaluation);
  if (!prompt && !section.datasets.empty())
    prompt = data::first_short_prompt(section.datasets.front(), data::DatasetUse::kTraining);
  if (!prompt) return {"--prompt", "Hello!"};
  if (prompt->is_raw) return {"--raw", "--prompt", prompt->text};
  return {"--prompt", prompt->text};
}

}  // namespace

void log_end(const report::RunSummary& summary, const Profile& profile) {
  const std::filesystem::path output_dir = profile.run.output_dir, report = output_dir / "report.html";
  log_info(report::times_in_words(summary));
  if (std::filesystem::exists(report)) log_info("report: " + report.string());
  if (summary.status == "done") {
    for (const auto& command : report::next_commands(summary, output_dir.string(), prompt_for_result(profile.data)))
      log_info("next: " + command);
  }
  log_info(report::in_words(summary));
}

}  // namespace lora_train::run
