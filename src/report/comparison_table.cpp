#include <algorithm>

#include "figures.h"
#include "lora_train/base/utf8.h"
#include "lora_train/base/visible_text.h"
#include "lora_train/report/comparison.h"

namespace lora_train::report {
namespace {

constexpr std::size_t kLongestCell = 32;
constexpr std::size_t kGap = 2;

struct Cell {
  std::string text;
  const char* color = "";  ///< an escape code
};

struct Column {
  std::string name;
  bool is_number = false;
  std::vector<Cell> cells;  ///< one a run
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

/// Besides run, long values included.
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
    text += "\n" + key + "\n";
    for (const auto& run : comparison.runs) {
      text +=
          without_trailing_space("  " + padded(shown(run.name), names, false) + "  " + shown(profile_text(run, key)));
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
    if (difference) text += "  " + padded(shown(run.name), names, false) + "  " + in_words(*difference) + "\n";
  }
  if (text.empty()) return "";
  std::string base;
  for (const auto& run : comparison.runs) {
    if (run.folder == comparison.baseline) base = shown(run.name);
  }
  return "\nevaluation loss, compared with that of " + base + " on the same documents\n" + text;
}

}  // namespace

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
