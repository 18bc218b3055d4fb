#include "read_metrics.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "json_fields.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLossWindows = 20;
constexpr std::size_t kMostCalibrationBins = 100;

std::vector<std::string> texts_of(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return texts;
  for (const Json& text : *found) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  return texts;
}

/// Reads the lines in their order.
class LineReader {
 public:
  explicit LineReader(RunRecord& run) : run_(run) {}

  /// False if it is not a metrics line.
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

  /// Call it after the last line.
  void finish() {
    add_steps_since_spans();
    if (elapsed_s() > 0) run_.figures.wall_s = elapsed_s();
  }

 private:
  double elapsed_s() const { return earlier_s_ + process_s_; }

  /// The line says what the run took before. An older one does not: then all lines of earlier processes count.
  void start(const Json& object) {
    add_steps_since_spans();
    const auto times = times_of(object);
    earlier_s_ = times ? std::max(0.0, times->wall_s() - number_of(object, "elapsed_s").value_or(0)) : elapsed_s();
    process_s_ = 0;
    run_.processes_s.push_back(earlier_s_);
    std::erase_if(run_.spans, [&](const LoggedSpan& span) { return span.from_s >= earlier_s_; });
    if (!run_.spans.empty()) run_.spans.back().to_s = std::min(run_.spans.back().to_s, earlier_s_);
    if (run_.name.empty()) run_.name = text_of(object, "run_name");
    run_.start_json = object.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (!run_.started_at) run_.started_at = number_of(object, "time");
    run_.world_size = whole_number_of(object, "world_size").value_or(1);
    if (const auto total = number_of(object, "total_steps")) run_.figures.total_steps = total;
  }

  /// Phases of a run that goes on would be old ones.
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

  /// The steps whose span no line has yet: the process goes on, or was killed.
  void add_steps_since_spans() {
    if (steps_from_s_) add_span(name_of(Phase::kTrain), *steps_from_s_, steps_to_s_);
    steps_from_s_.reset();
  }

  void train(const Json& object) {
    const long long step = whole_number_of(object, "step").value_or(0);
    if (step < 1) return;
    steps_to_s_ = number_of(object, "elapsed_s").value_or(0);
    if (!steps_from_s_) steps_from_s_ = std::max(0.0, steps_to_s_ - number_of(object, "step_ms").value_or(0) / 1000);
    if (const auto train_s = number_of(object, "train_s")) {
      run_.figures.train_s = train_s;
      run_.figures.cost_usd = number_of(object, "cost_usd");
    }
    // A step can have two lines: the run resumed before it, and the later line counts.
    while (!run_.steps.empty() && run_.steps.back().step >= step) run_.steps.pop_back();
    const LoggedStep before = run_.steps.empty() ? LoggedStep{} : run_.steps.back();
    LoggedStep logged;
    logged.step = step;
    logged.tokens = before.tokens + number_of(object, "tokens").value_or(0) * static_cast<double>(step - before.step);
    logged.elapsed_s = elapsed_s();
    logged.num_labels = std::max(1.0, number_of(object, "supervised_tokens").value_or(1));
    logged.num_documents = number_of(object, "num_documents").value_or(0);
    logged.loss = number_of(object, "loss_mean");
    if (!logged.loss) logged.loss = number_of(object, "loss");
    logged.grad_norm = number_of(object, "grad_norm");
    logged.learning_rate = number_of(object, "learning_rate");
    logged.tokens_per_s = number_of(object, "tokens_per_s");
    logged.step_ms = number_of(object, "step_ms");
    logged.data_wait_ms = number_of(object, "data_wait_ms");
    logged.memory_gib = number_of(object, "memory_gib");
    logged.gpu_utilization = number_of(object, "gpu_utilization");
    logged.gpu_power_w = number_of(object, "gpu_power_w");
    logged.gpu_temperature_c = number_of(object, "gpu_temperature_c");
    logged.gpu_clock_mhz = number_of(object, "gpu_clock_mhz");
    logged.cpu_percent = number_of(object, "cpu_percent");
    logged.host_memory_gib = number_of(object, "host_memory_gib");
    logged.gpu_throttle = texts_of(object, "gpu_throttle");
    run_.steps.push_back(logged);
    run_.figures.epoch = number_of(object, "epoch");
  }

