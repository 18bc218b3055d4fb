#include "lora_train/report/run_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <vector>

#include "chart/charts.h"
#include "figures.h"
#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/base/version.h"
#include "lora_train/config/load.h"
#include "lora_train/report/run_log.h"
#include "lora_train/storage/run_names.h"
#include "step_fields.h"

namespace lora_train::report {

// The files of page/, embedded by cmake/embed_text.cmake.
extern const std::string_view kPageStyle;   ///< page/page.css
extern const std::string_view kPageScript;  ///< page/*.js, concatenated

namespace {

/// The evaluations of a dataset or task that have bins: the first, and that of the result's step, else the last. Both
/// point into the run.
struct Reliability {
  const LoggedEval* before = nullptr;
  const LoggedEval* after = nullptr;  ///< null if there is only one evaluation
};

/// In order of first appearance.
std::vector<Reliability> find_reliability(const RunRecord& run) {
  std::vector<Reliability> found;
  for (const LoggedEval& eval : run.evals) {
    if (eval.bins.empty()) continue;
    const auto same =
        std::find_if(found.begin(), found.end(), [&](const auto& other) { return other.before->name == eval.name; });
    if (same == found.end()) {
      found.push_back({&eval});
    } else if (same->after == nullptr || same->after->step != run.adapter_step) {
      same->after = &eval;
    }
  }
  return found;
}

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxPoints = 2000;     ///< per curve
constexpr std::size_t kMaxTextBytes = 6000;  ///< per prompt or answer

/// Rounds to six digits, more than a screen can show.
Json shortened(double value) {
  return std::isfinite(value) ? whole_or_number(std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr))
                              : Json(nullptr);
}

Json shortened(const std::optional<double>& value) { return value ? shortened(*value) : Json(nullptr); }

/// Averages neighbouring points so that a curve has at most kMaxPoints.
struct Mean {
  double sum = 0, weight = 0;
  void add(const std::optional<double>& value, double of_weight = 1) {
    if (!value || !std::isfinite(*value)) return;
    sum += *value * of_weight;
    weight += of_weight;
  }
  std::optional<double> value() const { return weight > 0 ? std::optional<double>(sum / weight) : std::nullopt; }
};

using Steps = std::span<const LoggedStep>;

std::optional<double> mean_loss(Steps steps) {
  Mean mean;
  for (const LoggedStep& step : steps) mean.add(step.loss_mean, step.num_labels());
  return mean.value();
}

std::optional<double> value_of(const StepChart::Curve& curve, Steps steps) {
  Mean mean;
  std::optional<double> largest;
  for (const LoggedStep& step : steps) {
    mean.add(step.*curve.value);
    largest = std::max(largest, step.*curve.value);
  }
  return curve.is_peak ? largest : mean.value();
}

Json curves_of(const std::vector<LoggedStep>& steps) {
  Json curves;
  for (const char* name : {"step", "tokens", "time", "loss"}) curves[name] = Json::array();
  std::vector<StepChart::Curve> known;
  for (const StepChart& chart : step_charts()) {
    for (const StepChart::Curve& curve : chart.curves) {
      const bool is_known =
          std::ranges::any_of(steps, [&](const LoggedStep& step) { return (step.*curve.value).has_value(); });
      if (chart.shown.is_optional && !is_known) continue;
      known.push_back(curve);
      curves[curve.key] = Json::array();
    }
  }
  const std::size_t group = (steps.size() + kMaxPoints - 1) / kMaxPoints;
  for (std::size_t begin = 0; begin < steps.size(); begin += group) {
    const Steps part = Steps(steps).subspan(begin, std::min(group, steps.size() - begin));
    curves["step"].push_back(part.back().step);
    curves["tokens"].push_back(shortened(part.back().total_tokens));
    curves["time"].push_back(shortened(part.back().run_s));
    curves["loss"].push_back(shortened(mean_loss(part)));
    for (const StepChart::Curve& curve : known) curves[curve.key].push_back(shortened(value_of(curve, part)));
  }
  return curves;
}

Json evals_of(const RunRecord& run) {
  Json evals = Json::array();
  for (const auto& eval : run.evals) {
    Json entry = {{"name", eval.name},
                  {"step", eval.step},
                  {"tokens", shortened(eval.total_tokens)},
                  {"time", shortened(eval.run_s)}};
    if (eval.kind) entry["kind"] = lora_train::to_string(*eval.kind);
    for (const EvalMetric& metric : all_eval_metrics()) {
      if (const auto value = eval.*metric.value) entry[metric.name] = shortened(*value);
    }
    eval.kind ? entry["num_rows"] = eval.num_rows : entry["num_tokens"] = eval.weight();
    evals.push_back(entry);
  }
  return evals;
}

/// For each dataset and task with bins, a drawing of its first evaluation and a later one.
Json reliability_of(const RunRecord& run) {
  Json drawings = Json::array();
  for (const auto& [before, after] : find_reliability(run)) {
    ReliabilityChart chart{.title = before->name + (before->kind ? ": confidence in its answers" : ": tokens")};
    chart.curves = {reliability_curve(*before, ink_of_curve(after == nullptr ? 0 : 1))};
    if (after != nullptr) chart.curves.push_back(reliability_curve(*after, ink_of_curve(0)));
    drawings.push_back(to_svg(draw(chart)));
  }
  return drawings;
}

/// `text`, or its start and the number of bytes left out.
std::string clipped(const std::string& text) {
  if (text.size() <= kMaxTextBytes) return text;
  std::size_t end = kMaxTextBytes;
  while (end > 0 && is_continuation(text[end])) --end;
  return text.substr(0, end) + " ... [" + format_count(text.size() - end) + " more bytes]";
}

Json answers_of(const RunRecord& run) {
  Json answers = Json::array();
  for (const EvalAnswer& answer : run.answers) {
    answers.push_back({{"step", answer.step},
                       {"name", answer.name},
                       {"source", answer.source},
                       {"prompt", clipped(answer.prompt)},
                       {"expected", clipped(answer.expected.value_or(""))},
                       {"answer", clipped(answer.answer)},
                       {"is_right", answer.is_right}});
    if (answer.confidence) answers.back()["confidence"] = shortened(*answer.confidence);
  }
  return answers;
}

/// The reasons for GPU throttling, and the number of logged steps affected.
Json throttling_of(const RunRecord& run) {
  std::map<std::string, int> counts;
  for (const LoggedStep& step : run.steps) {
    for (const std::string& reason : step.gpu_throttle) ++counts[reason];
  }
  return counts;
}

/// Name "": the mean over datasets, used by the figures.
Json mean_evals_of(const RunRecord& run) {
  Json means;
  for (const char* name : {"step", "tokens", "time", "loss", "token_accuracy"}) means[name] = Json::array();
  for (const auto& eval : mean_evals(run.evals)) {
    means["step"].push_back(eval.step);
    means["tokens"].push_back(shortened(eval.total_tokens));
    means["time"].push_back(shortened(eval.run_s));
    means["loss"].push_back(shortened(eval.loss));
    means["token_accuracy"].push_back(shortened(eval.token_accuracy));
  }
  return means;
}

/// The timeline. Leaves out spans too short to show, and merges the spans around them.
Json spans_of(const RunRecord& run) {
  const double least_s = run.spans.empty() ? 0 : run.spans.back().to_s / kMaxPoints;
  std::vector<LoggedSpan> shown;
  for (const LoggedSpan& span : run.spans) {
    if (!shown.empty() && shown.back().phase == span.phase && span.from_s - shown.back().to_s < least_s) {
      shown.back().to_s = span.to_s;
    } else if (span.to_s - span.from_s >= least_s) {
      shown.push_back(span);
    }
  }
  Json spans = Json::array();
  for (const LoggedSpan& span : shown) spans.push_back({span.phase, shortened(span.from_s), shortened(span.to_s)});
  return spans;
}

Json run_object(const RunRecord& run, const std::vector<std::string>& keys) {
  Json object = {{"name", run.name}, {"folder", run.folder.string()}, {"status", run.status}, {"reason", run.reason}};
  object["profile"] = Json::object();
  for (const auto& key : keys) {
    for (const auto& [name, value] : run.profile) {
      if (name == key) object["profile"][key] = Json::parse(value, nullptr, false);
    }
  }
  for (const auto& figure : figures()) object["figures"][figure.name] = shortened(run.figures.*figure.value);
  object["curves"] = curves_of(run.steps);
  object["eval"] = mean_evals_of(run);
  object["evals"] = evals_of(run);
  return object;
}

Json chart_object(const StepChart& chart) {
  const StepCurve& shown = chart.shown;
  Json object = {{"title", shown.title},
                 {"unit", shown.unit},
                 {"kind", shown.format},
                 {"is_smoothed", shown.is_smoothed},
                 {"from_zero", shown.from_zero},
                 {"may_log", shown.may_log},
                 {"is_optional", shown.is_optional},
                 {"is_compared", shown.is_compared}};
  for (const StepChart::Curve& curve : chart.curves) object["curves"].push_back({curve.key, curve.name});
  return object;
}

Json page_object(const char* kind, const std::vector<RunRecord>& runs) {
  Json object = {{"kind", kind}, {"version", version()}};
  for (const StepChart& chart : step_charts()) object["charts"].push_back(chart_object(chart));
  for (const auto& figure : table_figures(runs)) object["columns"].push_back({figure.name, name_of(figure.kind)});
  return object;
}

/// Escapes JSON for a script element: nothing in it may look like a tag or a comment.
std::string script_json(const Json& object) {
  std::string out;
  for (const char c : to_line(object)) {
    const bool is_special = c == '<' || c == '>' || c == '&';
    is_special ? out += fmt::format("\\u{:04x}", static_cast<unsigned>(c)) : out += c;
  }
  return out;
}

constexpr std::string_view kPageStart = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
constexpr std::string_view kDataStart = "<script type=\"application/json\" id=\"data\">";

/// `scripts`: true if the page runs scripts.
std::string framed(const std::string& title, bool scripts, const std::string& body) {
  std::string html = fmt::format(
      "{}<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta "
      "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; {}img-src "
      "data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>",
      kPageStart, scripts ? "script-src 'unsafe-inline'; " : "");
  html += escape_html(repair_utf8(title));
  html += "</title>\n<style>\n";
  html += kPageStyle;
  return fmt::format("{}</style>\n</head>\n<body>\n{}</body>\n</html>\n", html, body);
}

/// For readers without JavaScript: the figures in words, and where to find all of them.
std::string figures_in_words(const RunRecord& run) {
  const RunFigures& figures = run.figures;
  std::string text = "<h1>" + escape_html(repair_utf8(run.name)) + ": " + escape_html(run.status) + "</h1>\n<ul>\n";
  const auto add = [&](const char* name, const std::optional<double>& value, const char* unit) {
    if (value) text += fmt::format("<li>{} {:.6g}{}</li>\n", name, *value, unit);
  };
  add("steps", figures.step, "");
  add("final training loss", figures.last_train_loss, "");
  add("final evaluation loss", figures.eval_loss, "");
  add("lowest evaluation loss", figures.best_eval_loss, "");
  add("tokens", figures.tokens, "");
  add("tokens per second", figures.tokens_per_s, "");
  add("duration", figures.wall_s, " s");
  add("peak GPU memory", figures.peak_memory_gib, " GiB");
  return text +
         "</ul>\n<p>All numbers are in summary.json and metrics.jsonl (one line per step), next to this page.</p>\n";
}

std::string page(const std::string& title, const Json& data, const std::string& in_words = "") {
  std::string body =
      "<main id=\"page\"></main>\n"
      "<noscript>The curves and tables of this page need JavaScript, which is turned off.\n";
  body += in_words + "</noscript>\n";
  body += kDataStart;
  body += script_json(data);
  body += "</script>\n<script>\n";
  body += kPageScript;
  body += "</script>\n";
  return framed(title, /*scripts=*/true, body);
}

}  // namespace

