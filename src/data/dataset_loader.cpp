#include "dataset_loader.h"

#include "dataset_files.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "row_format.h"
#include "row_reader.h"

namespace lora_train::data {
namespace {

class Loader {
 public:
  Loader(const DatasetSpec& spec, const std::string& key, const LoadOptions& options, DocumentStore& store,
         Ledger& ledger)
      : spec_(spec), key_(key), options_(options), store_(store), ledger_(ledger), type_(spec.type) {}

  void read_file(const std::filesystem::path& file) {
    const std::uint32_t index = store_.add_file(file.string());
    const std::int64_t total_before = ledger_.total;
    hashes_ += read_rows(file, [&](RawRow&& row) {
      ++ledger_.total;
      take(std::move(row), index);
      return !is_full();
    });
    if (ledger_.total == total_before) {
      throw DataError(file.string(), "the file has no row");
    }
  }

  bool is_full() const { return options_.max_rows && num_good_ >= *options_.max_rows; }

  LoadedDataset result() const { return {type_, hash128_hex(hashes_)}; }

 private:
  void take(RawRow&& row, std::uint32_t file) {
    try {
      if (row.is_bad) {
        throw DataError(row.where, row.message);
      }
      add(row, file);
    } catch (const DataError& error) {
      const std::string where =
          error.where().empty() ? store_.files()[file] + ":" + std::to_string(row.line) : error.where();
      if (options_.on_bad_row == OnBadRow::kError) {
        throw DataError(where, error.message());
      }
      ledger_.add(LedgerReason::kBadRow, where, error.message());
    }
  }

  void add(const RawRow& row, std::uint32_t file) {
    if (!is_checked_) {
      decide_layout(row.value);
    }
    const Sample sample = parse_row(row.value, type_, spec_.field_map);
    const EncodedSample encoded = encode_sample(sample, options_.encode);
    const std::string source = store_.files()[file] + ":" + std::to_string(row.line);
    if (!encoded.not_rendered.empty()) {
      ledger_.add(LedgerReason::kNotRendered, source, encoded.not_rendered);
    }
    if (encoded.ids.empty()) {
      ledger_.add(LedgerReason::kFullyMasked, source, "the row is empty");
      return;
    }
    store_.append(encoded.ids, encoded.labels, file, row.line);
    ++num_good_;
  }

  void decide_layout(const Json& row) {
    std::string reason = "type: " + to_string(spec_.type);
    if (spec_.type == DatasetType::kAuto) {
      const Detection found = detect_layout(row, spec_.field_map);
      type_ = found.type;
      reason = found.reason;
    }
    check_loss_on(type_, options_.encode);
    is_checked_ = true;
    log_info(key_ + " " + spec_.path + ": " + to_string(type_) + " (" + reason + "); loss on " +
             describe_loss(type_, options_.encode.loss_on));
  }

  const DatasetSpec& spec_;
  const std::string& key_;
  const LoadOptions& options_;
  DocumentStore& store_;
  Ledger& ledger_;
  DatasetType type_;
  bool is_checked_ = false;
  std::int64_t num_good_ = 0;
  std::string hashes_;
};

}  // namespace

LoadedDataset load_dataset(const DatasetSpec& spec, const std::string& key, const LoadOptions& options,
                           DocumentStore& store, Ledger& ledger) {
  if (spec.weight != 1.0) {
    throw ConfigError(key + ".weight",
                      "a weight other than 1 is not built yet; repeat the dataset in the list instead");
  }
  check_field_map(spec.field_map);
  const std::size_t rows_before = store.size();
  const std::int64_t tokens_before = store.total_tokens(), supervised_before = store.total_supervised();
  Loader loader(spec, key, options, store, ledger);
  for (const auto& file : dataset_files(spec.path)) {
    if (!loader.is_full()) {
      loader.read_file(file);
    }
  }
  log_info(key + " " + spec.path + ": " + format_count(static_cast<long long>(store.size() - rows_before)) + " rows, " +
           format_count(store.total_tokens() - tokens_before) + " tokens, " +
           format_count(store.total_supervised() - supervised_before) + " of them trained");
  return loader.result();
}

}  // namespace lora_train::data
