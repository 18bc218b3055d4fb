// lora-train tokenize: the ids of texts, or the data of a profile as the trainer will see them.
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "lora_train/data/prepare.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/storage/resolve_model.h"
#include "lora_train/tokenizer/model_folder.h"
#include "open_model.h"
#include "output/row_display.h"
#include "output/standard_output.h"
#include "profile_flags.h"
#include "registry.h"

namespace lora_train::cli {
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

/// A folder with a tokenizer alone will do: ids and lengths are then not checked.
std::optional<model::ModelConfig> read_config(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "config.json")) return std::nullopt;
  return model::read_model_config(folder);
}

void print_totals(const data::PreparedData& prepared) {
  const auto& store = prepared.train;
  print_line(format_count(static_cast<long long>(store.size())) + " documents, " + format_count(store.total_tokens()) +
             " tokens, " + format_count(store.total_supervised()) + " trained (" + prepared.loss_description +
             "), max_seq_len " + std::to_string(prepared.max_seq_len));
  for (const auto& line : prepared.ledger.lines()) print_line(line);
}

void show_row(const data::RowView& row, bool json) {
  if (json) {
    print_line(row_to_json(row));
  } else {
    print_raw(format_row(row, stdout_has_color()) + "\n");
  }
}

// The documents of an optimizer step, in the order of the step.
std::vector<std::uint32_t> documents_of(const data::StepPlan& step) {
  std::vector<std::uint32_t> documents;
  for (const auto& micro_batch : step.micro_batches) {
    documents.insert(documents.end(), micro_batch.documents.begin(), micro_batch.documents.end());
  }
  return documents;
}

void show_step(const Profile& profile, const data::PreparedData& prepared, long long number,
               const tokenizer::Tokenizer* tokenizer, long long num_shown, bool json) {
  const auto sizes = data::resolve_batch_sizes(profile.schedule, prepared.max_seq_len);
  const data::RunPlan plan = data::plan_run(profile, prepared, sizes);
  if (number > plan.total_steps()) {
    throw ConfigError("--step", "the run has " + format_count(plan.total_steps()) + " steps.");
  }
  const data::StepPlan step = plan.step(number);
  if (!json) {
    print_line("step " + std::to_string(number) + " of " + std::to_string(plan.total_steps()) + ", epoch " +
               std::to_string(step.epoch) + ": " + format_count(step.num_rows) + " rows, " +
               format_count(step.num_documents) + " documents, " + format_count(step.num_tokens) + " tokens, " +
               format_count(step.num_supervised) + " trained");
  }
  for (const std::uint32_t document : documents_of(step)) {
    if (num_shown-- > 0) {
      show_row(data::view_rows(prepared.train, tokenizer, document, 1).front(), json);
    } else if (json) {
      print_line(nlohmann::ordered_json({{"source", prepared.train.source(document)},
                                         {"num_tokens", prepared.train.num_tokens(document)},
                                         {"num_supervised", prepared.train.num_supervised(document)}})
                     .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    } else {
      print_line("  " + prepared.train.source(document) + "  " + format_count(prepared.train.num_tokens(document)) +
                 " tokens, " + format_count(prepared.train.num_supervised(document)) + " trained");
    }
  }
}

int tokenize_profile(const Profile& profile, long long num_shown, std::optional<long long> step, bool json) {
  const auto folder = storage::resolve_model(profile.model.path).folder;
  auto config = read_config(folder);
  const auto tokenizer =
      open_tokenizer(profile.model, folder, profile.adapter.init_adapter, config ? &*config : nullptr).tokenizer;
  const auto chat_template = tokenizer::load_chat_template(profile.model.chat_template, folder);
  data::DataContext context{.tokenizer = tokenizer.get(),
                            .chat_template = chat_template.get(),
                            .seed = profile.run.seed,
                            .cache_folder = data::token_cache_folder(profile.data)};
  if (config) {
    context.vocab_size = config->vocab_size;
    context.max_position_embeddings = config->context_length();
  }
  const data::PreparedData prepared = data::prepare_data(profile.data, context, /*need_train=*/true);
  if (step) {
    show_step(profile, prepared, *step, tokenizer.get(), num_shown, json);
    return 0;
  }
  for (const auto& row : data::view_rows(prepared.train, tokenizer.get(), 0, static_cast<std::size_t>(num_shown))) {
    show_row(row, json);
  }
  if (!json) print_totals(prepared);
  return 0;
}

}  // namespace

int run_tokenize(const std::vector<std::string>& arguments) {
  CommandParser parser("tokenize",
                       "Tokenises the data of a profile, prints the ledger of dropped and changed rows, and shows "
                       "rows; or, with --model, "
                       "prints the token ids of texts. Needs no weights.");
  const ProfileFlags flags(parser, {{"--model", "model", "model folder, or org/name in the local Hugging Face cache"},
                                    {"--train-data", "datasets", "training data: file, folder or glob"}});
  std::vector<std::string> texts, files;
  long long num_shown = 0;
  std::optional<long long> step;
  parser.app()
      .add_option("--show", num_shown, "print text, ids and trained tokens (green) of the first N rows")
      ->type_name("N");
  parser.app()
      .add_option("--step", step,
                  "print file:line of the rows in optimizer step K; with --show, also their text and ids")
      ->type_name("K");
  parser.add_list("--text", texts, "print the token ids of this text; repeatable")->type_name("TEXT");
  parser.add_list("--jsonl", files, "print the token ids of each {\"text\": ...} line; repeatable")->type_name("FILE");
  if (!parser.parse(arguments)) return 0;
  if (num_shown < 0) parser.refuse("--show", "must not be negative.");
  if (step && *step < 1) parser.refuse("--step", "steps count from 1.");

  const bool wants_texts = !texts.empty() || !files.empty();
  ProfileSources sources = flags.sources();
  sources.needs_datasets = !wants_texts;
  const LoadedProfile loaded = load_and_log(sources);
  refuse_unbuilt_features(loaded);
  if (!wants_texts) return tokenize_profile(loaded.profile, num_shown, step, parser.common().json);

  const Profile& profile = loaded.profile;
  const auto folder = storage::resolve_model(profile.model.path).folder;
  auto tokenizer = open_tokenizer(profile.model, folder, profile.adapter.init_adapter).tokenizer;
  if (!tokenizer) tokenizer = tokenizer::Tokenizer::load(folder);  // says what is missing
  for (const auto& text : texts) print_ids(*tokenizer, text, parser.common().json);
  for (const auto& file : files) {
    data::read_texts(file, [&](const std::string& text) { print_ids(*tokenizer, text, parser.common().json); });
  }
  return 0;
}

}  // namespace lora_train::cli
