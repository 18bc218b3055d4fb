#include "lora_train/data/prepare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dataset_reader.h"
#include "document_checks.h"
#include "encode/encode_sample.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/philox.h"
#include "lora_train/base/text.h"
#include "lora_train/data/cache/token_cache_files.h"
#include "lora_train/data/plan/epoch_rows.h"
#include "lora_train/data/plan/plan.h"
#include "lora_train/data/read/dataset_files.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "read/example_format.h"

namespace lora_train::data {
namespace {

/// `identity`: the concatenated fingerprints of the files of all datasets.
std::string fingerprint_of(const DataSection& section, const DataContext& context, const std::string& identity,
                           std::int64_t max_seq_len) {
  std::string parts = identity;
  for (const DatasetSpec& spec : section.datasets) {
    parts += "|" + to_string(spec.type);
    if (spec.max_samples) parts += fmt::format(",first {}", *spec.max_samples);
    if (spec.null_fields != NullFields::kDrop) parts += ",null_fields " + to_string(spec.null_fields);
    for (const auto& [ours, theirs] : spec.field_map) {
      parts += fmt::format(",{}={}", ours, theirs);
    }
  }
  parts += fmt::format("|{}|{}|{}|{}|{:f}{}|{}|{}", to_string(section.loss_on), to_string(section.overlength),
                       to_string(section.on_bad_row), max_seq_len, section.val_set_size,
                       section.val_set_size > 0 ? fmt::format("|{}", context.seed) : "",
                       context.tokenizer == nullptr ? "" : context.tokenizer->fingerprint(),
                       context.chat_template == nullptr ? "" : context.chat_template->fingerprint());
  if (section.drop_duplicates) parts += "|drop_duplicates";
  if (section.thinking != Thinking::kTemplate) parts += "|thinking " + to_string(section.thinking);
  return hash128_hex(parts);
}

constexpr const char* kTrainingData = "training data";

std::size_t num_threads(const DataContext& context) {
  return context.num_threads > 0 ? context.num_threads : std::max(1U, std::thread::hardware_concurrency());
}

std::string evaluation_data(const std::string& name) { return fmt::format("evaluation data \"{}\"", name); }

void log_ledger(const Ledger& ledger, const std::string& what) {
  for (const std::string& line : ledger.lines()) {
    ledger.entries.empty() ? log_info("{} {}", what, line) : log_warning("{} {}", what, line);
  }
}

// Shows users, before any step is wasted, that their turns are not where the mask looks for them.
void refuse_all_masked(const DocumentStore& store, const tokenizer::Tokenizer* tokenizer, LossOn loss_on,
                       const std::string& what) {
  if (store.empty() || store.total_supervised() > 0) return;
  std::string message = "every example of the " + what +
                        " is masked: no token is trained with loss_on: " + to_string(loss_on) +
                        ". Chats need an assistant turn, completions some text, pre-tokenised examples a label that is "
                        "not -100. The first examples are:";
  for (const ExampleView& example : view_examples(store, tokenizer, 0, 3)) {
    message += fmt::format("\n  {} ({} tokens, 0 trained): {}", example.source, example.ids.size(),
                           printable(example.text, 300));
  }
  throw DataError(store.source(0), message);
}

void refuse_empty(const DocumentStore& store, const Ledger& ledger, const std::string& what) {
  if (store.empty()) {
    const std::string first = ledger.entries.empty() ? "" : ledger.entries.front().first_source;
    throw DataError(first, "no example of the {} is left:\n{}", what, join(ledger.lines(), "\n"));
  }
}

std::optional<std::int64_t> fewer(std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
  return a && b ? std::min(a, b) : (a ? a : b);
}

// Reasoning models of Mistral are published with their system prompt in a file; no template adds it.
void log_published_prompt(const std::filesystem::path& model_folder) {
  const std::filesystem::path file = model_folder / "SYSTEM_PROMPT.txt";
  if (model_folder.empty() || !std::filesystem::exists(file)) return;
  log_info("{} holds the system prompt that this model was published with; no training example has a system turn",
           file.string());
}

// Prepares all sets of a run, step by step.
class Preparation {
 public:
  Preparation(const DataSection& section, const DataContext& context) : section_(section), context_(context) {}

