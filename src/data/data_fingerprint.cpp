#include "data_fingerprint.h"

#include "dataset_reader.h"
#include "lora_train/base/hash.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::data {

std::string fingerprint_of(const DataSection& section, const DataContext& context, const std::string& identity,
                           std::int64_t max_seq_len) {
  std::string parts = identity;
  for (const DatasetSpec& spec : section.datasets) {
    parts += "|" + to_string(spec.type);
    if (spec.max_samples) parts += ",first " + std::to_string(*spec.max_samples);
    for (const auto& [ours, theirs] : spec.field_map) {
      parts += "," + ours + "=" + theirs;
    }
  }
  parts +=
      "|" + to_string(section.loss_on) + "|" + to_string(section.overlength) + "|" + to_string(section.on_bad_row) +
      "|" + std::to_string(max_seq_len) + "|" + std::to_string(section.val_set_size) +
      (section.val_set_size > 0 ? "|" + std::to_string(context.seed) : "") + "|" +
      (context.tokenizer == nullptr ? "" : context.tokenizer->fingerprint()) + "|" +
      (context.chat_template == nullptr ? "" : context.chat_template->fingerprint() + date_of(*context.chat_template));
  if (section.drop_duplicates) parts += "|drop_duplicates";
  return hash128_hex(parts);
}

std::string data_fingerprint(const DataSection& section, const DataContext& context, std::int64_t max_seq_len) {
  std::string identity;
  for (const DatasetSpec& spec : section.datasets) identity += fingerprint_of_files(spec, DatasetUse::kTraining);
  return fingerprint_of(section, context, identity, max_seq_len);
}

}  // namespace lora_train::data
