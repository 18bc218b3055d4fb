#include "lora_train/lora/open_model.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::lora {
namespace {

/// A checkpoint has no tokenizer of its own.
void warn_of_unknown_ids(const std::vector<std::int64_t>& ids, const std::filesystem::path& adapter,
                         const tokenizer::Tokenizer& tokenizer) {
  for (const std::int64_t id : ids) {
    if (!tokenizer.id_to_token(static_cast<std::int32_t>(id)).empty()) continue;
    log_warning(
        "{}: trains the row of id {}, but the tokenizer has no such token: copy the tokenizer files of the run's "
        "adapter/ there, or pass the profile with its add_tokens",
        adapter.string(), id);
    return;
  }
}

}  // namespace

std::string to_json(const TrainedWith& trained) {
  auto object = nlohmann::ordered_json::object();
  if (!trained.prompts.empty()) object["prompts"] = trained.prompts;
  if (!trained.template_date.empty()) object["template_date"] = trained.template_date;
  if (trained.precision) object["precision"] = to_string(*trained.precision);
  if (trained.base_precision) {
    object["base_precision"] = to_string(*trained.base_precision);
    object["double_quant"] = trained.double_quant;
  }
  return object.dump(2) + "\n";
}

TrainedWith read_trained_with(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / storage::kTrainedWithFile;
  if (!std::filesystem::exists(file)) return {};
  const auto object = nlohmann::json::parse(storage::read_model_text(file), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw FormatError(file.string(), "is not a JSON object");
  const auto refuse = [&](const char* key, const char* expected) {
    throw FormatError(fmt::format("{}: {}", file.string(), key), "is {}; expected {}",
                      object[key].dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), expected);
  };
  const auto text = [&](const char* key, const auto& is_valid, const char* expected) -> std::string {
    const auto value = object.value(key, nlohmann::json());
    if (value.is_null()) return "";
    if (!value.is_string() || !is_valid(value.template get<std::string>())) refuse(key, expected);
    return value;
  };
  TrainedWith trained;
  const auto is_form = [](const std::string& form) { return form == "chat" || form == "raw"; };
  trained.prompts = text("prompts", is_form, "\"chat\" or \"raw\"");
  trained.template_date = text("template_date", noon_of, "a day such as \"2026-12-01\"");
  trained.precision = from_string<Precision>(text(
      "precision", [](const std::string& name) { return from_string<Precision>(name).has_value(); },
      "\"bf16\" or \"fp32\""));
  trained.base_precision = from_string<BasePrecision>(text(
      "base_precision", [](const std::string& name) { return from_string<BasePrecision>(name) >= BasePrecision::kNf4; },
      "\"nf4\", \"int8\" or \"fp8\""));
  const auto nested = object.value("double_quant", nlohmann::json(true));
  if (!nested.is_boolean()) refuse("double_quant", "true or false");
  trained.double_quant = nested;
  return trained;
}

TokenizerFiles open_tokenizer(const ModelSection& section, const std::filesystem::path& model,
                              const std::filesystem::path& adapter, model::ModelConfig* config) {
  std::vector<std::int64_t> trained_ids;
  if (!adapter.empty()) {
    const AdapterConfig read = read_adapter_config(adapter);
    trained_ids = config == nullptr ? read.token_rows.ids() : token_rows_of(read, adapter, *config).ids();
  }
  TokenizerFiles files{.tokenizer_folder = lora::tokenizer_folder(model, adapter)};
  files.tokenizer = data::load_tokenizer(section, files.tokenizer_folder, trained_ids);
  if (!files.tokenizer) return files;
  warn_of_unknown_ids(trained_ids, adapter, *files.tokenizer);
  files.new_rows = data::new_rows(section, *files.tokenizer, trained_ids);
  for (const data::NewRow& row : files.new_rows) {
    if (config != nullptr) model::make_room(row.id + 1, *config);
  }
  return files;
}

ModelFiles open_model(const ModelSection& section, const std::filesystem::path& adapter, TemplateOf chat_template) {
  ModelFiles files;
  files.resolved = storage::resolve_model(section.path);
  files.adapter = adapter;
  const std::filesystem::path& folder = files.resolved.folder;
  files.config = model::read_model_config(folder);
  static_cast<TokenizerFiles&>(files) = open_tokenizer(section, folder, adapter, &files.config);
  const std::filesystem::path own_template = adapter / "chat_template.jinja";
  const bool is_adapters = chat_template == TemplateOf::kAdapter && !adapter.empty() &&
                           section.chat_template == "tokenizer" && std::filesystem::exists(own_template);
  // It names special tokens of the model, unless the adapter has its own.
  const bool has_tokens = is_adapters && std::filesystem::exists(adapter / "tokenizer_config.json");
  files.chat_template = tokenizer::load_chat_template(
      is_adapters && !has_tokens ? own_template.string() : section.chat_template, has_tokens ? adapter : folder);
  if (chat_template == TemplateOf::kAdapter) files.trained_with = read_trained_with(adapter.empty() ? folder : adapter);
  if (files.chat_template)
    files.chat_template->set_day(section.template_date.empty() ? files.trained_with.template_date
                                                               : section.template_date);
  return files;
}

ModelFiles open_model_and_weights(const ModelSection& section, const std::filesystem::path& adapter,
                                  TemplateOf chat_template) {
  ModelFiles files = open_model(section, adapter, chat_template);
  files.base = model::base_storage(section, files.config, storage::open_model_weights(files.resolved.folder));
  return files;
}

}  // namespace lora_train::lora
