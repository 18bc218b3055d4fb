#include "token_commands.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "flags/command_line.h"
#include "flags/open_model.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/value/value.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/cache/token_cache_files.h"
#include "lora_train/data/prepare.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/storage/atomic_folder.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/run_names.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {

// tokenize: the ids of texts, or the data of a profile as the trainer sees them.
namespace {

bool is_trained(const data::ExampleView& example, std::size_t i) {
  return i > 0 && example.labels[i] != data::kIgnoredLabel;
}

// Green is trained, bold green a trained special token, cyan an untrained one; without colour [[...]] is trained.
std::string_view style_of(bool is_trained, bool is_special, bool use_color) {
  if (!use_color) return is_trained ? "[[" : "";
  if (is_trained) return is_special ? "\x1b[1;32m" : "\x1b[32m";
  return is_special ? "\x1b[36m" : "";
}

std::string_view end_of(std::string_view style, bool use_color) {
  if (style.empty()) return "";
  return use_color ? "\x1b[0m" : "]]";
}

}  // namespace

std::string format_example(const data::ExampleView& example, bool use_color) {
  std::string text, ids;
  std::string_view open_style;
  long long num_trained = 0;
  for (std::size_t i = 0; i < example.ids.size(); ++i) {
    const bool trained = is_trained(example, i);
    const std::string_view style = style_of(trained, i < example.is_special.size() && example.is_special[i], use_color);
    if (!example.pieces.empty()) {
      if (style != open_style) {
        text += end_of(open_style, use_color);
        text += style;
        open_style = style;
      }
      text += visible_text(example.pieces[i]);
    }
    ids += fmt::format("{}{}{}", i == 0 ? "" : " ", example.ids[i], trained ? "*" : "");
    if (trained && !example.weights.empty()) ids += fmt::format("{:g}", static_cast<double>(example.weights[i]));
    num_trained += trained ? 1 : 0;
  }
  text += end_of(open_style, use_color);
  if (!text.empty()) text += "\n";
  return fmt::format("{}: {} tokens, {} trained\n{}ids: {}\n", visible_text(example.source), example.ids.size(),
                     num_trained, text, ids);
}

std::string example_to_json(const data::ExampleView& example) {
  nlohmann::ordered_json object = {{"source", example.source}, {"input_ids", example.ids}, {"labels", example.labels}};
  if (!example.weights.empty()) object["weights"] = example.weights;
  object["text"] = example.pieces.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(example.text);
  return to_line(object);
}

namespace {

void print_ids(const tokenizer::Tokenizer& tokenizer, const std::string& text, bool json) {
  const auto ids = tokenizer.encode(text).ids;
  if (json) {
    print_line(nlohmann::ordered_json({{"input_ids", ids}}).dump());
    return;
  }
  std::string line;
  for (const auto id : ids) line += fmt::format("{}{}", line.empty() ? "" : " ", id);
  print_line(line);
}

/// Empty for a folder with only a tokenizer, which is enough; ids and lengths are not checked then.
std::optional<model::ModelConfig> read_config(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / storage::kConfigFile)) return std::nullopt;
  return model::read_model_config(folder);
}

void print_totals(const data::PreparedData& prepared) {
  const auto& store = prepared.train;
  print_line(fmt::format("{} documents, {} tokens, {} trained ({}), max_seq_len {}", format_count(store.size()),
                         format_count(store.total_tokens()), format_count(store.total_supervised()),
                         prepared.loss_description, prepared.max_seq_len));
  for (const auto& line : prepared.ledger.lines()) print_line(line);
}

