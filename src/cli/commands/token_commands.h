// Data as tokens: tokenize, cache. A tokenised example as `tokenize --show` prints it.
#pragma once

#include <string>

#include "lora_train/data/prepare.h"

namespace lora_train::cli {

/// For people: a headline, the text with the trained tokens in green or, without colour, between [[ and ]], and the ids
/// with a * after each trained one, plus its weight if the example has weights. Shows control characters of the text as
/// escapes, except the line feed.
std::string format_example(const data::ExampleView& example, bool use_color);

/// {"source", "input_ids", "labels", "weights", "text"}. weights only if the example has some; text is null without a
/// tokenizer.
std::string example_to_json(const data::ExampleView& example);

}  // namespace lora_train::cli
