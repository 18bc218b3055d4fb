#include "merge_rows.h"

#include <algorithm>
#include <array>

#include "lora_train/base/log.h"
#include "lora_train/data/prepare.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/merge.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/tokenizer/model_folder.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxRowTokens = 512, kMaxTokens = 2048;

constexpr std::array<const char*, 4> kTexts = {
    "The quick brown fox jumps over the lazy dog. A second sentence follows, with 3 numbers: 17, 2048 and 0.5.",
    "def mean(values):\n    \"\"\"Of a list that is not empty.\"\"\"\n    return sum(values) / len(values)\n",
    "Question: Which planet is the largest?\nAnswer: Jupiter, with about 318 times the mass of the Earth.",
    "Übung macht den Meister. La pratique rend parfait. 熟能生巧。"};

void add(std::vector<std::int32_t> ids, const std::string& name, std::int64_t longest, MergeRows& rows) {
  if (ids.empty()) return;
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(longest)));
  rows.ids.push_back(std::move(ids));
  rows.names.push_back(name);
}

/// Ids that go through the vocabulary in strides.
std::vector<std::int32_t> spread_ids(std::int64_t vocab_size, std::int64_t stride) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < 32; ++i) ids.push_back(static_cast<std::int32_t>((i + 1) * stride % vocab_size));
  return ids;
}

MergeRows built_in_rows(const tokenizer::Tokenizer* tokenizer, const model::ModelConfig& config,
                        const std::vector<std::int64_t>& trained_ids, std::int64_t longest) {
  MergeRows rows;
  for (std::size_t i = 0; i < kTexts.size(); ++i) {
    auto ids = tokenizer != nullptr ? tokenizer->encode(kTexts[i]).ids
                                    : spread_ids(config.vocab_size, 7919 + 2 * static_cast<std::int64_t>(i));
    std::erase_if(ids, [&](std::int32_t id) { return id < 0 || id >= config.vocab_size; });
    add(std::move(ids), "built-in row " + std::to_string(i + 1), longest, rows);
  }
  add({trained_ids.begin(), trained_ids.end()}, "the tokens with trained rows", longest, rows);
  return rows;
}

MergeRows rows_of_file(const data::DocumentStore& store, std::int64_t longest) {
  MergeRows rows;
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < store.size(); ++i) {
    const std::int64_t length = std::min(store.num_tokens(i), longest);
    if (num_tokens + length > kMaxTokens) {
      log_info("comparing logits on the first " + std::to_string(i) + " of " + std::to_string(store.size()) +
               " rows only: at most " + std::to_string(kMaxTokens) + " tokens in all");
      break;
    }
    num_tokens += length;
    const auto ids = store.ids(i);
    add({ids.begin(), ids.end()}, store.source(i), longest, rows);
  }
  return rows;
}

}  // namespace

MergeRows merge_rows(const std::string& file, const fs::path& model, const fs::path& adapter) {
  const fs::path tokenizer_folder = lora::merged_tokenizer_folder(model, adapter);
  model::ModelConfig config = model::read_model_config(model);
  const model::TokenRows trained = lora::token_rows_of(lora::read_adapter_config(adapter), adapter, config);
  const std::int64_t longest = std::min(kMaxRowTokens, config.context_length());
  const auto tokenizer = tokenizer::load_tokenizer_if_present(tokenizer_folder);
  if (file.empty()) return built_in_rows(tokenizer.get(), config, trained.ids(), longest);
  const auto chat_template = tokenizer::load_chat_template("tokenizer", tokenizer_folder);
  DataSection section;
  section.datasets.emplace_back().path = file;
  section.max_seq_len = config.context_length();
  section.overlength = Overlength::kTruncate;
  section.max_drop_fraction = 1;
  section.packing = false;
  const data::DataContext context{.tokenizer = tokenizer.get(),
                                  .chat_template = chat_template.get(),
                                  .vocab_size = config.vocab_size,
                                  .max_position_embeddings = config.context_length(),
                                  .num_threads = 1};
  return rows_of_file(data::prepare_data(section, context, /*need_train=*/true).train, longest);
}

}  // namespace lora_train::cli
