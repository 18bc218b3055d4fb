#include "run_tokenizer.h"

#include "lora_train/base/log.h"
#include "lora_train/lora/adapter_config.h"

namespace lora_train::cli {
namespace {

/// A checkpoint has no tokenizer of its own.
void warn_of_unknown_ids(const std::vector<std::int64_t>& ids, const std::filesystem::path& adapter,
                         const tokenizer::Tokenizer& tokenizer) {
  for (const std::int64_t id : ids) {
    if (!tokenizer.id_to_token(static_cast<std::int32_t>(id)).empty()) continue;
    log_warning(
        adapter.string() + ": trains the row of id " + std::to_string(id) +
        ", and the tokenizer has no such token: copy the tokenizer files of the run's adapter/ there, or pass the "
        "profile with its add_tokens");
    return;
  }
}

}  // namespace

RunTokenizer open_tokenizer(const ModelSection& section, const std::filesystem::path& model,
                            const std::filesystem::path& adapter, model::ModelConfig* config) {
  std::vector<std::int64_t> trained_ids;
  if (!adapter.empty()) {
    const lora::AdapterConfig read = lora::read_adapter_config(adapter);
    trained_ids = read.token_rows.ids();
    if (config != nullptr) lora::token_rows_of(read, adapter, *config);
  }
  RunTokenizer opened;
  opened.tokenizer = data::load_tokenizer(section, lora::tokenizer_folder(model, adapter), trained_ids);
  if (opened.tokenizer) warn_of_unknown_ids(trained_ids, adapter, *opened.tokenizer);
  if (opened.tokenizer) opened.new_rows = data::new_rows(section, *opened.tokenizer, trained_ids);
  if (config == nullptr) return opened;
  for (const data::NewRow& row : opened.new_rows) model::make_room(row.id + 1, *config);
  return opened;
}

}  // namespace lora_train::cli