  void eval(const Json& object) {
    LoggedEval logged;
    logged.step = whole_number_of(object, "step").value_or(0);
    logged.name = text_of(object, "name");
    std::erase_if(run_.evals, [&](const LoggedEval& other) {
      return other.step > logged.step || (other.step == logged.step && other.name == logged.name);
    });
    if (!run_.steps.empty() && logged.step > 0) {
      logged.tokens = run_.steps.back().tokens;
      logged.elapsed_s = elapsed_s();
    }
    logged.loss = number_of(object, "loss");
    logged.perplexity = number_of(object, "perplexity");
    logged.token_accuracy = number_of(object, "token_accuracy");
    logged.ece = number_of(object, "ece");
    logged.kind = text_of(object, "kind");
    logged.accuracy = number_of(object, "accuracy");
    logged.ece_equal_mass = number_of(object, "ece_equal_mass");
    logged.brier = number_of(object, "brier");
    logged.auroc = number_of(object, "auroc");
    logged.mean_confidence = number_of(object, "mean_confidence");
    logged.over_confidence = number_of(object, "over_confidence");
    logged.num_rows = number_of(object, "num_rows");
    logged.eval_s = number_of(object, "eval_s");
    logged.bins = bins_of(object);
    logged.num_tokens = std::max(1.0, number_of(object, "num_tokens").value_or(1));
    run_.evals.push_back(logged);
  }

  RunRecord& run_;
  double earlier_s_ = 0, process_s_ = 0;
  std::optional<double> steps_from_s_;  ///< of this process: the first step since the last line with spans
  double steps_to_s_ = 0;
};

void fill_losses(RunRecord& run) {
  const std::size_t window = std::max<std::size_t>(1, run.steps.size() / kLossWindows);
  double loss_sum = 0, num_labels = 0;
  const auto add = [&](const LoggedStep& step, double sign) {
    if (!step.loss) return;
    loss_sum += sign * *step.loss * step.num_labels;
    num_labels += sign * step.num_labels;
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
    const double of_step = (step.tokens - before) / static_cast<double>(step.step - step_before);
    if (step.step_ms && *step.step_ms > 0) {
      steps_s += *step.step_ms / 1000;
      tokens += of_step;
    }
    before = step.tokens;
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

}  // namespace

std::vector<ReliabilityBin> bins_of(const nlohmann::ordered_json& object) {
  const auto found = object.find("bins");
  std::vector<ReliabilityBin> bins;
  if (found == object.end() || !found->is_array() || found->size() > kMostCalibrationBins) return bins;
  for (const Json& bin : *found) {
    const bool is_bin =
        bin.is_array() && bin.size() == 3 && bin[0].is_number() && bin[1].is_number() && bin[2].is_number();
    if (!is_bin) return {};
    bins.push_back({bin[0].get<double>(), bin[1].get<double>(), bin[2].get<double>()});
  }
  return bins;
}

MetricsFile read_metrics(const std::filesystem::path& path, RunRecord& run) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored)))
    return {"no metrics.jsonl"};  // nor a link, nor a device, which might have no end
  std::ifstream file(path, std::ios::binary);
  if (!file) return {"metrics.jsonl cannot be read"};
  LineReader reader(run);
  long long number = 0, num_bad = 0, first_bad = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (file.eof()) break;  // without its line end: being written, or torn
    if (line.empty() || reader.add(line)) continue;
    if (num_bad++ == 0) first_bad = number;
  }
  if (!run.steps.empty()) {
    run.figures.step = static_cast<double>(run.steps.back().step);
    run.figures.tokens = run.steps.back().tokens;
  }
  reader.finish();
  fill_losses(run);
  fill_evals(run);
  fill_speed(run);
  MetricsFile result{number == 0 ? "metrics.jsonl is empty" : ""};
  if (num_bad > 0) {
    result.problem = "metrics.jsonl:" + std::to_string(first_bad) + " is not a metrics line" +
                     (num_bad > 1 ? " (" + std::to_string(num_bad) + " such lines)" : "");
  }
  return result;
}

std::vector<LoggedEval> mean_evals(const std::vector<LoggedEval>& evals) {
  std::vector<LoggedEval> losses;
  std::copy_if(evals.begin(), evals.end(), std::back_inserter(losses),
               [](const auto& eval) { return eval.kind.empty(); });
  std::vector<LoggedEval> means;
  double loss_weight = 0, loss = 0, weight = 0, accuracy = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const LoggedEval& eval = losses[i];
    if (eval.loss) {
      loss_weight += eval.num_tokens;
      loss += *eval.loss * eval.num_tokens;
    }
    if (eval.token_accuracy) {
      weight += eval.num_tokens;
      accuracy += *eval.token_accuracy * eval.num_tokens;
    }
    if (i + 1 < losses.size() && losses[i + 1].step == eval.step) continue;
    LoggedEval mean;
    mean.step = eval.step;
    mean.tokens = eval.tokens;
    mean.elapsed_s = eval.elapsed_s;
    if (loss_weight > 0) mean.loss = loss / loss_weight;
    if (weight > 0) mean.token_accuracy = accuracy / weight;
    means.push_back(mean);
    loss_weight = loss = weight = accuracy = 0;
  }
  return means;
}

}  // namespace lora_train::report
