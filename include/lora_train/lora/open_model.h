// Opens a model folder, with or without an adapter: everything but the weights.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/model_tokenizer.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::lora {

struct TokenizerFiles {
  std::filesystem::path tokenizer_folder = {};           ///< the model's or the adapter's (lora::tokenizer_folder)
  std::unique_ptr<tokenizer::Tokenizer> tokenizer = {};  ///< null if the folder has none; knows add_tokens
  std::vector<data::NewRow> new_rows = {};               ///< from add_tokens, in its order
};

/// `adapter` may be empty. If given, `config` gets room for the adapter's token rows and the new ones. Warns about a
/// trained row that the tokenizer has no token for. Throws what data::load_tokenizer, data::new_rows and
/// read_adapter_config throw.
TokenizerFiles open_tokenizer(const ModelSection& section, const std::filesystem::path& model,
                              const std::filesystem::path& adapter, model::ModelConfig* config = nullptr);

/// What a training did that its result does not show: lora_train.json, which other tools ignore.
struct TrainedWith {
  std::string prompts = {};        ///< "chat"; "raw": text, without the template; empty: unknown
  std::string template_date = {};  ///< the day that the template wrote, "2026-12-01"; empty = none
  std::optional<Precision> precision = {};
  std::optional<BasePrecision> base_precision = {};  ///< given if the run quantised the linears of the base: kNf4, ...
  bool double_quant = true;                          ///< of kNf4
  bool is_raw() const { return prompts == "raw"; }
};

std::string to_json(const TrainedWith& trained);
/// All empty without the file, as for results of other tools. Throws FormatError for a malformed one.
TrainedWith read_trained_with(const std::filesystem::path& folder);

/// What a command knows of its model and adapter before it loads weights.
struct ModelFiles : TokenizerFiles {
  storage::ResolvedModel resolved = {};
  std::filesystem::path adapter = {};                           ///< empty: the base, or an adapter that begins anew
  model::ModelConfig config = {};                               ///< with room for all token rows
  std::unique_ptr<tokenizer::ChatTemplate> chat_template = {};  ///< null if there is none
  TrainedWith trained_with = {};  ///< of the adapter, else of the model; for TemplateOf::kAdapter
  model::BaseStorage base = {};   ///< linears kept quantised; left empty by open_model()
};

/// Which file `chat_template: tokenizer` means: the model's, to train, or the one that the adapter was trained with.
enum class TemplateOf { kModel, kAdapter };

/// Opens the model that `section` names and the PEFT folder `adapter`, which may be empty. Needs no weights. The
/// template writes the section's template_date, else that of `trained_with`. Throws what reading the files throws.
ModelFiles open_model(const ModelSection& section, const std::filesystem::path& adapter,
                      TemplateOf chat_template = TemplateOf::kModel);
/// Also opens the weights, and fills `base`.
ModelFiles open_model_and_weights(const ModelSection& section, const std::filesystem::path& adapter,
                                  TemplateOf chat_template = TemplateOf::kModel);

}  // namespace lora_train::lora
