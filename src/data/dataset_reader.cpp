#include "dataset_reader.h"

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "encode/encode_sample.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "ordered_map.h"
#include "read/example_format.h"
#include "read/example_reader.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxShownBadExamples = 9;  // in addition to the first

// An example after tokenising; `raw` has its place, without the value, and why it is dropped or ends the run.
struct EncodedExample {
  RawExample raw;
  EncodedSample sample = {};
};

struct EncodedBlock {
  std::size_t file = 0;
  std::vector<EncodedExample> examples = {};
  std::set<std::string> unread_columns = {};
};

struct FileBlock {
  std::size_t file = 0;
  ExampleBlock examples;
};

// Blocks of all files, in order.
class FileBlocks {
 public:
  explicit FileBlocks(const std::vector<std::string>& files) : files_(files) {}

  std::optional<FileBlock> next() {
    for (; file_ < files_.size(); ++file_, reader_.reset()) {
      if (reader_ == nullptr) {
        reader_ = ExampleReader::open(files_[file_]);
      }
      if (auto examples = reader_->next()) return FileBlock{file_, std::move(*examples)};
    }
    return std::nullopt;
  }

 private:
  const std::vector<std::string>& files_;
  std::size_t file_ = 0;
  std::unique_ptr<ExampleReader> reader_;
};

// Hash of the program's own bytes: another build may tokenise differently.
const std::string& program_hash() {
  static const std::string hash = hash_file("/proc/self/exe").hash;
  return hash;
}

// Sizes and times, to detect a file that changes while it is read.
std::string state_of(const std::vector<std::string>& files) {
  std::string state;
  for (const std::string& file : files) {
    std::error_code error;
    state +=
        fmt::format("{}@{};", fs::file_size(file, error), fs::last_write_time(file, error).time_since_epoch().count());
  }
  return state;
}

std::string hash_of(const std::vector<std::string>& files) {
  std::string hashes;
  for (const std::string& file : files) hashes += hash_file(file, throw_if_stop_requested).hash;
  return hash128_hex(hashes);
}

class DatasetReader {
 public:
  DatasetReader(const DatasetSpec& spec, const std::string& key, const LoadOptions& options, const TokenCache& cache)
      : spec_(spec), key_(key), options_(options), cache_(cache), files_(dataset_files(spec, options.use)) {}

  LoadedDataset load() {
    const std::string state = state_of(files_);
    fingerprint_ = hash_of(files_);
    const std::string cache_key = table_key();
    auto table = cache_.find(cache_key);
    Descriptor building;
    if (table == nullptr) {
      building = cache_.wait_to_build(cache_key, name());
      table = cache_.find(cache_key);  // another process built it
    }
    if (table != nullptr) {
      use_metadata(*table);
      announce_layout();
      log_debug("{}from the token cache {}", name(), table->path().string());
    } else {
      table = build(cache_key);
      if (state_of(files_) != state) {
        throw DataError(
            spec_.path,
            "a file of the dataset changed while it was being read; run the command again once it is complete");
      }
    }
    building = Descriptor();
    table = cache_.staged(std::move(table), cache_key);
    cache_.shrink();
    log_info("{}{}, {} tokens, {} of them trained{}{}", name(), count_of(table->num_examples(), "example"),
             format_count(table->num_tokens()), format_count(num_supervised_),
             spec_.max_samples ? fmt::format("; max_samples: {}", *spec_.max_samples) : "",
             spec_.weight == 1 ? "" : fmt::format("; weight {:g}", spec_.weight));
    if (ledger_.thoughts.total() > 0) {
      log_info("{}{} (thinking: {})", name(), ledger_.thoughts.text(), to_string(options_.encode.thinking));
    }
    if (!unread_columns_.empty())
      log_info("{}columns not read: {}", name(), join({unread_columns_.begin(), unread_columns_.end()}));
    const bool joins_texts = layout_.type == DatasetType::kPromptCompletion && num_chats_ < table->num_examples();
    if (joins_texts && options_.use == DatasetUse::kTraining && options_.encode.chat_template != nullptr) {
      log_info(
          "{}prompt and completion are joined as they are, without the chat template; for chats: type: alpaca, "
          "field_map: {{instruction: {}, output: {}}}",
          name(), name_in(spec_.field_map, "prompt"), name_in(spec_.field_map, "completion"));
    }
    return {layout_.type, std::move(table), files_, ledger_, fingerprint_, num_system_turns_, num_chats_};
  }

