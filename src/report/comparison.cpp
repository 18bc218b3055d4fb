#include "lora_train/report/comparison.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "figures.h"
#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/reference.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"
#include "text_table.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;

const std::string* find_setting(const RunRecord& run, const std::string& key) {
  for (const auto& [name, value] : run.profile) {
    if (name == key) return &value;
  }
  return nullptr;
}

void make_names_unique(std::vector<RunRecord>& runs) {
  std::map<std::string, int> counts;
  for (const auto& run : runs) ++counts[run.name];
  for (auto& run : runs) {
    if (counts[run.name] > 1) run.name = run.folder.lexically_normal().string();
  }
}

std::vector<std::string> differing_keys(const std::vector<RunRecord>& runs) {
  std::vector<std::string> keys;
  for (const auto& key : profile_keys()) {
    if (key == "output_dir" || key == "run_name") continue;
    std::set<std::string> values;
    for (const auto& run : runs) {
      if (const std::string* value = find_setting(run, key)) values.insert(*value);
    }
    if (values.size() > 1) keys.push_back(key);
  }
  return keys;
}

/// What a column shows of a run that is neither a figure nor a key of the profile; nullopt for other columns.
std::optional<std::string> label_of(const RunRecord& run, const std::string& column) {
  if (column == "run") return run.name;
  if (column == "folder") return run.folder.string();
  if (column == "status") return run.status;
  if (column == "reason") return run.reason;
  return std::nullopt;
}

/// The column for a name. `flag` appears in the error for an unknown name.
std::string column_named(const Comparison& comparison, const std::string& flag, const std::string& name) {
  std::vector<std::string> known = column_names(comparison);
  known.emplace_back("reason");
  // A key that does not differ tells little, but is allowed.
  for (const auto& key : profile_keys()) known.push_back(key);
  if (std::ranges::count(known, name) > 0) return name;
  if (const std::string ours = metric_from(name); std::ranges::count(known, ours) > 0) return ours;
  throw ConfigError(flag, "no column \"{}\".{} Available: {}, and all profile keys.", name,
                    did_you_mean(nearest_names(name, known)), join(column_names(comparison)));
}

/// The value to sort a run by: true for a text, since numbers come first; the number; the text. Empty: unknown.
using SortKey = std::optional<std::tuple<bool, double, std::string>>;

SortKey sort_key(const RunRecord& run, const std::string& column) {
  std::string text;
  if (const auto label = label_of(run, column)) {
    text = *label;
  } else if (const Figure* const figure = find_figure(column)) {
    const auto value = run.figures.*figure->value;
    return value ? SortKey({false, *value, ""}) : std::nullopt;
  } else if (const std::string* const setting = find_setting(run, column)) {
    const Json value = Json::parse(*setting, nullptr, false);
    if (value.is_number()) return SortKey({false, value.get<double>(), ""});
    if (!value.is_null()) text = profile_text(run, column);
  }
  return text.empty() ? std::nullopt : SortKey({true, 0, text});
}

/// A spreadsheet would evaluate a text that begins like a formula.
bool is_formula(const std::string& text) {
  return !text.empty() && std::string_view("=+-@").find(text.front()) != std::string_view::npos && !parse_number(text);
}

std::string csv_field(const std::string& raw) {
  const std::string text = (is_formula(raw) ? "'" : "") + visible_text(raw);  // a terminal may show the file
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (const auto& field : fields) line += (&field == &fields.front() ? "" : ",") + csv_field(field);
  return line + "\n";
}

/// Columns of CSV and JSON after run, folder and status.
std::vector<std::string> file_columns(const Comparison& comparison) {
  std::vector<std::string> names = comparison.columns;
  std::erase_if(names, [](const std::string& name) { return name == "folder" || name == "status"; });
  if (!comparison.columns.empty()) return names;
  names = comparison.differing;
  for (const auto& figure : figures()) names.emplace_back(figure.name);
  names.emplace_back("reason");
  return names;
}

std::string field_text(const RunRecord& run, const std::string& name) {
  const Figure* const figure = find_figure(name);
  if (figure == nullptr) return label_of(run, name).value_or(profile_text(run, name));
  const auto value = run.figures.*figure->value;
  return value ? whole_or_number(*value).dump() : "";
}

constexpr std::size_t kLongestCell = 32;
constexpr std::size_t kGap = 2;

std::string shown(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return visible_text(text);
}

std::string cut_to(const std::string& text, std::size_t width) {
  if (count_chars(text) <= width) return text;
  std::string out;
  std::size_t at = 0;
  for (std::size_t i = 0; i + 3 < width; ++i) {
    const std::size_t length = std::max<std::size_t>(1, utf8_char(text, at).length);
    out += text.substr(at, length);
    at += length;
  }
  return out + std::string("...").substr(0, std::min<std::size_t>(3, width));
}

const char* color_of(const std::string& status) {
  if (status == "done") return "\x1b[32m";
  return status == "failed" || status == "broken" ? "\x1b[31m" : "\x1b[33m";
}