std::string plain_page(const std::string& title, const std::string& body) {
  return framed(title, /*scripts=*/false, fmt::format("<main>\n{}</main>\n", body));
}

bool is_comparison_page(std::string_view start) {
  return start.starts_with(kPageStart) &&
         start.find(std::string(kDataStart) + "{\"kind\":\"compare\"") != std::string_view::npos;
}

std::string comparison_page(const Comparison& comparison) {
  Json data = page_object("compare", comparison.runs);
  data["differing"] = comparison.differing;
  for (const auto& run : comparison.runs) data["runs"].push_back(run_object(run, comparison.differing));
  return page(fmt::format("{} runs compared", comparison.runs.size()), data);
}

std::string report_page(const RunRecord& run) {
  Json data = page_object("report", {run});
  std::vector<std::string> keys;
  for (const auto& setting : run.profile) keys.push_back(setting.first);
  data["differing"] = Json::array();
  Json object = run_object(run, keys);
  object["reliability"] = reliability_of(run);
  object["answers"] = answers_of(run);
  object["gpu_throttle"] = throttling_of(run);
  object["phases_s"] = to_object(run.phases_s);
  object["spans"] = spans_of(run);
  object["processes_s"] = Json::array();
  for (const double start_s : run.processes_s) object["processes_s"].push_back(shortened(start_s));
  object["started_at"] = or_null(run.started_at);
  object["start"] = run.start_json.empty() ? Json(nullptr) : Json::parse(run.start_json, nullptr, false);
  object["defaults"] = Json::parse(to_json(Profile()));
  object["summary"] = run.summary_json.empty() ? Json(nullptr) : Json::parse(run.summary_json, nullptr, false);
  data["runs"].push_back(object);
  return page("Run " + run.name, data, figures_in_words(run));
}

void write_report(const std::filesystem::path& folder) noexcept {
  try {
    const RunRecord run = read_run(folder);
    write_file_atomic(folder / storage::kPageFile, report_page(run));
    if (!run.steps.empty() || !run.evals.empty()) write_file_atomic(folder / storage::kCurvesFile, curves_png(run));
  } catch (...) {
    log_warning("report.html or {} was not written: {}", storage::kCurvesFile, describe_current_exception().text());
  }
}

}  // namespace lora_train::report