 private:
  std::string name() const { return fmt::format("{} {}: ", key_, spec_.path); }

  // Everything that determines ids, labels and places.
  std::string table_key() const {
    const EncodeOptions& encode = options_.encode;
    nlohmann::json parts = {program_hash(),
                            fingerprint_,
                            files_,
                            to_string(spec_.type),
                            spec_.field_map,
                            to_string(encode.loss_on),
                            to_string(options_.on_bad_row),
                            options_.max_examples.value_or(-1),
                            encode.vocab_size,
                            encode.teacher != nullptr,
                            to_string(encode.thinking),
                            to_string(encode.null_fields)};
    if (const tokenizer::Tokenizer* tokenizer = encode.tokenizer) {
      parts.push_back({tokenizer->fingerprint(), tokenizer->bos_id().value_or(-1), tokenizer->eos_id().value_or(-1),
                       tokenizer->adds_bos()});
    }
    if (const tokenizer::ChatTemplate* chat_template = encode.chat_template) {
      parts.push_back({chat_template->fingerprint(), chat_template->day()});
    }
    return hash128_hex(parts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  std::shared_ptr<const TokenTable> build(const std::string& cache_key) {
    decide_layout();
    TokenTableWriter writer = cache_.writer(cache_key);
    FileBlocks blocks(files_);
    OrderedMap<FileBlock, EncodedBlock> pipeline([&] { return blocks.next(); },
                                                 [&](FileBlock&& block) { return encode(std::move(block)); });
    LinePace pace;
    pipeline.run(options_.num_threads, [&](EncodedBlock&& block) {
      throw_if_stop_requested();
      const bool wants_more = take(block, writer);
      if (pace.is_due()) log_info("{}{} examples tokenised so far", name(), format_count(ledger_.total));
      return wants_more;
    });
    num_supervised_ = writer.num_supervised();
    return writer.finish(metadata());
  }

  // The first good example decides. If none is good, take() reports each error.
  void decide_layout() {
    layout_ = {spec_.type, "type: " + to_string(spec_.type)};
    const auto decide = [&](RawExample&& example) {
      try {
        if (!example.is_bad) layout_ = detect_layout(example.value, spec_.field_map);
      } catch (const DataError&) {
      }
      return layout_.type == DatasetType::kAuto;
    };
    for (std::size_t i = 0; i < files_.size() && layout_.type == DatasetType::kAuto; ++i)
      for_each_example(files_[i], decide);
    announce_layout();
  }

  void announce_layout() const {
    if (layout_.type == DatasetType::kAuto) return;
    check_loss_on(layout_.type, options_.encode);
    log_info("{}{}{}; loss on {}", name(), to_string(layout_.type),
             layout_.reason.empty() ? "" : fmt::format(" ({})", layout_.reason),
             describe_loss(layout_.type, options_.encode.loss_on));
  }

  EncodedBlock encode(FileBlock&& block) const {
    EncodedBlock out{block.file};
    for (RawExample& raw : parse_examples(std::move(block.examples))) {
      throw_if_stop_requested();
      EncodedExample& example = out.examples.emplace_back(EncodedExample{std::move(raw)});
      if (!example.raw.is_bad) encode(example, out.unread_columns);
      example.raw.value = nullptr;
      // A line number does not identify an example if other examples share the line.
      for (std::string* text : {&example.raw.message, &example.sample.not_rendered, &example.sample.empty_answer}) {
        if (!text->empty()) *text = element_prefix(example.raw.element) + *text;
      }
      split_documents(out.examples);
    }
    return out;
  }

  /// An example that another tool has packed becomes one per document.
  static void split_documents(std::vector<EncodedExample>& examples) {
    if (examples.back().sample.documents.size() < 2) return;
    const EncodedExample packed = std::move(examples.back());
    const std::vector<std::size_t>& firsts = packed.sample.documents;
    examples.pop_back();
    for (std::size_t i = 0; i < firsts.size(); ++i) {
      const std::size_t size = (i + 1 < firsts.size() ? firsts[i + 1] : packed.sample.ids.size()) - firsts[i];
      const auto part_of = [&](const std::vector<std::int32_t>& values) {
        const auto part = std::span(values).subspan(firsts[i], size);
        return std::vector<std::int32_t>(part.begin(), part.end());
      };
      examples.push_back({packed.raw, {.ids = part_of(packed.sample.ids), .labels = part_of(packed.sample.labels)}});
    }
  }

  void encode(EncodedExample& example, std::set<std::string>& unread) const {
    const Json& value = example.raw.value;
    try {
      const DatasetType type =
          layout_.type == DatasetType::kAuto ? detect_layout(value, spec_.field_map).type : layout_.type;
      if (spec_.type == DatasetType::kAuto) check_same_layout(value, type, spec_.field_map);
      example.sample = encode_sample(parse_example(value, type, spec_.field_map), options_.encode);
      const Json* const logprobs = optional_field(value, spec_.field_map, "logprobs");
      const bool reads_logprobs = logprobs != nullptr && options_.encode.teacher != nullptr;
      if (reads_logprobs && example.sample.documents.size() > 1)
        throw DataError("",
                        "logprobs of an example that is packed already cannot be read; give one example per document");
      if (reads_logprobs) add_soft_labels(*logprobs, *options_.encode.teacher, example.sample);
      for (std::string& column : unread_columns(value, type, spec_.field_map)) {
        if (!reads_logprobs || column != name_in(spec_.field_map, "logprobs")) unread.insert(std::move(column));
      }
    } catch (const DataError& error) {
      example.raw.refuse(error.where().empty() ? example.raw.where : error.where(), error.message());
    }
  }

  // Also shows the next bad examples of the block, so that users need not find them one by one.
  [[noreturn]] void refuse_bad_examples(const EncodedBlock& block, const RawExample& first) const {
    std::string list;
    std::size_t others = 0;
    bool have_same_reason = true;
    for (const auto& [example, sample] : block.examples) {
      if (!example.is_bad || &example == &first) continue;
      const bool is_same = example.message == first.message;
      have_same_reason = have_same_reason && is_same;
      if (++others <= kMaxShownBadExamples)
        list += fmt::format("\n  {}: {}", example.where,
                            is_same ? "the same" : example.message.substr(0, example.message.find('\n')));
    }
    if (others > kMaxShownBadExamples) list += "\n  and " + count_of(others - kMaxShownBadExamples, "more bad example");
    const bool are_all_bad = ledger_.total == 1 && others + 1 == block.examples.size();
    if (are_all_bad && others > 0 && have_same_reason)
      list = fmt::format("\n  and all {} read so far fail for the same reason", count_of(others + 1, "example"));
    const std::string advice = "\nFix " + std::string(others > 0 ? "them" : "it") +
                               ", or skip bad examples with on_bad_row: drop (and max_drop_fraction, if they are more "
                               "than 1%).";
    throw DataError(first.where, first.message + list + (are_all_bad ? "" : advice));
  }

  // Counts and stores the examples of a block; false when max_examples is reached.
  bool take(EncodedBlock& block, TokenTableWriter& writer) {
    unread_columns_.merge(block.unread_columns);
    for (const auto& [raw, sample] : block.examples) {
      ++ledger_.total;
      if (raw.is_bad) {
        if (options_.on_bad_row == OnBadRow::kError) refuse_bad_examples(block, raw);
        ledger_.add(LedgerReason::kBadRow, raw.where, raw.message);
        continue;
      }
      if (!sample.not_rendered.empty()) ledger_.add(LedgerReason::kNotRendered, raw.where, sample.not_rendered);
      if (!sample.empty_answer.empty()) ledger_.add(LedgerReason::kEmptyAnswer, raw.where, sample.empty_answer);
      if (sample.has_dropped_nulls) ledger_.add(LedgerReason::kNullFields, raw.where);
      if (sample.has_decoded_arguments) ledger_.add(LedgerReason::kJsonArguments, raw.where);
      ledger_.thoughts.add(sample.thoughts);
      if (sample.ids.empty()) {
        ledger_.add(LedgerReason::kFullyMasked, raw.where, element_prefix(raw.element) + "the example is empty");
        continue;
      }
      num_system_turns_ += sample.has_system_turn ? 1 : 0;
      num_chats_ += sample.is_chat ? 1 : 0;
      writer.append(sample.ids, sample.labels, static_cast<std::uint32_t>(block.file),
                    raw.line | std::uint64_t{raw.element} << 32, sample.weights,
                    {sample.soft_width, sample.soft_ids, sample.soft_log_probs});
      if (options_.max_examples && writer.num_examples() >= *options_.max_examples) return false;
    }
    return true;
  }

  std::string metadata() const {
    nlohmann::json entries = nlohmann::json::array();
    for (const LedgerEntry& entry : ledger_.entries) {
      entries.push_back(
          {static_cast<int>(entry.reason), entry.count, entry.first_source, entry.first_message, entry.more_sources});
    }
    const nlohmann::json all = {{"type", static_cast<int>(layout_.type)},
                                {"unread_columns", unread_columns_},
                                {"num_supervised", num_supervised_},
                                {"num_system_turns", num_system_turns_},
                                {"num_chats", num_chats_},
                                {"total", ledger_.total},
                                {"thoughts", {ledger_.thoughts.kept, ledger_.thoughts.dropped, ledger_.thoughts.empty}},
                                {"entries", entries}};
    return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void use_metadata(const TokenTable& table) {
    const auto all = nlohmann::json::parse(table.metadata());
    layout_.type = static_cast<DatasetType>(all["type"].get<int>());
    num_supervised_ = all["num_supervised"].get<std::int64_t>();
    num_system_turns_ = all["num_system_turns"].get<std::int64_t>();
    num_chats_ = all["num_chats"].get<std::int64_t>();
    unread_columns_ = all["unread_columns"].get<std::set<std::string>>();
    ledger_.total = all["total"].get<std::int64_t>();
    const auto thoughts = all["thoughts"].get<std::array<std::int64_t, 3>>();
    ledger_.thoughts = {thoughts[0], thoughts[1], thoughts[2]};
    for (const auto& entry : all["entries"]) {
      ledger_.entries.push_back({static_cast<LedgerReason>(entry[0].get<int>()), entry[1].get<std::int64_t>(),
                                 entry[2].get<std::string>(), entry[3].get<std::string>(),
                                 entry[4].get<std::vector<std::string>>()});
    }
  }

  const DatasetSpec& spec_;
  const std::string& key_;
  const LoadOptions& options_;
  const TokenCache& cache_;
  std::vector<std::string> files_;
  Detection layout_;
  Ledger ledger_;
  std::string fingerprint_;
  std::int64_t num_supervised_ = 0, num_system_turns_ = 0, num_chats_ = 0;
  std::set<std::string> unread_columns_;
};

}  // namespace

std::string fingerprint_of_files(const DatasetSpec& spec, DatasetUse use) { return hash_of(dataset_files(spec, use)); }

LoadedDataset load_dataset(const DatasetSpec& spec, const std::string& key, const LoadOptions& options,
                           const TokenCache& cache) {
  check_field_map(spec.field_map);
  return DatasetReader(spec, key, options, cache).load();
}

}  // namespace lora_train::data
