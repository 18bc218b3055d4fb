#include "lora_train/report/ablation/measurement.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/report/run_log.h"

namespace lora_train::report {
namespace {

constexpr long long kWarmupShare = 5;

using Json = nlohmann::ordered_json;

double number_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

double sum_of(const Json& object, const char* key) {
  double sum = 0;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return sum;
  for (const auto& [name, value] : found->items()) sum += value.is_number() ? value.get<double>() : 0;
  return sum;
}

std::string in_words(const Measurement& work) {
  return format_count(work.num_documents) + " documents with " + format_count(work.num_supervised) + " trained tokens";
}

}  // namespace

Measurement measure(const Setting& setting, const std::filesystem::path& folder, int exit_code, long long num_steps) {
  Measurement found;
  found.setting = setting;
  const RunRecord run = read_run(folder);
  const auto& steps = run.steps;
  if (exit_code != 0 || run.status != "done" || static_cast<long long>(steps.size()) != num_steps) {
    found.reason = run.reason.empty() ? "it ended with code " + std::to_string(exit_code) : run.reason;
    return found;
  }
  const Json summary = Json::parse(run.summary_json, nullptr, /*allow_exceptions=*/false);
  const auto& after = steps[static_cast<std::size_t>(std::max(1LL, num_steps / kWarmupShare) - 1)];
  const double seconds = steps.back().elapsed_s - after.elapsed_s;
  found.is_done = true;
  const std::string gpu = gpu_of(run);
  found.device = gpu.empty() ? "cpu" : gpu;
  found.tokens_per_s = seconds > 0 ? (steps.back().tokens - after.tokens) / seconds : 0;
  found.startup_s = sum_of(summary, "startup_s");
  found.loss = number_at(summary, "train_loss");
  found.eval_loss = run.figures.eval_loss;
  found.peak_memory_gib = run.figures.peak_memory_gib ? run.figures.peak_memory_gib : run.figures.peak_host_memory_gib;
  for (const auto& step : steps) {
    found.num_documents += static_cast<long long>(step.num_documents);
    found.num_supervised += static_cast<long long>(step.num_labels);
  }
  found.document_losses = run.document_losses;
  return found;
}

void check_same_work(const std::vector<Measurement>& measurements) {
  const Measurement* first = nullptr;
  for (const Measurement& found : measurements) {
    if (!found.is_done) continue;
    if (first == nullptr) first = &found;
    if (found.num_documents == first->num_documents && found.num_supervised == first->num_supervised) continue;
    throw DataError(found.setting.name, "trained on " + in_words(found) + ", but \"" + first->setting.name + "\" on " +
                                            in_words(*first) +
                                            ": different work is not compared. Did the data change meanwhile?");
  }
}

const Measurement* baseline(const std::vector<Measurement>& measurements) {
  const Measurement* any = nullptr;
  for (const Measurement& found : measurements) {
    if (!found.is_done) continue;
    if (found.setting.rung == Rung::kStep) return &found;
    if (any == nullptr) any = &found;
  }
  return any;
}

}  // namespace lora_train::report