  void load_train() {
    std::set<std::string> descriptions;
    for (std::size_t i = 0; i < section_.datasets.size(); ++i) {
      const auto loaded = load(section_.datasets[i], fmt::format("datasets[{}]", i), DatasetUse::kTraining,
                               section_.datasets[i].max_samples, data_.train, data_.ledger);
      descriptions.insert(describe_loss(loaded.type, section_.loss_on));
      data_.has_chats = data_.has_chats || loaded.num_chats > 0;
      data_.has_texts = data_.has_texts ||
                        (loaded.type != DatasetType::kPretokenized && loaded.num_chats < loaded.table->num_examples());
      num_system_turns_ += loaded.num_system_turns;
      identity_ += loaded.fingerprint;
    }
    if (data_.has_chats && num_system_turns_ == 0) log_published_prompt(context_.model_folder);
    refuse_all_masked(data_.train, context_.tokenizer, section_.loss_on, kTrainingData);
    data_.loss_description = join({descriptions.begin(), descriptions.end()}, "; ");
  }

  void load_evals() {
    for (std::size_t i = 0; i < section_.eval_datasets.size(); ++i) {
      const DatasetSpec& spec = section_.eval_datasets[i];
      NamedStore set;
      set.name = eval_names_[i];
      const auto loaded = load(spec, fmt::format("eval_datasets[{}]", i), DatasetUse::kEvaluation,
                               fewer(spec.max_samples, section_.eval_max_samples), set.store, set.ledger);
      if (data_.loss_description.empty()) {
        data_.loss_description = describe_loss(loaded.type, section_.loss_on);
      }
      refuse_all_masked(set.store, context_.tokenizer, section_.loss_on, evaluation_data(set.name));
      data_.evals.push_back(std::move(set));
    }
  }

  void decide_length() {
    const LengthStatistics lengths = measure();
    data_.max_seq_len_is_auto = !section_.max_seq_len;
    data_.max_seq_len =
        section_.max_seq_len ? *section_.max_seq_len : automatic_max_seq_len(lengths, context_.max_position_embeddings);
    if (data_.max_seq_len_is_auto) {
      for (const std::string& line : length_choices(data_.train, data_.train_lengths)) log_info(line);
    }
    if (data_.max_seq_len_is_auto && data_.max_seq_len < lengths.longest) {
      log_warning(
          "max_seq_len: auto chose {}, less than the longest example ({} tokens): it is capped by "
          "max_position_embeddings and by 4 times the 99th percentile ({} tokens), at least 2048",
          data_.max_seq_len, lengths.longest, lengths.percentile_99);
    }
    if (context_.max_position_embeddings > 0 && data_.max_seq_len > context_.max_position_embeddings) {
      log_warning("max_seq_len: {} is more than the model's {} positions (max_position_embeddings)", data_.max_seq_len,
                  context_.max_position_embeddings);
    }
  }

  void apply_policy(bool has_train) {
    if (has_train) apply_policy_to(data_.train, data_.ledger, kTrainingData);
    for (NamedStore& set : data_.evals) {
      apply_policy_to(set.store, set.ledger, evaluation_data(set.name));
    }
  }

  /// Comes before the split, so that no example is both trained and held out.
  void drop_duplicates(bool has_train) {
    if (!section_.drop_duplicates || !has_train) return;
    const auto dropped = [](Ledger& ledger, const std::string& what, DocumentStore store) {
      for (const LedgerEntry& entry : ledger.entries) {
        if (entry.reason >= LedgerReason::kDroppedDuplicate) log_info(what + ": " + Ledger::line(entry, ledger.total));
      }
      refuse_empty(store, ledger, what);
      return store;
    };
    data_.train = dropped(data_.ledger, kTrainingData, without_duplicates(data_.train, data_.ledger));
    for (NamedStore& set : data_.evals) {
      set.store =
          dropped(set.ledger, evaluation_data(set.name), without_training_examples(set.store, data_.train, set.ledger));
    }
  }

