// The folders of a model and its adapter, of the commands that generate.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lora_train/config/profile.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::cli {

/// What prompts need of the folders; no weights.
struct ModelFolders {
  std::filesystem::path model, adapter;  ///< adapter: empty = the base
  model::ModelConfig config;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<tokenizer::ChatTemplate>
      chat_template;  ///< the adapter's own, which it was trained with, or the model's; may be null
};

/// Refuses an adapter of another base, unless that is allowed. Throws what reading the files throws.
ModelFolders open_model_folders(const ModelSection& section, const std::string& adapter, bool allow_other_base);

}  // namespace lora_train::cli
