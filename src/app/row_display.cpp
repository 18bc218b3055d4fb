#include "row_display.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lora_train/base/utf8.h"
#include "lora_train/data/document_store.h"

namespace lora_train::app {
namespace {

// A row of someone else's data must not steer the terminal: control characters, and those that turn the direction of
// writing, are shown by their number.
bool is_steering(std::uint32_t code) {
  return (code < 0x20 && code != '\n') || (code >= 0x7F && code < 0xA0) || code == 0x200E || code == 0x200F ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

void append_visible(std::string& out, const std::string& piece) {
  for (std::size_t at = 0; at < piece.size();) {
    const Utf8Char found = utf8_char(piece, at);
    const std::size_t length = std::max<std::size_t>(found.length, 1);
    const std::uint32_t code = found.length > 0 ? found.code_point : static_cast<unsigned char>(piece[at]);
    if (found.length == 0 || is_steering(code)) {
      char escape[16];
      std::snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : "\\u%04x", code);
      out += escape;
    } else {
      out.append(piece, at, length);
    }
    at += length;
  }
}

bool is_trained(const data::RowView& row, std::size_t i) { return i > 0 && row.labels[i] != data::kIgnoredLabel; }

// Green is trained, bold green a trained special token, cyan an untrained one; without colour [[...]] is trained.
std::string_view style_of(bool is_trained, bool is_special, bool use_color) {
  if (!use_color) return is_trained ? "[[" : "";
  if (is_trained) return is_special ? "\x1b[1;32m" : "\x1b[32m";
  return is_special ? "\x1b[36m" : "";
}

std::string_view end_of(std::string_view style, bool use_color) {
  if (style.empty()) return "";
  return use_color ? "\x1b[0m" : "]]";
}

}  // namespace

std::string format_row(const data::RowView& row, bool use_color) {
  std::string text, ids;
  std::string_view open_style;
  long long num_trained = 0;
  for (std::size_t i = 0; i < row.ids.size(); ++i) {
    const bool trained = is_trained(row, i);
    const std::string_view style = style_of(trained, i < row.is_special.size() && row.is_special[i], use_color);
    if (!row.pieces.empty()) {
      if (style != open_style) {
        text += end_of(open_style, use_color);
        text += style;
        open_style = style;
      }
      append_visible(text, row.pieces[i]);
    }
    ids += (i == 0 ? "" : " ") + std::to_string(row.ids[i]) + (trained ? "*" : "");
    num_trained += trained ? 1 : 0;
  }
  text += end_of(open_style, use_color);
  if (!text.empty()) text += "\n";
  return row.source + ": " + std::to_string(row.ids.size()) + " tokens, " + std::to_string(num_trained) + " trained\n" +
         text + "ids: " + ids + "\n";
}

std::string row_to_json(const data::RowView& row) {
  nlohmann::ordered_json object = {{"source", row.source}, {"input_ids", row.ids}, {"labels", row.labels}};
  object["text"] = row.pieces.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(row.text);
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lora_train::app
