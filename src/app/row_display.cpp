#include "row_display.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lora_train/data/document_store.h"

namespace lora_train::app {
namespace {

// A row of someone else's data must not steer the terminal.
void append_visible(std::string& out, const std::string& piece) {
  for (const char byte : piece) {
    const auto code = static_cast<unsigned char>(byte);
    if ((code < 0x20 && byte != '\n') || code == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", code);
      out += escape;
    } else {
      out += byte;
    }
  }
}

bool is_trained(const data::RowView& row, std::size_t i) { return i > 0 && row.labels[i] != data::kIgnoredLabel; }

}  // namespace

std::string format_row(const data::RowView& row, bool use_color) {
  const char* const begin = use_color ? "\x1b[32m" : "[[";
  const char* const end = use_color ? "\x1b[0m" : "]]";
  std::string text, ids;
  long long num_trained = 0;
  for (std::size_t i = 0; i < row.ids.size(); ++i) {
    const bool trained = is_trained(row, i);
    const bool was_trained = i > 0 && is_trained(row, i - 1);
    if (!row.pieces.empty() && trained != was_trained) text += trained ? begin : end;
    if (!row.pieces.empty()) append_visible(text, row.pieces[i]);
    ids += (i == 0 ? "" : " ") + std::to_string(row.ids[i]) + (trained ? "*" : "");
    num_trained += trained ? 1 : 0;
  }
  if (!row.pieces.empty() && is_trained(row, row.ids.size() - 1)) text += end;
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
