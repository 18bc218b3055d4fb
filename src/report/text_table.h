// Tables of text for a terminal.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lora_train/base/utf8.h"

namespace lora_train::report {

struct Cell {
  std::string text;
  const char* color = "";  ///< an escape code
};

struct Column {
  std::string title;
  bool is_number = false;   ///< right-aligned
  std::vector<Cell> cells;  ///< one per row
};

inline std::string padded(const std::string& text, std::size_t width, bool is_right = false, const char* color = "") {
  const std::string space(width - std::min(width, count_chars(text)), ' ');
  const std::string painted = *color == '\0' ? text : color + text + "\x1b[0m";
  return is_right ? space + painted : painted + space;
}

inline std::size_t width_of(const Column& column) {
  std::size_t width = count_chars(column.title);
  for (const Cell& cell : column.cells) width = std::max(width, count_chars(cell.text));
  return width;
}

/// Without spaces at the end, and with a line feed.
inline std::string line_of(const std::string& text) { return text.substr(0, text.find_last_not_of(' ') + 1) + "\n"; }

/// A line of titles, then the rows.
inline std::string rows_of(const std::vector<Column>& columns, bool use_color) {
  const std::size_t num_rows = columns.front().cells.size();
  std::vector<std::string> lines(num_rows + 1);
  for (const Column& column : columns) {
    const std::size_t width = width_of(column);
    lines[0] += padded(column.title, width, column.is_number) + "  ";
    for (std::size_t i = 0; i < num_rows; ++i) {
      const Cell& cell = column.cells[i];
      lines[i + 1] += padded(cell.text, width, column.is_number, use_color ? cell.color : "") + "  ";
    }
  }
  std::string text;
  for (const std::string& line : lines) text += line_of(line);
  return text;
}

}  // namespace lora_train::report