void show_example(const data::ExampleView& example, bool json) {
  if (json) {
    print_line(example_to_json(example));
  } else {
    print_raw(format_example(example, stdout_has_color()) + "\n");
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
    throw ConfigError("--step", "the run has {} steps.", format_count(plan.total_steps()));
  }
  const data::StepPlan step = plan.step(number);
  if (!json) {
    print_line(fmt::format("step {} of {}, epoch {}: {} rows, {} documents, {} tokens, {} trained", number,
                           plan.total_steps(), step.epoch, format_count(step.num_rows),
                           format_count(step.num_documents), format_count(step.num_tokens),
                           format_count(step.num_supervised)));
  }
  for (const std::uint32_t document : documents_of(step)) {
    if (num_shown-- > 0) {
      show_example(data::view_examples(prepared.train, tokenizer, document, 1).front(), json);
    } else {
      const std::string source = prepared.train.source(document);
      const auto num_tokens = prepared.train.num_tokens(document);
      const auto num_supervised = prepared.train.num_supervised(document);
      print_json_or_text(
          json, {{"source", source}, {"num_tokens", num_tokens}, {"num_supervised", num_supervised}},
          fmt::format("  {}  {} tokens, {} trained", source, format_count(num_tokens), format_count(num_supervised)));
    }
  }
}

int tokenize_profile(const Profile& profile, long long num_shown, std::optional<long long> step, bool json) {
  const auto folder = storage::resolve_model(profile.model.path).folder;
  auto config = read_config(folder);
  const auto tokenizer =
      lora::open_tokenizer(profile.model, folder, profile.adapter.init_adapter, config ? &*config : nullptr).tokenizer;
  const auto chat_template = tokenizer::load_chat_template(profile.model.chat_template, folder);
  if (chat_template) chat_template->set_day(profile.model.template_date);
  data::DataContext context{.tokenizer = tokenizer.get(),
                            .chat_template = chat_template.get(),
                            .seed = profile.run.seed,
                            .cache_folder = data::token_cache_folder(profile.data),
                            .model_folder = folder};
  if (config) {
    context.vocab_size = config->vocab_size;
    context.max_position_embeddings = config->context_length();
  }
  const data::PreparedData prepared = data::prepare_data(profile.data, context, /*need_train=*/true);
  if (step) {
    show_step(profile, prepared, *step, tokenizer.get(), num_shown, json);
    return 0;
  }
  for (const auto& example :
       data::view_examples(prepared.train, tokenizer.get(), 0, static_cast<std::size_t>(num_shown))) {
    show_example(example, json);
  }
  if (!json) print_totals(prepared);
  return 0;
}

}  // namespace

int run_tokenize(const std::vector<std::string>& arguments) {
  CommandParser parser("tokenize",
                       "Tokenises the data of a profile, prints the ledger of dropped and changed examples, and shows "
                       "examples; or, with --text or --jsonl, prints token ids. Needs no weights.");
  const ProfileFlags flags(parser, {kModelFlag, kTrainDataFlag});
  std::vector<std::string> texts, files;
  long long num_shown = 0;
  std::optional<long long> step;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  parser.add_integer("--show", num_shown, 0, kMost,
                     "print text, ids and trained tokens (green) of the first N examples");
  parser
      .add_integer("--step", step, 1, kMost,
                   "print file:line of the examples in optimizer step K; with --show, also their text and ids")
      ->type_name("K");
  parser.add_list("--text", texts, "TEXT", "print the token ids of this text; repeatable");
  parser.add_list("--jsonl", files, "FILE", "print the token ids of each {\"text\": ...} line; repeatable");
  if (!parser.parse(arguments)) return 0;

  const bool wants_texts = !texts.empty() || !files.empty();
  ProfileSources sources = flags.sources();
  sources.needs_datasets = !wants_texts;
  const LoadedProfile loaded = load_and_log(sources);
  if (!wants_texts) return tokenize_profile(loaded.profile, num_shown, step, parser.common().json);

  const Profile& profile = loaded.profile;
  const auto folder = storage::resolve_model(profile.model.path).folder;
  auto tokenizer = lora::open_tokenizer(profile.model, folder, profile.adapter.init_adapter).tokenizer;
  if (!tokenizer) tokenizer = tokenizer::Tokenizer::load(folder);  // load() reports what is missing
  for (const auto& text : texts) print_ids(*tokenizer, text, parser.common().json);
  for (const auto& file : files) {
    data::read_texts(file, [&](const std::string& text) { print_ids(*tokenizer, text, parser.common().json); });
  }
  return 0;
}

