#include "model_folders.h"

#include "adapter_flag.h"
#include "lora_train/storage/resolve_model.h"
#include "lora_train/tokenizer/model_folder.h"
#include "run_tokenizer.h"

namespace lora_train::cli {

ModelFolders open_model_folders(const ModelSection& section, const std::string& adapter, bool allow_other_base) {
  ModelFolders folders;
  const storage::ResolvedModel model = storage::resolve_model(section.path);
  folders.model = model.folder;
  folders.adapter = adapter;
  folders.config = model::read_model_config(folders.model);
  if (!adapter.empty()) check_adapter_base(adapter, model, allow_other_base);
  ModelSection used = section;
  if (adapter.empty()) used.add_tokens.clear();  // the base has no rows for them
  folders.tokenizer = open_tokenizer(used, folders.model, folders.adapter, &folders.config).tokenizer;
  if (!folders.tokenizer) folders.tokenizer = tokenizer::Tokenizer::load(folders.model);  // says what is missing
  const bool has_own = !adapter.empty() && std::filesystem::exists(folders.adapter / "chat_template.jinja");
  folders.chat_template =
      tokenizer::load_chat_template(section.chat_template, has_own ? folders.adapter : folders.model);
  return folders;
}

}  // namespace lora_train::cli
