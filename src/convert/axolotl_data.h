// Axolotl's datasets and chat templates.
#pragma once

#include <string>
#include <vector>

#include "converter.h"

namespace lora_train {

/// The entries of `datasets` or `test_datasets`; parts of an entry without a counterpart are refused at their place.
std::vector<DataEntry> convert_axolotl_datasets(Converter& converter, const std::string& key);

/// "datasets[0]": the first dataset of chats that leaves its template to the tokenizer, if the file has none for all;
/// empty if there is none.
std::string chat_without_template(const Converter& converter);

/// Converts eot_tokens and special_tokens, and notes if Axolotl does not train the end of an answer. Call it once the
/// template is decided.
void convert_axolotl_end_tokens(Converter& converter);

/// A template's `name` under `key`; `jinja` is the chat_template_jinja next to it, and `prefix` the place of both:
/// "datasets[0].".
void convert_axolotl_template(Converter& converter, const std::string& key, const std::string& name,
                              const std::string& jinja, const std::string& prefix = {});

}  // namespace lora_train