// cache: the files of the token cache.
namespace {

namespace fs = std::filesystem;

void list(const fs::path& folder, bool json) {
  const std::vector<data::CachedTable> tables = data::list_token_tables(folder);
  std::uint64_t total = 0;
  for (const data::CachedTable& table : tables) {
    total += table.num_bytes;
    print_json_or_text(
        json,
        {{"file", table.file.string()},
         {"num_bytes", table.num_bytes},
         {"last_used", table.last_used},
         {"is_in_use", table.is_in_use}},
        fmt::format("{:%Y-%m-%d %H:%M}  {:>10}  {}{}", fmt::localtime(table.last_used), format_bytes(table.num_bytes),
                    table.file.filename().string(), table.is_in_use ? "  in use" : ""));
  }
  if (json) return;
  const std::uint64_t limit = data::token_cache_limit();
  print_line(fmt::format("{}: {} tables, {}{}", folder.string(), tables.size(), format_bytes(total),
                         limit == data::kNoCacheLimit ? "; no limit" : " of at most " + format_bytes(limit)));
}

void clear(const fs::path& folder, std::int64_t used_before, bool json) {
  data::sweep_token_cache(folder);
  const data::DeletedTables deleted = data::shrink_token_cache(folder, 0, used_before);
  std::vector<data::CachedTable> left = data::list_token_tables(folder);
  std::erase_if(left, [&](const data::CachedTable& table) { return table.last_used >= used_before; });
  const auto num_in_use = std::ranges::count_if(left, [](const data::CachedTable& table) { return table.is_in_use; });
  const auto num_without_lock = std::ssize(left) - num_in_use;
  print_json_or_text(
      json,
      {{"folder", folder.string()},
       {"num_deleted", deleted.num_tables},
       {"num_bytes", deleted.num_bytes},
       {"num_in_use", num_in_use},
       {"num_without_lock", num_without_lock}},
      fmt::format("{}: deleted {} tables, {}{}{}", folder.string(), deleted.num_tables, format_bytes(deleted.num_bytes),
                  num_in_use == 0 ? "" : fmt::format("; kept {} in use", num_in_use),
                  num_without_lock == 0 ? "" : fmt::format("; kept {} that cannot be locked", num_without_lock)));
}

}  // namespace

int run_cache(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "cache",
      "Lists or deletes the token tables that runs share. LORA_TRAIN_CACHE_MAXSIZE (default 64G, 0 = no limit) limits "
      "their size: beyond it, a run deletes the least recently used ones.");
  bool wants_list = false, wants_clear = false;
  std::string folder = data::user_token_cache().string();
  std::int64_t used_before = std::numeric_limits<std::int64_t>::max();
  parser.add_flag("--list", wants_list, "show the tables, least recently used first");
  parser.add_flag("--clear", wants_clear, "delete all tables that no run uses, and the leftovers of killed runs");
  const auto read_age = [&](const std::string& text) {
    const auto age = parse_duration(text);
    if (!age || *age < 0) return false;
    const double now = static_cast<double>(std::time(nullptr));
    used_before = static_cast<std::int64_t>(std::ceil(std::max(now - *age, 0.0)));
    return true;
  };
  const CLI::Option* const older_than =
      parser.add_parsed("--older-than", "TIME", read_age, "an age such as 30d, 12h or 90m",
                        "with --clear: keep the tables used within this time");
  const CLI::Option* const dir = parser.add(
      "--dir", folder, "DIR", "dataset_prepared_path or stage_dir of a profile (default ~/.cache/lora-train/tokens)");
  if (!parser.parse(arguments)) return 0;
  if (wants_list == wants_clear) parser.refuse("--list", "expected one of --list and --clear.");
  if (wants_list && older_than->count() > 0) parser.refuse("--older-than", "needs --clear.");
  if (folder.empty()) {
    parser.refuse("--dir", "missing, and neither XDG_CACHE_HOME nor HOME is set.");
  }
  if (dir->count() > 0 && !fs::is_directory(folder)) {
    parser.refuse("--dir", folder + (fs::exists(folder) ? " is not a folder." : " does not exist."));
  }
  if (folder == data::user_token_cache() && fs::exists(folder)) storage::make_private_folder(folder);
  wants_list ? list(folder, parser.common().json) : clear(folder, used_before, parser.common().json);
  return 0;
}

}  // namespace lora_train::cli