bool is_long(const Comparison& comparison, const std::string& key) {
  return std::any_of(comparison.runs.begin(), comparison.runs.end(),
                     [&](const RunRecord& run) { return count_chars(shown(profile_text(run, key))) > kLongestCell; });
}

bool is_number(const std::string& text) {
  return text == "-" || text == "none" ||
         (!text.empty() && text.find_first_not_of("0123456789.+-e") == std::string::npos);
}

Column table_column(const Comparison& comparison, const std::string& name) {
  const Figure* const figure = find_figure(name);
  Column column{name, true, {}};
  std::optional<double> lowest;
  for (const auto& run : comparison.runs) {
    const auto value = figure ? run.figures.*figure->value : std::nullopt;
    const std::string text = value ? format_figure(*value, figure->kind) : figure ? "" : shown(field_text(run, name));
    column.cells.push_back({text.empty() ? "-" : text, name == "status" ? color_of(run.status) : ""});
    column.is_number = column.is_number && (figure || (!label_of(run, name) && is_number(column.cells.back().text)));
    if (value) lowest = std::min(lowest.value_or(*value), *value);
  }
  if (!lowest || figure->kind != FigureKind::kLoss || comparison.runs.size() < 2) return column;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    if (comparison.runs[i].figures.*figure->value == lowest) column.cells[i].color = "\x1b[1m";
  }
  return column;
}

/// Columns after run, including long values.
std::vector<std::string> table_column_names(const Comparison& comparison) {
  if (!comparison.columns.empty()) return comparison.columns;
  std::vector<std::string> names = comparison.differing;
  names.emplace_back("status");
  for (const auto& figure : table_figures(comparison.runs)) names.emplace_back(figure.name);
  return names;
}

std::vector<Column> table_columns(const Comparison& comparison) {
  std::vector<Column> columns = {table_column(comparison, "run")};
  for (const auto& name : table_column_names(comparison)) {
    if (find_figure(name) || !is_long(comparison, name)) columns.push_back(table_column(comparison, name));
  }
  return columns;
}

/// One column per run, in blocks of at most `width` columns.
std::string blocks(const std::vector<Column>& columns, std::size_t num_runs, std::size_t width, bool use_color) {
  std::size_t names = 0;
  for (const auto& column : columns) names = std::max(names, count_chars(column.title));
  const std::size_t room = std::max<std::size_t>(8, width > names + kGap ? width - names - kGap : 0);
  std::vector<std::size_t> widths(num_runs, 0);
  for (const auto& column : columns) {
    for (std::size_t run = 0; run < num_runs; ++run)
      widths[run] = std::max(widths[run], count_chars(column.cells[run].text));
  }
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < num_runs; begin = end) {
    std::size_t used = 0;
    for (end = begin; end < num_runs; ++end) {
      widths[end] = std::min(widths[end], room);
      if (end > begin && used + widths[end] > room) break;
      used += widths[end] + kGap;
    }
    if (begin > 0) text += "\n";
    for (const auto& column : columns) {
      std::string line = padded(column.title, names);
      for (std::size_t run = begin; run < end; ++run) {
        const Cell& cell = column.cells[run];
        line += "  " + padded(cut_to(cell.text, widths[run]), widths[run], true, use_color ? cell.color : "");
      }
      text += line_of(line);
    }
  }
  return text;
}

/// A line for each run that has a text, after its name.
std::string line_per_run(const Comparison& comparison, const auto& text_of) {
  Column names = table_column(comparison, "run");
  names.title.clear();
  const std::size_t width = width_of(names);
  std::string lines;
  for (const auto& run : comparison.runs) {
    const std::optional<std::string> text = text_of(run);
    if (text) lines += line_of(fmt::format("  {}  {}", padded(shown(run.name), width), *text));
  }
  return lines;
}

std::string long_settings(const Comparison& comparison) {
  std::string text;
  for (const auto& key : table_column_names(comparison)) {
    if (!is_long(comparison, key)) continue;
    const auto setting = [&](const RunRecord& run) { return shown(profile_text(run, key)); };
    text += fmt::format("\n{}\n{}", key, line_per_run(comparison, setting));
  }
  return text;
}

std::string reasons(const Comparison& comparison) {
  std::string text;
  for (const auto& run : comparison.runs) {
    if (run.reason.empty()) continue;
    text += (text.empty() ? "\n" : "") + shown(run.name) + ": " + shown(run.status) + ": " + shown(run.reason) + "\n";
  }
  return text;
}

/// The run that the others are compared with; null if there is none.
const RunRecord* baseline_of(const Comparison& comparison) {
  const auto base = std::ranges::find(comparison.runs, std::filesystem::path(comparison.baseline), &RunRecord::folder);
  return base == comparison.runs.end() ? nullptr : &*base;
}

