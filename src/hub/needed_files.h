// Which files of a model repository lora-train reads.
#pragma once

#include <vector>

#include "hub_api.h"

namespace lora_train::hub {

struct NeededFiles {
  std::vector<RepositoryFile> needed, skipped;
};

/// Of the root: *.json, *.jinja, *.safetensors, tokenizer files, README and licences; and additional_chat_templates/. Not: weights of
/// other formats and their indices, and the second copy that Mistral ships (consolidated*.safetensors beside others). Throws FormatError
/// where the weights are there in other formats alone.
NeededFiles needed_files(const std::vector<RepositoryFile>& files, const std::string& repository);

}  // namespace lora_train::hub
