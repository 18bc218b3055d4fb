#include "lora_train/metrics/run_page.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "figures.h"
#include "lora_train/base/error_report.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/base/version.h"
#include "lora_train/base/visible_text.h"
#include "page_assets.h"
#include "read_metrics.h"
#include "times_json.h"

namespace lora_train::metrics {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxPoints = 2000;  ///< of a curve

/// Rounds to six digits, more than a screen can show.
Json shortened(double value) {
  return std::isfinite(value) ? whole_or_number(std::strtod(string_printf("%.6g", value).c_str(), nullptr))
                              : Json(nullptr);
}

Json shortened(const std::optional<double>& value) { return value ? shortened(*value) : Json(nullptr); }

/// Averages neighbouring points, so that a curve has at most kMaxPoints.
struct Mean {
  double sum = 0, weight = 0;
  void add(const std::optional<double>& value, double of_weight = 1) {
    if (!value || !std::isfinite(*value)) return;
    sum += *value * of_weight;
    weight += of_weight;
  }
  std::optional<double> value() const { return weight > 0 ? std::optional<double>(sum / weight) : std::nullopt; }
};

Json curves_of(const std::vector<LoggedStep>& steps) {
  Json curves;
  for (const char* name :
       {"step", "tokens", "time", "loss", "grad_norm", "learning_rate", "tokens_per_s", "data_wait_ms", "memory_gib"}) {
    curves[name] = Json::array();
  }
  const std::size_t group = (steps.size() + kMaxPoints - 1) / kMaxPoints;
  for (std::size_t begin = 0; begin < steps.size(); begin += group) {
    const std::size_t end = std::min(steps.size(), begin + group);
    Mean mean_loss, mean_speed, mean_wait;
    std::optional<double> largest_norm, largest_memory;  // a peak must not vanish
    for (std::size_t i = begin; i < end; ++i) {
      mean_loss.add(steps[i].loss, steps[i].num_labels);
      mean_speed.add(steps[i].tokens_per_s);
      mean_wait.add(steps[i].data_wait_ms);
      largest_norm = std::max(largest_norm, steps[i].grad_norm);
      largest_memory = std::max(largest_memory, steps[i].memory_gib);
    }
    const LoggedStep& last = steps[end - 1];
    curves["step"].push_back(last.step);
    curves["tokens"].push_back(shortened(last.tokens));
    curves["time"].push_back(shortened(last.elapsed_s));
    curves["loss"].push_back(shortened(mean_loss.value()));
    curves["grad_norm"].push_back(shortened(largest_norm));
    curves["learning_rate"].push_back(shortened(last.learning_rate));
    curves["tokens_per_s"].push_back(shortened(mean_speed.value()));
    curves["data_wait_ms"].push_back(shortened(mean_wait.value()));
    curves["memory_gib"].push_back(shortened(largest_memory));
  }
  return curves;
}

Json evals_of(const RunRecord& run) {
  Json evals = Json::array();
  for (const auto& eval : run.evals) {
    evals.push_back({{"name", eval.name},
                     {"step", eval.step},
                     {"tokens", shortened(eval.tokens)},
                     {"time", shortened(eval.elapsed_s)},
                     {"loss", shortened(eval.loss)},
                     {"perplexity", shortened(eval.perplexity)},
                     {"token_accuracy", shortened(eval.token_accuracy)},
                     {"ece", shortened(eval.ece)},
                     {"num_tokens", shortened(eval.num_tokens)}});
  }
  return evals;
}

/// Name "": the mean over data sets, which the figures use.
Json mean_evals_of(const RunRecord& run) {
  Json step = Json::array(), tokens = Json::array(), time = Json::array(), loss = Json::array();
  for (const auto& eval : mean_evals(run.evals)) {
    step.push_back(eval.step);
    tokens.push_back(shortened(eval.tokens));
    time.push_back(shortened(eval.elapsed_s));
    loss.push_back(shortened(eval.loss));
  }
  return {{"step", step}, {"tokens", tokens}, {"time", time}, {"loss", loss}};
}

/// What ran when. A span that no screen can show is left out, and the ones around it become one.
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
  return object;
}

Json page_object(const char* kind, const std::vector<RunRecord>& runs) {
  Json object = {{"kind", kind}, {"version", version()}};
  for (const auto& figure : table_figures(runs)) object["columns"].push_back({figure.name, name_of(figure.kind)});
  return object;
}

std::string with_replaced(const std::string& text, const std::map<char, const char*>& replacements) {
  std::string out;
  for (const char c : text) {
    const auto found = replacements.find(c);
    found == replacements.end() ? out += c : out += found->second;
  }
  return out;
}

/// Escapes JSON for a script element: nothing in it may look like a tag or a comment.
std::string script_json(const Json& object) {
  return with_replaced(to_line(object), {{'<', "\\u003c"}, {'>', "\\u003e"}, {'&', "\\u0026"}});
}

constexpr std::string_view kPageStart = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
constexpr std::string_view kDataStart = "<script type=\"application/json\" id=\"data\">";

/// `scripts`: whether the page runs any.
std::string framed(const std::string& title, bool scripts, const std::string& body) {
  std::string html =
      std::string(kPageStart) +
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; " +
      (scripts ? "script-src 'unsafe-inline'; " : "") +
      "img-src data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>";
  html += escape_html(repair_utf8(title));
  html += "</title>\n<style>\n";
  html += kPageStyle;
  return html + "</style>\n</head>\n<body>\n" + body + "</body>\n</html>\n";
}

std::string page(const std::string& title, const Json& data) {
  std::string body =
      "<main id=\"page\"></main>\n"
      "<noscript>The curves and tables of this page are drawn by its own JavaScript, which is switched "
      "off."
      "</noscript>\n";
  body += kDataStart;
  body += script_json(data);
  body += "</script>\n<script>\n";
  body += kPageScript;
  body += "</script>\n";
  return framed(title, /*scripts=*/true, body);
}

}  // namespace

std::string plain_page(const std::string& title, const std::string& body) {
  return framed(title, /*scripts=*/false, "<main>\n" + body + "</main>\n");
}

bool is_comparison_page(std::string_view start) {
  return start.starts_with(kPageStart) &&
         start.find(std::string(kDataStart) + "{\"kind\":\"compare\"") != std::string_view::npos;
}

std::string comparison_page(const Comparison& comparison) {
  Json data = page_object("compare", comparison.runs);
  data["differing"] = comparison.differing;
  for (const auto& run : comparison.runs) data["runs"].push_back(run_object(run, comparison.differing));
  return page(std::to_string(comparison.runs.size()) + " runs compared", data);
}

std::string report_page(const RunRecord& run) {
  Json data = page_object("report", {run});
  std::vector<std::string> keys;
  for (const auto& setting : run.profile) keys.push_back(setting.first);
  data["differing"] = Json::array();
  Json object = run_object(run, keys);
  object["evals"] = evals_of(run);
  object["phases_s"] = to_object(run.phases_s);
  object["spans"] = spans_of(run);
  for (const double start_s : run.processes_s) object["processes_s"].push_back(shortened(start_s));
  object["summary"] = run.summary_json.empty() ? Json(nullptr) : Json::parse(run.summary_json, nullptr, false);
  data["runs"].push_back(object);
  return page("Run " + run.name, data);
}

void write_report(const std::filesystem::path& folder) noexcept {
  try {
    write_file_atomic(folder / "report.html", report_page(read_run(folder)));
  } catch (...) {
    log_warning("report.html was not written: " + describe_current_exception().text());
  }
}

}  // namespace lora_train::metrics
