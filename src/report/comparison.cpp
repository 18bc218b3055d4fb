#include "lora_train/report/comparison.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "figures.h"
#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/reference.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"

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

/// The value to sort a run by.
struct SortKey {
  bool is_known = false, is_number = false;
  double number = 0;
  std::string text = {};
};

SortKey key_of_text(std::string text) { return {!text.empty(), false, 0, std::move(text)}; }

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

SortKey sort_key(const RunRecord& run, const std::string& column) {
  if (column == "run") return key_of_text(run.name);
  if (column == "folder") return key_of_text(run.folder.string());
  if (column == "status") return key_of_text(run.status);
  if (column == "reason") return key_of_text(run.reason);
  if (const Figure* const figure = find_figure(column)) {
    const auto value = run.figures.*figure->value;
    return {value.has_value(), true, value.value_or(0)};
  }
  const std::string* setting = find_setting(run, column);
  const Json value = setting ? Json::parse(*setting, nullptr, false) : Json();
  if (value.is_null()) return {};
  if (value.is_number()) return {true, true, value.get<double>()};
  return key_of_text(profile_text(run, column));
}

bool is_before(const SortKey& a, const SortKey& b) {
  if (a.is_number != b.is_number) return a.is_number;
  return a.is_number ? a.number < b.number : a.text < b.text;
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
  if (name == "run") return run.name;
  if (name == "folder") return run.folder.string();
  if (name == "status") return run.status;
  if (name == "reason") return run.reason;
  const Figure* const figure = find_figure(name);
  if (figure == nullptr) return profile_text(run, name);
  const auto value = run.figures.*figure->value;
  return value ? whole_or_number(*value).dump() : "";
}

constexpr std::size_t kLongestCell = 32;
constexpr std::size_t kGap = 2;

struct Cell {
  std::string text;
  const char* color = "";  ///< an escape code
};

struct Column {
  std::string name;
  bool is_number = false;
  std::vector<Cell> cells;  ///< one per run
};

std::string shown(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return visible_text(text);
}

std::size_t width_of(const std::string& text) { return count_chars(text); }

std::string cut_to(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) return text;
  std::string out;
  std::size_t at = 0;
  for (std::size_t i = 0; i + 3 < width; ++i) {
    const std::size_t length = std::max<std::size_t>(1, utf8_char(text, at).length);
    out += text.substr(at, length);
    at += length;
  }
  return out + std::string("...").substr(0, std::min<std::size_t>(3, width));
}

std::string padded(const std::string& text, std::size_t width, bool is_right, const char* color = "") {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  const std::string painted = *color == '\0' ? text : color + text + "\x1b[0m";
  return is_right ? space + painted : painted + space;
}

const char* color_of(const std::string& status) {
  if (status == "done") return "\x1b[32m";
  return status == "failed" || status == "broken" ? "\x1b[31m" : "\x1b[33m";
}

bool is_long(const Comparison& comparison, const std::string& key) {
  return std::any_of(comparison.runs.begin(), comparison.runs.end(),
                     [&](const RunRecord& run) { return width_of(shown(profile_text(run, key))) > kLongestCell; });
}

bool is_number(const std::string& text) {
  return text == "-" || text == "none" ||
         (!text.empty() && text.find_first_not_of("0123456789.+-e") == std::string::npos);
}

Column setting_column(const Comparison& comparison, const std::string& key) {
  Column column{key, true, {}};
  for (const auto& run : comparison.runs) {
    const std::string text = profile_text(run, key);
    column.cells.push_back({text.empty() ? "-" : shown(text)});
    column.is_number = column.is_number && is_number(column.cells.back().text);
  }
  return column;
}

Column figure_column(const Comparison& comparison, const Figure& figure) {
  Column column{figure.name, true, {}};
  std::optional<double> lowest;
  for (const auto& run : comparison.runs) {
    const auto value = run.figures.*figure.value;
    column.cells.push_back({value ? format_figure(*value, figure.kind) : "-"});
    if (value) lowest = std::min(lowest.value_or(*value), *value);
  }
  if (figure.kind != FigureKind::kLoss || comparison.runs.size() < 2) return column;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    if (lowest && comparison.runs[i].figures.*figure.value == lowest) column.cells[i].color = "\x1b[1m";
  }
  return column;
}