  /// Chooses examples by Philox numbers from the seed: the same examples on every machine. val_set_size below 1 is a
  /// share (rounded up), from 1 on a count.
  void split_validation() {
    const double size = section_.val_set_size, num_examples = static_cast<double>(data_.train.size());
    if (size <= 0) return;
    const double wanted = size < 1 ? std::ceil(size * num_examples) : size;
    if (wanted >= num_examples) {
      throw DataError("val_set_size", "{:g} would hold out {:.0f} of {} examples, leaving none to train on", size,
                      wanted, data_.train.size());
    }
    auto order =
        shuffled(data_.train.size(), philox_key(static_cast<std::uint64_t>(context_.seed), RandomPurpose::kSplit, {}));
    const auto held_out = std::span(order).first(static_cast<std::size_t>(wanted)),
               rest = std::span(order).subspan(held_out.size());
    std::ranges::sort(held_out);  // both keep file order
    std::ranges::sort(rest);
    const std::size_t most = static_cast<std::size_t>(section_.eval_max_samples.value_or(INT64_MAX));
    NamedStore set{eval_names_.back(), data_.train.subset(held_out.first(std::min(most, held_out.size()))), {}};
    set.ledger.total = set.ledger.kept = static_cast<std::int64_t>(set.store.size());
    data_.train = data_.train.subset(rest);
    log_info("val_set_size: " + format_count(held_out.size()) + " examples held out, " +
             format_count(data_.train.size()) + " left to train on");
    data_.evals.push_back(std::move(set));
  }

  // Counts in the final training and evaluation sets. Keeps the examples: repetition may be intended.
  void count_duplicates(bool has_train) {
    if (!has_train) return;
    Ledger found;
    data::count_duplicates(data_.train, eval_stores(), found);
    data_.ledger.add(found);
    for (const LedgerEntry& entry : found.entries) {
      log_warning("{}: {}", kTrainingData, found.line(entry, static_cast<std::int64_t>(data_.train.size())));
    }
  }

  void check_stop_token() {
    if (data_.has_texts) {
      if (const auto warning = audit_end_of_text(*context_.tokenizer)) log_warning(*warning);
    }
    if (!data_.has_chats) return;
    if (const std::string day = context_.chat_template->day(); !day.empty())
      log_info("chat_template writes the date: {} in every example (template_date)", day);
    const StopTokenAudit audit = audit_stop_token(*context_.tokenizer, *context_.chat_template, data_.train);
    data_.stop_token_id = audit.id;
    for (const std::string& warning : audit.warnings) {
      log_warning(warning);
    }
  }

  void weigh_datasets() {
    for (std::size_t begin = 0, end = 0; begin < data_.train.size(); begin = end) {
      const std::size_t table = data_.train.table(begin);
      for (end = begin; end < data_.train.size() && data_.train.table(end) == table;) {
        ++end;
      }
      data_.train_ranges.push_back({begin, end, section_.datasets[table].weight});
    }
  }

  void check_soft_labels() const {
    std::int64_t num_soft = 0;
    for (std::size_t i = 0; i < data_.train.size(); ++i) {
      const SoftLabels soft = data_.train.soft_labels(i);
      const auto width = static_cast<std::size_t>(soft.width);
      for (std::size_t at = 0; at < soft.ids.size(); at += width) num_soft += soft.ids[at] != SoftLabels::kNone ? 1 : 0;
    }
    if (num_soft == 0) {
      throw DataError(
          "datasets",
          "no trained token has log-probabilities of a teacher with the model's tokenizer. Examples need \"logprobs\" "
          "as servers return them (lora-train teach --logprobs 20), from a teacher with this tokenizer; without them, "
          "set loss_type: nll");
    }
    log_info("soft labels: " + format_count(num_soft) + " of " + format_count(data_.train.total_supervised()) +
             " trained tokens have the teacher's log-probabilities; the others use cross entropy alone");
  }

  PreparedData finish(bool need_train) {
    data_.fingerprint = fingerprint_of(section_, context_, identity_, data_.max_seq_len);
    if (need_train) {
      weigh_datasets();
      check_stop_token();
      if (context_.reads_soft_labels) check_soft_labels();
      log_length();
    } else {
      data_.train = DocumentStore();
    }
    return std::move(data_);
  }

