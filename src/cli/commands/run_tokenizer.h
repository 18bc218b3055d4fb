// The tokenizer that a command works with, as the engine opens it (plan::open_model).
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "lora_train/data/model_tokenizer.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::cli {

struct RunTokenizer {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;  ///< knows add_tokens; null if there is none
  std::vector<data::NewRow> new_rows;
};

/// `adapter`: init_adapter, or the adapter that is used; may be empty. Makes room in `config`, if given, for the rows of the adapter
/// and the new ones. Throws what data::load_tokenizer, data::new_rows and lora::read_adapter_config throw.
RunTokenizer open_tokenizer(const ModelSection& section, const std::filesystem::path& model,
                            const std::filesystem::path& adapter, model::ModelConfig* config = nullptr);

}  // namespace lora_train::cli
