// Axolotl's data sets and chat templates.
#pragma once

#include <string>
#include <vector>

#include "converter.h"
#include "source_data.h"

namespace lora_train {

/// The entries of `datasets` or `test_datasets`; what an entry says that has no counterpart is refused at its place.
std::vector<DataEntry> convert_axolotl_datasets(Converter& converter, const std::string& key);

/// "datasets[0]": the first dataset of chats; empty if there is none.
std::string first_chat_dataset(const Converter& converter);
/// The first of them that leaves its template to the tokenizer, where the file has none for all; empty if there is none.
std::string chat_without_template(const Converter& converter);

/// The first dataset that is none of chats; empty if there is none.
std::string first_other_dataset(const Converter& converter);

/// eot_tokens and special_tokens, and where Axolotl does not train the end of an answer. Once the template is decided.
void convert_axolotl_end_tokens(Converter& converter);

/// The text that chat_template_jinja stands for: itself, or that of the .jinja file that it names; empty if that is not there.
std::string template_text(const std::string& jinja);

/// A template's `name` under `key`; `jinja` is what chat_template_jinja says beside it, and `prefix` the place of both: "datasets[0].".
void convert_axolotl_template(Converter& converter, const std::string& key, const std::string& name,
                              const std::string& jinja, const std::string& prefix = {});

}  // namespace lora_train