/// How the evaluation losses of the runs compare with that of the first one.
std::string loss_differences(const Comparison& comparison) {
  const std::string text = line_per_run(comparison, [&](const RunRecord& run) {
    const auto difference = difference_to_baseline(comparison, run);
    return difference ? std::optional(in_words(*difference)) : std::nullopt;
  });
  if (text.empty()) return "";
  return fmt::format("\nevaluation loss compared with {} on the same documents\n{}",
                     shown(baseline_of(comparison)->name), text);
}

}  // namespace

Comparison compare_runs(const std::vector<std::filesystem::path>& folders) {
  Comparison comparison;
  for (const auto& folder : folders) comparison.runs.push_back(read_run(folder));
  make_names_unique(comparison.runs);
  comparison.differing = differing_keys(comparison.runs);
  if (!comparison.runs.empty()) comparison.baseline = comparison.runs.front().folder.string();
  return comparison;
}

std::optional<LossDifference> difference_to_baseline(const Comparison& comparison, const RunRecord& run) {
  const RunRecord* const base = baseline_of(comparison);
  if (base == nullptr || base == &run) return std::nullopt;
  return difference_of(base->document_losses, run.document_losses);
}

std::vector<std::string> column_names(const Comparison& comparison) {
  std::vector<std::string> names = {"run", "folder", "status"};
  names.insert(names.end(), comparison.differing.begin(), comparison.differing.end());
  for (const auto& figure : figures()) names.emplace_back(figure.name);
  return names;
}

void choose_columns(Comparison& comparison, const std::vector<std::string>& names) {
  std::vector<std::string> columns;
  for (const auto& name : names) {
    const std::string column = column_named(comparison, "--columns", trimmed(name));
    if (column != "run" && std::ranges::count(columns, column) == 0) columns.push_back(column);
  }
  comparison.columns = std::move(columns);
}

void sort_runs(Comparison& comparison, const std::string& column) {
  const bool is_descending = column.starts_with('-');
  const std::string name = column_named(comparison, "--sort", column.substr(is_descending ? 1 : 0));
  std::vector<std::pair<SortKey, RunRecord>> order;
  for (auto& run : comparison.runs) order.emplace_back(sort_key(run, name), std::move(run));
  std::ranges::stable_sort(order, [&](const auto& a, const auto& b) {
    if (!a.first || !b.first) return a.first && !b.first;
    return is_descending ? b.first < a.first : a.first < b.first;
  });
  comparison.runs.clear();
  for (auto& entry : order) comparison.runs.push_back(std::move(entry.second));
}

std::string profile_text(const RunRecord& run, const std::string& key) {
  const std::string* setting = find_setting(run, key);
  if (!setting) return "";
  const Json value = Json::parse(*setting, nullptr, false);
  if (value.is_string()) return value.get<std::string>();
  return value.is_null() ? "none" : *setting;
}

bool is_comparison_csv(std::string_view start) { return start.starts_with("run,folder,status,"); }

std::string comparison_csv(const Comparison& comparison) {
  std::vector<std::string> names = {"run", "folder", "status"};
  for (const auto& name : file_columns(comparison)) names.push_back(name);
  std::string text = csv_line(names);
  for (const auto& run : comparison.runs) {
    std::vector<std::string> fields;
    for (const auto& name : names) fields.push_back(field_text(run, name));
    text += csv_line(fields);
  }
  return text;
}

std::string comparison_json(const Comparison& comparison) {
  std::string text;
  for (const auto& run : comparison.runs) {
    Json object = {
        {"run", run.name}, {"folder", run.folder.string()}, {"status", run.status}, {"reason", or_null(run.reason)}};
    object["profile"] = Json::object();
    const std::vector<std::string> columns = file_columns(comparison);
    for (const auto& [key, value] : run.profile) {
      if (std::ranges::count(columns, key) > 0) object["profile"][key] = Json::parse(value, nullptr, false);
    }
    for (const auto& name : columns) {
      const Figure* const figure = find_figure(name);
      if (figure == nullptr) continue;
      const auto value = run.figures.*figure->value;
      object[name] = value ? whole_or_number(*value) : Json(nullptr);
    }
    if (!comparison.columns.empty()) {
      text += to_line(object) + "\n";
      continue;
    }
    const auto difference = difference_to_baseline(comparison, run);
    object["eval_loss_difference"] =
        difference ? Json::parse(to_json(*difference, comparison.baseline)) : Json(nullptr);
    object["phases_s"] = run.phases_s.empty() ? Json(nullptr) : to_object(run.phases_s);
    text += to_line(object) + "\n";
  }
  return text;
}

std::string comparison_table(const Comparison& comparison, int width, bool use_color) {
  const std::vector<Column> columns = table_columns(comparison);
  const std::size_t num_runs = comparison.runs.size();
  std::size_t needed = 0;
  for (const auto& column : columns) needed += width_of(column) + kGap;
  const bool fits = width <= 0 || needed - kGap <= static_cast<std::size_t>(width);
  return (fits ? rows_of(columns, use_color) : blocks(columns, num_runs, static_cast<std::size_t>(width), use_color)) +
         long_settings(comparison) + loss_differences(comparison) + reasons(comparison);
}

}  // namespace lora_train::report