 private:
  LoadedDataset load(const DatasetSpec& spec, const std::string& key, DatasetUse use,
                     std::optional<std::int64_t> max_examples, DocumentStore& store, Ledger& ledger) const {
    LoadedDataset loaded =
        load_dataset(spec, key,
                     {{context_.tokenizer, context_.chat_template, section_.loss_on, context_.vocab_size,
                       use == DatasetUse::kTraining ? teacher_.get() : nullptr, section_.thinking, spec.null_fields},
                      section_.on_bad_row,
                      max_examples,
                      num_threads(context_),
                      use},
                     cache_);
    store.add(loaded.table, loaded.files);
    ledger.add(loaded.ledger);
    return loaded;
  }

  std::vector<const DocumentStore*> eval_stores() const {
    std::vector<const DocumentStore*> stores;
    for (const NamedStore& set : data_.evals) stores.push_back(&set.store);
    return stores;
  }

  // Uses the longest example of all sets, so that an evaluation example never decides if a run can train.
  LengthStatistics measure() {
    data_.train_lengths = length_statistics({&data_.train});
    LengthStatistics lengths = data_.train_lengths;
    const LengthStatistics evals = length_statistics(eval_stores());
    lengths.longest = std::max(lengths.longest, evals.longest);
    lengths.percentile_99 = std::max(lengths.percentile_99, evals.percentile_99);
    return lengths;
  }

  void apply_policy_to(DocumentStore& store, Ledger& ledger, const std::string& what) const {
    store = apply_length_policy(std::move(store), data_.max_seq_len, section_.overlength, ledger, what,
                                {context_.max_position_embeddings, section_.max_drop_fraction});
    log_ledger(ledger, what);
    refuse_empty(store, ledger, what);
    ledger.check_drop_fraction(section_.max_drop_fraction, what);
  }

  void log_length() const {
    PlanOptions plan;
    plan.max_seq_len = data_.max_seq_len;
    plan.packing = section_.packing;
    plan.seed = static_cast<std::uint64_t>(context_.seed);
    const auto num_rows = plan_rows(data_.train, plan, 0).size();
    const double filled = static_cast<double>(data_.train.total_tokens()) /
                          (static_cast<double>(num_rows) * static_cast<double>(data_.max_seq_len));
    const LengthStatistics& all = data_.train_lengths;
    log_info(
        "max_seq_len: {}{} (tokens per example: median {}, 99th percentile {}, longest {}); {}, {:.1f}% of the slots "
        "are empty and cost nothing",
        data_.max_seq_len, data_.max_seq_len_is_auto ? ", chosen" : "", all.percentile_50, all.percentile_99,
        all.longest, section_.packing ? "with packing" : "without packing", 100.0 * (1.0 - filled));
  }

