#include "merge_comparison.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/engine_loader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/data/prepare.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/tokenizer/chat/chat_template.h"

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

/// Ids that step through the vocabulary in strides.
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
    add(std::move(ids), fmt::format("built-in text {}", i + 1), longest, rows);
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
      log_info("comparing logits on the first {} of {} examples only: at most {} tokens in all", i, store.size(),
               kMaxTokens);
      break;
    }
    num_tokens += length;
    const auto ids = store.ids(i);
    add({ids.begin(), ids.end()}, store.source(i), longest, rows);
  }
  return rows;
}

/// Reads rows of `file`, in any dataset layout, cut to 512 tokens each; leaves out those past 2048 tokens in all, and
/// logs that. Empty: a few built-in texts, or, without a tokenizer, a few rows of spread ids, and a row of the tokens
/// whose rows the adapter trains. Throws DataError for rows, FormatError.
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

/// The model that the merged one is compared with.
std::string name_of(const Comparison& comparison, std::size_t base) {
  if (comparison.bases.size() == 1) return "the unmerged model";
  const std::string precision = to_string(comparison.bases[0].base_precision);
  return base == 0 ? fmt::format("what was trained (base in {})", precision) : "the adapter on the original weights";
}

nlohmann::ordered_json as_json(const lora::MergeCheck& found, const Comparison& comparison) {
  return {{"max_logit_difference", found.max_difference}, {"max_logit", found.max_logit},
          {"row", comparison.rows.names.at(found.row)},   {"token", found.position + 1},
          {"num_positions", found.num_positions},         {"num_argmax_changed", found.num_argmax_changed}};
}

}  // namespace

Comparison prepare_comparison(const std::string& rows_file, bool no_check, const lora::MergeRequest& request,
                              const MergeBase& base) {
  Comparison comparison;
  comparison.bases = {base.trained_on};
  if (base.trained_on.is_quantised()) comparison.bases.emplace_back();
  if (no_check) {
    comparison.why_not = "--no-check";
    return comparison;
  }
  try {
    load_engine();
  } catch (const ConfigError& error) {
    if (!rows_file.empty()) throw;
    comparison.why_not = error.what();
    return comparison;
  }
  comparison.rows = merge_rows(rows_file, request.model, request.adapter);
  return comparison;
}

void compare(const lora::MergeRequest& request, const fs::path& folder, Comparison& comparison) {
  log_info("comparing logits with the unmerged model on " + count_of(std::ssize(comparison.rows.ids), "example"));
  comparison.found =
      load_engine().check_merge({request.model, request.adapter, folder, comparison.rows.ids, comparison.bases});
}

std::string in_words(const Comparison& comparison) {
  if (comparison.found.empty()) return "logits not compared with the unmerged model: " + comparison.why_not;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < comparison.found.size(); ++i) {
    const lora::MergeCheck& found = comparison.found[i];
    lines.push_back(fmt::format(
        "largest logit difference from {} {:.3g} (logits up to {:.3g}), at {}, token {}; another token is the most "
        "likely at {} of {} positions",
        name_of(comparison, i), found.max_difference, found.max_logit, comparison.rows.names.at(found.row),
        found.position + 1, format_count(found.num_argmax_changed), format_count(found.num_positions)));
  }
  return join(lines, "\n");
}

void add_to(nlohmann::ordered_json& line, const Comparison& comparison) {
  line["max_logit_difference"] = nullptr;
  if (comparison.found.empty()) {
    line["not_compared"] = comparison.why_not;
    return;
  }
  line.update(as_json(comparison.found[0], comparison));
  if (comparison.found.size() > 1) line["original"] = as_json(comparison.found[1], comparison);
}

}  // namespace lora_train::cli
