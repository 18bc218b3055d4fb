#include "row_display.h"

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/data/cache/document_store.h"
#include "standard_output.h"

namespace lora_train::cli {
namespace {

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
      text += visible_text(row.pieces[i]);
    }
    ids += (i == 0 ? "" : " ") + std::to_string(row.ids[i]) + (trained ? "*" : "");
    if (trained && !row.weights.empty()) ids += string_printf("%g", static_cast<double>(row.weights[i]));
    num_trained += trained ? 1 : 0;
  }
  text += end_of(open_style, use_color);
  if (!text.empty()) text += "\n";
  return visible_text(row.source) + ": " + std::to_string(row.ids.size()) + " tokens, " + std::to_string(num_trained) +
         " trained\n" + text + "ids: " + ids + "\n";
}

std::string row_to_json(const data::RowView& row) {
  nlohmann::ordered_json object = {{"source", row.source}, {"input_ids", row.ids}, {"labels", row.labels}};
  if (!row.weights.empty()) object["weights"] = row.weights;
  object["text"] = row.pieces.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(row.text);
  return to_line(object);
}

}  // namespace lora_train::cli
