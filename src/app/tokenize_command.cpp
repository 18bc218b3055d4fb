// lora-train tokenize: the ids of texts, or the data of a profile as the trainer will see them.
#include <fstream>
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/data/prepare.h"
#include "lora_train/model/model_config.h"
#include "lora_train/storage/resolve_model.h"
#include "model_files.h"
#include "profile_flags.h"
#include "registry.h"
#include "row_display.h"
#include "standard_output.h"

namespace lora_train::app {
namespace {

void print_ids(const tokenizer::Tokenizer& tokenizer, const std::string& text, bool json) {
  const auto ids = tokenizer.encode(text).ids;
  if (json) {
    print_line(nlohmann::ordered_json({{"input_ids", ids}}).dump());
    return;
  }
  std::string line;
  for (const auto id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  print_line(line);
}

std::string text_of_line(const std::string& line, const std::string& where) {
  const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("text") || !object["text"].is_string()) {
    throw DataError(where, "not a JSON object with a string \"text\"; expected {\"text\": \"...\"}, one per line.");
  }
  return object["text"].get<std::string>();
}

void print_ids_of_file(const tokenizer::Tokenizer& tokenizer, const std::string& path, bool json) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(path, "cannot be opened; expected a file of {\"text\": \"...\"} lines.");
  long long number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    print_ids(tokenizer, text_of_line(line, path + ":" + std::to_string(number)), json);
  }
}

data::DataLimits limits_of(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "config.json")) return {};
  const model::ModelConfig config = model::read_model_config(folder);
  return {.vocab_size = config.vocab_size, .max_position_embeddings = config.max_position_embeddings};
}

void print_totals(const data::PreparedData& prepared) {
  const auto& store = prepared.train;
  print_line(format_count(static_cast<long long>(store.size())) + " documents, " + format_count(store.total_tokens()) +
             " tokens, " + format_count(store.total_supervised()) + " trained (" + prepared.loss_description +
             "), max_seq_len " + std::to_string(prepared.max_seq_len));
  for (const auto& line : prepared.ledger.lines()) print_line(line);
}

int tokenize_profile(const Profile& profile, long long num_shown, bool json) {
  const auto folder = storage::resolve_model(profile.model).folder;
  const auto tokenizer = load_tokenizer_if_present(folder);
  const auto chat_template = load_chat_template(profile.chat_template, folder);
  const data::PreparedData prepared = data::prepare_data(data::data_options(profile), tokenizer.get(),
                                                         chat_template.get(), limits_of(folder), /*need_train=*/true);
  for (const auto& row : data::view_rows(prepared.train, tokenizer.get(), 0, static_cast<std::size_t>(num_shown))) {
    if (json) {
      print_line(row_to_json(row));
    } else {
      print_line(format_row(row, stdout_has_color()));
    }
  }
  if (!json) print_totals(prepared);
  return 0;
}

}  // namespace

int run_tokenize(const std::vector<std::string>& arguments) {
  CommandParser parser("tokenize",
                       "Tokenises the data of a profile, prints the ledger and shows rows; or, with --model, "
                       "prints the ids of texts. Needs no weights.");
  const ProfileFlags flags(parser, {{"--model", "model", "folder, or org/name of the local Hugging Face cache"},
                                    {"--train-data", "datasets", "training data: file, folder or glob"}});
  std::vector<std::string> texts, files;
  long long num_shown = 0;
  parser.app().add_option("--show", num_shown, "print the first N rows in the order of the files")->type_name("N");
  parser.add_list("--text", texts, "print the ids of this text; repeatable")->type_name("TEXT");
  parser.add_list("--jsonl", files, "print the ids of each {\"text\": ...} line; repeatable")->type_name("FILE");
  if (!parser.parse(arguments)) return 0;
  if (num_shown < 0) parser.refuse("--show", "must not be negative.");

  const bool wants_texts = !texts.empty() || !files.empty();
  ProfileSources sources = flags.sources();
  sources.needs_datasets = !wants_texts;
  const LoadedProfile loaded = load_and_log(sources);
  if (!wants_texts) return tokenize_profile(loaded.profile, num_shown, parser.common().json);

  const auto tokenizer = tokenizer::Tokenizer::load(storage::resolve_model(loaded.profile.model).folder);
  for (const auto& text : texts) print_ids(*tokenizer, text, parser.common().json);
  for (const auto& file : files) print_ids_of_file(*tokenizer, file, parser.common().json);
  return 0;
}

}  // namespace lora_train::app
