// Axolotl's data sets and chat templates.
#pragma once

#include <string>
#include <vector>

#include "converter.h"
#include "source_data.h"

namespace lora_train {

/// The entries of `datasets` or `test_datasets`; what an entry says that has no counterpart is refused at its place.
std::vector<DataEntry> convert_axolotl_datasets(Converter& converter, const std::string& key);

/// A template's `name` under `key`; `jinja` is what chat_template_jinja says beside it, and `prefix` the place of both: "datasets[0].".
void convert_axolotl_template(Converter& converter, const std::string& key, const std::string& name,
                              const std::string& jinja, const std::string& prefix = {});

}  // namespace lora_train
