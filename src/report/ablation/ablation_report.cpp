#include "lora_train/report/ablation/ablation_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/base/visible_text.h"
#include "lora_train/report/run_page.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

const Row kHeader = {"setting", "tok/s", "speed", "loss", "eval loss", "eval loss compared", "memory", "start"};
constexpr const char* kTitle = "What each setting brings";
constexpr std::size_t kFirstNumber = 1, kWords = 5;

std::optional<LossDifference> difference_of(const Ablation& ablation, const Measurement& found) {
  const Measurement* const base = baseline(ablation.measurements);
  if (!found.is_done || base == nullptr || base == &found) return std::nullopt;
  return difference_of(base->document_losses, found.document_losses);
}

std::string speedup_of(const Ablation& ablation, const Measurement& found) {
  const Measurement* const base = baseline(ablation.measurements);
  if (!found.is_done || base == nullptr || base->tokens_per_s <= 0) return "";
  return string_printf("%.2fx", found.tokens_per_s / base->tokens_per_s);
}

/// Cells as kHeader names them; a setting that is not done has its name and a reason.
Row cells_of(const Ablation& ablation, const Measurement& found) {
  const auto difference = difference_of(ablation, found);
  return {found.setting.name,
          format_count(std::llround(found.tokens_per_s)),
          speedup_of(ablation, found),
          string_printf("%.4f", found.loss),
          found.eval_loss ? string_printf("%.4f", *found.eval_loss) : "-",
          difference ? in_words(*difference) : "-",
          found.peak_memory_gib ? string_printf("%.2f GiB", *found.peak_memory_gib) : "-",
          string_printf("%.1f s", found.startup_s)};
}

std::string work_in_words(const Ablation& ablation) {
  const Measurement* const base = baseline(ablation.measurements);
  std::string text =
      std::to_string(ablation.num_steps) + " steps of " + format_count(ablation.documents_per_step) + " documents each";
  if (base != nullptr)
    text += " (" + format_count(base->num_supervised) + " trained tokens in all), on " +
            (base->device == "cpu" ? "the CPU" : base->device);
  return text;
}

/// Of the words under the table.
std::vector<std::string> notes_of(const Ablation& ablation) {
  std::vector<std::string> notes = {
      "speed and losses are compared with \"" +
      (baseline(ablation.measurements) != nullptr ? baseline(ablation.measurements)->setting.name : std::string("-")) +
      "\"; kept: the evaluation loss is at most 1% higher, with 95% confidence over "
      "documents"};
  if (!ablation.note.empty()) notes.push_back(ablation.note);
  return notes;
}

}  // namespace

std::string ablation_table(const Ablation& ablation) {
  std::vector<Row> rows = {kHeader};
  for (const Measurement& found : ablation.measurements) {
    rows.push_back(found.is_done ? cells_of(ablation, found) : Row{found.setting.name});
  }
  std::vector<std::size_t> widths(kHeader.size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], count_chars(row[i]));
  }
  std::string text = work_in_words(ablation) + "\n\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string line;
    for (std::size_t column = 0; column < rows[i].size(); ++column) {
      const std::string space(widths[column] - count_chars(rows[i][column]), ' ');
      const bool is_right = column >= kFirstNumber && column != kWords;
      line += is_right ? space + rows[i][column] : rows[i][column] + space;
      line += "  ";
    }
    if (i > 0 && !ablation.measurements[i - 1].is_done) line += visible_text(ablation.measurements[i - 1].reason);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  text += "\n";
  for (const std::string& note : notes_of(ablation)) text += note + "\n";
  return text;
}

std::string ablation_json(const Ablation& ablation) {
  const Measurement* const base = baseline(ablation.measurements);
  std::string text;
  for (const Measurement& found : ablation.measurements) {
    const auto if_done = [&](const Json& value) { return found.is_done ? value : Json(nullptr); };
    Json object = {{"setting", found.setting.name},
                   {"tokens_per_s", if_done(found.tokens_per_s)},
                   {"loss", if_done(found.loss)},
                   {"supervised_tokens", if_done(found.num_supervised)},
                   {"documents", if_done(found.num_documents)},
                   {"speedup", base != nullptr ? if_done(found.tokens_per_s / base->tokens_per_s) : Json(nullptr)},
                   {"eval_loss", found.eval_loss ? Json(*found.eval_loss) : Json(nullptr)}};
    const auto difference = difference_of(ablation, found);
    object["eval_loss_difference"] = nullptr;
    if (difference) object["eval_loss_difference"] = Json::parse(to_json(*difference, base->setting.name));
    object["peak_memory_gib"] = found.peak_memory_gib ? Json(*found.peak_memory_gib) : Json(nullptr);
    object["startup_s"] = if_done(found.startup_s);
    object["values"] = Json::object();
    for (const auto& [key, value] : found.setting.values) object["values"][key] = value;
    object["reason"] = found.is_done ? Json(nullptr) : Json(found.reason);
    text += object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return text;
}

Drawing ablation_chart(const Ablation& ablation) {
  BarChart bars{.title = "Training speed, one setting at a time", .subtitle = work_in_words(ablation)};
  for (const Measurement& found : ablation.measurements) {
    Bar bar{.name = found.setting.name, .is_accented = found.setting.rung == Rung::kProfile};
    if (found.is_done) {
      bar.value = found.tokens_per_s;
      bar.text = format_count(std::llround(found.tokens_per_s)) + " tok/s (" + speedup_of(ablation, found) +
                 string_printf("), loss %.4f", found.loss);
      const auto difference = difference_of(ablation, found);
      if (difference) bar.text += ", eval loss " + to_string(judge(*difference));
    } else {
      bar.text = "not measured (see the table)";
    }
    bars.bars.push_back(bar);
  }
  return draw(bars);
}

std::string ablation_page(const Ablation& ablation) {
  std::string html = "<header><div><h1>" + std::string(kTitle) + "</h1>\n<p>" + escape_html(work_in_words(ablation)) +
                     "</p></div></header>\n<section class=\"card\"><div style=\"overflow-x:auto\">" +
                     to_svg(ablation_chart(ablation)) + "</div></section>\n<section class=\"card\">\n";
  for (const std::string& note : notes_of(ablation)) html += "<p>" + escape_html(note) + "</p>\n";
  html += "<div class=\"scroll\"><table><thead><tr>";
  const auto cell = [&](const char* tag, std::size_t column, const std::string& text) {
    const bool is_right = column >= kFirstNumber && column != kWords;
    html += std::string("<") + tag + (is_right ? " class=\"number\">" : ">") + escape_html(text) + "</" + tag + ">";
  };
  for (std::size_t i = 0; i < kHeader.size(); ++i) cell("th", i, kHeader[i]);
  html += "</tr></thead><tbody>\n";
  for (const Measurement& found : ablation.measurements) {
    html += "<tr>";
    if (found.is_done) {
      const Row cells = cells_of(ablation, found);
      for (std::size_t i = 0; i < cells.size(); ++i) cell(i == 0 ? "th" : "td", i, cells[i]);
    } else {
      cell("th", 0, found.setting.name);
      html += "<td class=\"long\" colspan=\"" + std::to_string(kHeader.size() - 1) + "\">" + escape_html(found.reason) +
              "</td>";
    }
    html += "</tr>\n";
  }
  return plain_page(kTitle, html + "</tbody></table></div></section>\n");
}

bool is_ablation_page(std::string_view start) {
  return start.starts_with("<!doctype html>") && start.find(std::string("<title>") + kTitle) != std::string_view::npos;
}

}  // namespace lora_train::report
