#include "side_by_side.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "lora_train/base/utf8.h"
#include "lora_train/base/visible_text.h"

namespace lora_train::cli {
namespace {

constexpr std::string_view kBetween = " | ";
constexpr int kNarrowestColumn = 20;

int columns_of(std::string_view text) {
  int columns = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    columns += std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(c.code_point)));
    at += std::max<std::size_t>(c.length, 1);
  }
  return columns;
}

/// How much of the text fits, at least one character.
std::size_t fitting(std::string_view text, int width) {
  std::size_t at = 0;
  for (int columns = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    columns += std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(c.code_point)));
    if (columns > width && at > 0) break;
    at += std::max<std::size_t>(c.length, 1);
  }
  return at;
}

void wrap_line(std::string_view line, int width, std::vector<std::string>& out) {
  while (columns_of(line) > width) {
    const std::size_t end = fitting(line, width);
    const std::size_t space = line.substr(0, end + 1).rfind(' ');
    const bool at_word = space != std::string_view::npos && space > 0;
    out.emplace_back(line.substr(0, at_word ? space : end));
    line.remove_prefix(at_word ? space + 1 : end);
  }
  out.emplace_back(line);
}

std::vector<std::string> wrapped(std::string_view text, int width) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    wrap_line(text.substr(begin, end - begin), width, lines);
    begin = end + 1;
  }
  return lines;
}

std::string padded(const std::string& text, int width) {
  return text + std::string(static_cast<std::size_t>(std::max(0, width - columns_of(text))), ' ');
}

}  // namespace

std::string side_by_side(std::string_view left_head, std::string_view left, std::string_view right_head,
                         std::string_view right, int width) {
  const std::string left_text = visible_text(left), right_text = visible_text(right);
  const int column = (width - static_cast<int>(kBetween.size())) / 2;
  if (column < kNarrowestColumn) {
    return std::string(left_head) + ":\n" + left_text + "\n" + std::string(right_head) + ":\n" + right_text + "\n";
  }
  const auto left_lines = wrapped(left_text, column), right_lines = wrapped(right_text, column);
  std::string out = padded(std::string(left_head), column) + std::string(kBetween) + std::string(right_head) + "\n";
  const std::string rule(static_cast<std::size_t>(column), '-');
  out += rule + std::string(kBetween) + rule + "\n";
  for (std::size_t i = 0; i < std::max(left_lines.size(), right_lines.size()); ++i) {
    std::string line = padded(i < left_lines.size() ? left_lines[i] : "", column) + std::string(kBetween);
    if (i < right_lines.size()) line += right_lines[i];
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace lora_train::cli