  const DataSection& section_;
  const DataContext& context_;
  const std::vector<std::string> eval_names_ = evaluation_names(section_);
  const TokenCache cache_{context_.cache_folder, section_.stage_dir};
  const std::unique_ptr<TeacherVocabulary> teacher_ =
      context_.reads_soft_labels ? std::make_unique<TeacherVocabulary>(context_.tokenizer, context_.vocab_size)
                                 : nullptr;
  PreparedData data_;
  std::string identity_;
  std::int64_t num_system_turns_ = 0;
};

}  // namespace

bool PreparedData::has_weights() const {
  return train.has_weights() ||
         std::any_of(evals.begin(), evals.end(), [](const NamedStore& set) { return set.store.has_weights(); });
}

std::vector<std::string> evaluation_names(const DataSection& section) {
  std::vector<std::string> wanted, names;
  for (const DatasetSpec& spec : section.eval_datasets)
    wanted.push_back(spec.name.empty() ? dataset_name(spec.path) : spec.name);
  if (section.val_set_size > 0) wanted.push_back("validation");
  for (const std::string& base : wanted) {
    std::string name = base;
    for (int i = 2; std::find(names.begin(), names.end(), name) != names.end(); ++i)
      name = fmt::format("{}-{}", base, i);
    names.push_back(std::move(name));
  }
  return names;
}

std::filesystem::path token_cache_folder(const DataSection& section) {
  return section.dataset_prepared_path.empty() ? user_token_cache()
                                               : std::filesystem::path(section.dataset_prepared_path);
}

PreparedData prepare_data(const DataSection& section, const DataContext& context, bool need_train) {
  Preparation preparation(section, context);
  const bool drops = section.drop_duplicates && !section.datasets.empty();  // from evaluation data, the examples that
                                                                            // are trained on
  const bool reads_train = need_train || section.val_set_size > 0 || drops;
  if (reads_train && section.datasets.empty()) {
    throw ConfigError("datasets", "no dataset to train on; set datasets: [{path: train.jsonl}]");
  }
  if (!need_train && section.eval_datasets.empty() && section.val_set_size <= 0) {
    throw ConfigError("eval_datasets",
                      "no data to evaluate on; set eval_datasets: [{path: val.jsonl}] or val_set_size");
  }
  if (reads_train) {
    preparation.load_train();
  }
  preparation.load_evals();
  preparation.decide_length();
  preparation.apply_policy(reads_train);
  preparation.drop_duplicates(reads_train);
  preparation.split_validation();
  preparation.count_duplicates(reads_train);
  return preparation.finish(need_train);
}

std::string data_fingerprint(const DataSection& section, const DataContext& context, std::int64_t max_seq_len) {
  std::string identity;
  for (const DatasetSpec& spec : section.datasets) identity += fingerprint_of_files(spec, DatasetUse::kTraining);
  return fingerprint_of(section, context, identity, max_seq_len);
}

BatchSizes resolve_batch_sizes(const ScheduleSection& section, std::int64_t max_seq_len, std::int64_t auto_tokens,
                               std::int64_t num_ranks, std::int64_t rows_of_rank) {
  const std::int64_t fitting = std::max<std::int64_t>(1, auto_tokens / max_seq_len);
  BatchSizes sizes;
  sizes.micro = section.micro_batch_size.value_or(fitting);
  sizes.global = section.gradient_accumulation_steps ? sizes.micro * *section.gradient_accumulation_steps * num_ranks
                                                     : section.global_batch_size.value_or(1);
  if (section.batch_unit == BatchUnit::kDocuments && rows_of_rank > 0) {
    sizes.micro = std::min(sizes.micro, rows_of_rank);
    return sizes;
  }
  if (section.gradient_accumulation_steps) return sizes;
  rows_of_rank = ceil_div(sizes.global, num_ranks);
  sizes.micro = std::min(sizes.micro, rows_of_rank);
  while (!section.micro_batch_size && rows_of_rank % sizes.micro != 0) {
    --sizes.micro;
  }
  return sizes;
}

std::int64_t count_rows_of_rank(const Profile& profile, const PreparedData& prepared, std::int64_t num_ranks) {
  if (!profile.packs_documents()) return 0;
  const BatchSizes sizes =
      resolve_batch_sizes(profile.schedule, prepared.max_seq_len, kAutoMicroBatchTokens, num_ranks);
  return plan_run(profile, prepared, sizes, {0, num_ranks}).most_rows_of_rank();
}

RunPlan plan_run(const Profile& profile, const PreparedData& prepared, const BatchSizes& sizes, RankOf of) {
  PlanOptions options;
  options.max_seq_len = prepared.max_seq_len;
  options.packing = profile.data.packing;
  options.shuffle = profile.data.shuffle;
  options.seed = static_cast<std::uint64_t>(profile.run.seed);
  options.global_batch_size = sizes.global;
  options.batch_unit = profile.schedule.batch_unit;
  options.micro_batch_size = sizes.micro;
  options.rank = of.rank;
  options.world_size = of.world_size;
  options.num_epochs = profile.schedule.num_epochs;
  options.max_steps = profile.schedule.max_steps;
  const auto is_plain = [](const WeightedRange& range) { return range.weight == 1; };
  if (!std::all_of(prepared.train_ranges.begin(), prepared.train_ranges.end(), is_plain)) {
    options.ranges = prepared.train_ranges;
  }
  return {prepared.train, options};
}

}  // namespace lora_train::data