Column text_column(const Comparison& comparison, const std::string& name) {
  Column column{name, false, {}};
  for (const auto& run : comparison.runs) {
    if (name == "status") {
      column.cells.push_back({shown(run.status), color_of(run.status)});
    } else {
      const std::string text = name == "folder" ? run.folder.string() : run.reason;
      column.cells.push_back({text.empty() ? "-" : shown(text)});
    }
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
  std::vector<Column> columns = {{"run", false, {}}};
  for (const auto& run : comparison.runs) columns[0].cells.push_back({shown(run.name)});
  for (const auto& name : table_column_names(comparison)) {
    if (const Figure* const figure = find_figure(name)) {
      columns.push_back(figure_column(comparison, *figure));
    } else if (name == "status" || name == "folder" || name == "reason") {
      columns.push_back(text_column(comparison, name));
    } else if (!is_long(comparison, name)) {
      columns.push_back(setting_column(comparison, name));
    }
  }
  return columns;
}

std::size_t width_of(const Column& column) {
  std::size_t width = width_of(column.name);
  for (const auto& cell : column.cells) width = std::max(width, width_of(cell.text));
  return width;
}

std::string without_trailing_space(std::string line) {
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line + "\n";
}

/// One row per run.
std::string rows(const std::vector<Column>& columns, std::size_t num_runs, bool use_color) {
  std::string text, line;
  for (const auto& column : columns) line += padded(column.name, width_of(column), column.is_number) + "  ";
  text += without_trailing_space(line);
  for (std::size_t run = 0; run < num_runs; ++run) {
    line.clear();
    for (const auto& column : columns) {
      const Cell& cell = column.cells[run];
      line += padded(cell.text, width_of(column), column.is_number, use_color ? cell.color : "") + "  ";
    }
    text += without_trailing_space(line);
  }
  return text;
}

/// One column per run, in blocks of at most `width` columns.
std::string blocks(const std::vector<Column>& columns, std::size_t num_runs, std::size_t width, bool use_color) {
  std::size_t names = 0;
  for (const auto& column : columns) names = std::max(names, width_of(column.name));
  const std::size_t room = std::max<std::size_t>(8, width > names + kGap ? width - names - kGap : 0);
  std::vector<std::size_t> widths(num_runs, 0);
  for (const auto& column : columns) {
    for (std::size_t run = 0; run < num_runs; ++run)
      widths[run] = std::max(widths[run], width_of(column.cells[run].text));
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
      std::string line = padded(column.name, names, false);
      for (std::size_t run = begin; run < end; ++run) {
        const Cell& cell = column.cells[run];
        line += "  " + padded(cut_to(cell.text, widths[run]), widths[run], true, use_color ? cell.color : "");
      }
      text += without_trailing_space(line);
    }
  }
  return text;
}

std::string long_settings(const Comparison& comparison) {
  std::size_t names = 0;
  for (const auto& run : comparison.runs) names = std::max(names, width_of(shown(run.name)));
  std::string text;
  for (const auto& key : table_column_names(comparison)) {
    if (!is_long(comparison, key)) continue;
    text += fmt::format("\n{}\n", key);
    for (const auto& run : comparison.runs) {
      text += without_trailing_space(
          fmt::format("  {}  {}", padded(shown(run.name), names, false), shown(profile_text(run, key))));
    }
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

/// How the evaluation losses of the runs compare with that of the first one.
std::string loss_differences(const Comparison& comparison) {
  std::size_t names = 0;
  for (const auto& run : comparison.runs) names = std::max(names, width_of(shown(run.name)));
  std::string text;
  for (const auto& run : comparison.runs) {
    const auto difference = difference_to_baseline(comparison, run);
    if (difference) text += fmt::format("  {}  {}\n", padded(shown(run.name), names, false), in_words(*difference));
  }
  if (text.empty()) return "";
  std::string base;
  for (const auto& run : comparison.runs) {
    if (run.folder == comparison.baseline) base = shown(run.name);
  }
  return fmt::format("\nevaluation loss compared with {} on the same documents\n{}", base, text);
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
  const auto base = std::find_if(comparison.runs.begin(), comparison.runs.end(),
                                 [&](const RunRecord& other) { return other.folder == comparison.baseline; });
  if (base == comparison.runs.end() || &*base == &run) return std::nullopt;
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
  std::vector<std::pair<SortKey, std::size_t>> order;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) order.emplace_back(sort_key(comparison.runs[i], name), i);
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    if (a.first.is_known != b.first.is_known) return a.first.is_known;
    if (!a.first.is_known) return false;
    return is_descending ? is_before(b.first, a.first) : is_before(a.first, b.first);
  });
  std::vector<RunRecord> sorted;
  for (const auto& entry : order) sorted.push_back(std::move(comparison.runs[entry.second]));
  comparison.runs = std::move(sorted);
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
  return (fits ? rows(columns, num_runs, use_color)
               : blocks(columns, num_runs, static_cast<std::size_t>(width), use_color)) +
         long_settings(comparison) + loss_differences(comparison) + reasons(comparison);
}

}  // namespace lora_train::report
