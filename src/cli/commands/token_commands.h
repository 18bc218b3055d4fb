// Data as tokens: tokenize, cache. A tokenised row as `tokenize --show` prints it.
#pragma once

#include <string>

#include "lora_train/data/prepare.h"

namespace lora_train::cli {

/// For people: a head line, the text with the trained tokens in green or, without colour, between [[ and ]], and the
/// ids with a * after each trained one, and its weight where the row has weights. Control characters of the text are shown
/// as escapes, except the line feed.
std::string format_row(const data::RowView& row, bool use_color);

/// {"source", "input_ids", "labels", "weights", "text"}. weights are there where the row has some; text is null if
/// there is no tokenizer.
std::string row_to_json(const data::RowView& row);

}  // namespace lora_train::cli
