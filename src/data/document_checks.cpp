#include "document_checks.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/data/plan/epoch_rows.h"
#include "lora_train/data/plan/plan.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::data {
namespace {

constexpr std::int64_t kRoundTo = 64;
constexpr std::int64_t kLeastCap = 2048;

std::int64_t percentile(const std::vector<std::int64_t>& sorted, std::int64_t p) {
  const auto n = static_cast<std::int64_t>(sorted.size());
  return sorted[static_cast<std::size_t>(std::max<std::int64_t>((n * p + 99) / 100, 1) - 1)];
}

/// Advice on a larger max_seq_len, within the limits of the model.
std::string larger_choice(const DocumentStore& store, std::int64_t max_seq_len, std::int64_t max_position_embeddings) {
  const std::int64_t wanted = round_up(store.longest(), kRoundTo);
  if (max_position_embeddings == 0 || wanted <= max_position_embeddings) {
    return fmt::format("max_seq_len: {}  keeps everything", wanted);
  }
  const std::string limit =
      fmt::format("the model has {} positions (max_position_embeddings), and the longest example has {} tokens",
                  max_position_embeddings, store.longest());
  if (max_position_embeddings <= max_seq_len) return "no larger max_seq_len: " + limit;
  std::int64_t num_longer = 0;
  for (std::size_t i = 0; i < store.size(); ++i) num_longer += store.num_tokens(i) > max_position_embeddings ? 1 : 0;
  return fmt::format("max_seq_len: {}  keeps {}", max_position_embeddings,
                     num_longer == 0 ? "everything" : "all but " + format_count(num_longer) + " of them: " + limit);
}

/// The max_drop_fraction needed to drop num_examples more examples; empty if the current one suffices.
std::string needed_drop_fraction(std::int64_t num_examples, const DocumentStore& store, const Ledger& ledger,
                                 double max_drop_fraction) {
  const std::int64_t total = std::max(ledger.total, static_cast<std::int64_t>(store.size()));
  const std::int64_t num_dropped = total - static_cast<std::int64_t>(store.size()) + num_examples;
  const double share = static_cast<double>(num_dropped) / static_cast<double>(total);
  if (share <= max_drop_fraction) return {};
  return fmt::format("; also needs max_drop_fraction: {:g}", std::ceil(1000 * share) / 1000);
}

[[noreturn]] void refuse_overlength(const DocumentStore& store, std::int64_t max_seq_len, const std::string& what,
                                    const LengthLimits& limits, const Ledger& ledger) {
  std::int64_t num_examples = 0, num_tokens = 0, num_cut = 0, num_masked = 0;
  std::string first;
  for (std::size_t i = 0; i < store.size(); ++i) {
    if (store.num_tokens(i) <= max_seq_len) continue;
    first = first.empty() ? store.source(i) : first;
    ++num_examples;
    num_tokens += store.num_tokens(i);
    num_cut += store.num_tokens(i) - max_seq_len;
    const auto head = store.labels(i).first(static_cast<std::size_t>(max_seq_len));
    num_masked += count_supervised(head) == 0 ? 1 : 0;
  }
  const bool is_all = num_examples == static_cast<std::int64_t>(store.size());
  throw DataError(first,
                  "{} of {} examples of the {} are longer than max_seq_len: {} (this is the first). Choose "
                  "one:\n  overlength: drop      loses these {} examples with {} tokens{}{}\n  overlength: "
                  "truncate  cuts {} tokens from their ends; {} of the examples would be left without a "
                  "trained token and dropped{}\n  {}",
                  format_count(num_examples), format_count(store.size()), what, max_seq_len, format_count(num_examples),
                  format_count(num_tokens), needed_drop_fraction(num_examples, store, ledger, limits.max_drop_fraction),
                  is_all ? ", leaving none" : "", format_count(num_cut), format_count(num_masked),
                  is_all && num_masked == num_examples ? ", leaving none" : "",
                  larger_choice(store, max_seq_len, limits.max_position_embeddings));
}

// An example and its equal.
struct Pair {
  std::uint32_t document;
  std::uint32_t twin;
  const DocumentStore* store;  // store of the twin
};

/// The examples of `store` that equal one of `others`, with the first such one; without others, those that equal an
/// earlier one of `store`. In document order.
std::vector<Pair> pairs_of(const DocumentStore& store, const std::vector<const DocumentStore*>& others) {
  struct Example {
    std::uint64_t hash;
    std::uint32_t store, document;
  };
  std::vector<const DocumentStore*> stores = others;
  stores.push_back(&store);
  std::vector<Example> examples;
  for (std::uint32_t s = 0; s < stores.size(); ++s) {
    examples.reserve(examples.size() + stores[s]->size());
    for (std::uint32_t i = 0; i < stores[s]->size(); ++i) examples.push_back({stores[s]->content_hash(i), s, i});
  }
  StopPoll stop_poll;
  std::sort(examples.begin(), examples.end(), [&](const Example& a, const Example& b) {
    stop_poll();
    return std::tie(a.hash, a.store, a.document) < std::tie(b.hash, b.store, b.document);
  });
  std::vector<Pair> pairs;
  const Example* first = nullptr;  // of those with this hash
  for (const Example& example : examples) {
    if (first == nullptr || example.hash != first->hash) first = &example;
    if (example.store < others.size() || (others.empty() ? &example == first : first->store == others.size())) continue;
    pairs.push_back({example.document, first->document, stores[first->store]});
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.document < b.document; });
  return pairs;
}

void add(const std::vector<Pair>& pairs, LedgerReason reason, const DocumentStore& store, Ledger& ledger) {
  if (pairs.empty()) return;
  const Pair& first = pairs.front();
  ledger.add(reason, store.source(first.document), "like " + first.store->source(first.twin), std::ssize(pairs));
}

/// The examples that are not in `pairs`; counts the others as lost.
DocumentStore without(const std::vector<Pair>& pairs, LedgerReason reason, const DocumentStore& store, Ledger& ledger) {
  std::vector<bool> is_dropped(store.size());
  for (const Pair& pair : pairs) is_dropped[pair.document] = true;
  std::vector<std::uint32_t> kept;
  for (std::size_t i = 0; i < store.size(); ++i) {
    if (!is_dropped[i]) kept.push_back(static_cast<std::uint32_t>(i));
  }
  add(pairs, reason, store, ledger);
  ledger.kept -= static_cast<std::int64_t>(pairs.size());
  return store.subset(kept);
}

std::string shown_token(const tokenizer::Tokenizer& tokenizer, std::int32_t id) {
  return fmt::format("{} (id {})", tokenizer.id_to_token(id), id);
}

std::int64_t count_trained(const DocumentStore& store, std::int32_t id) {
  std::int64_t count = 0;
  StopPoll stop_poll;
  for (std::size_t i = 0; i < store.size(); ++i) {
    stop_poll();
    const auto labels = store.labels(i);
    count += std::count(labels.begin() + 1, labels.end(), id);
  }
  return count;
}

// Empty if a server that reads the folder stops at `id`.
std::optional<std::string> not_an_end_token(const tokenizer::Tokenizer& tokenizer, std::int32_t id) {
  std::vector<std::int32_t> ends = tokenizer.generation_eos_ids();
  const bool has_file = !ends.empty();
  if (!has_file && tokenizer.eos_id()) {
    ends = {*tokenizer.eos_id()};
  }
  if (std::find(ends.begin(), ends.end(), id) != ends.end()) return std::nullopt;
  std::vector<std::string> names;
  for (const std::int32_t end : ends) {
    names.push_back(shown_token(tokenizer, end));
  }
  return fmt::format(
      "the chat template ends a turn with {}, but {} names {}. The result and a merged model list it too; a server "
      "that loads the base with the adapter stops there only if you add {} to eos_token_id in the base's "
      "generation_config.json",
      shown_token(tokenizer, id), has_file ? "generation_config.json" : "the tokenizer",
      names.empty() ? "no end token" : join(names) + " as the end", id);
}

}  // namespace

LengthStatistics length_statistics(const std::vector<const DocumentStore*>& stores) {
  std::vector<std::int64_t> lengths;
  LengthStatistics out;
  for (const DocumentStore* store : stores) {
    for (std::size_t i = 0; i < store->size(); ++i) {
      lengths.push_back(store->num_tokens(i));
    }
    out.num_tokens += store->total_tokens();
  }
  out.num_examples = static_cast<std::int64_t>(lengths.size());
  if (!lengths.empty()) {
    StopPoll stop_poll;
    std::sort(lengths.begin(), lengths.end(), [&](std::int64_t a, std::int64_t b) {
      stop_poll();
      return a < b;
    });
    out.longest = lengths.back();
    out.percentile_50 = percentile(lengths, 50);
    out.percentile_99 = percentile(lengths, 99);
  }
  return out;
}

std::int64_t automatic_max_seq_len(const LengthStatistics& lengths, std::int64_t max_position_embeddings) {
  const std::int64_t value =
      std::min(round_up(lengths.longest, kRoundTo), std::max(kLeastCap, 4 * lengths.percentile_99));
  return max_position_embeddings > 0 ? std::min(value, max_position_embeddings) : value;
}

std::vector<std::string> length_choices(const DocumentStore& store, const LengthStatistics& lengths) {
  std::set<std::int64_t> choices;
  for (const std::int64_t length : {lengths.percentile_50, lengths.percentile_99, lengths.longest}) {
    choices.insert(round_up(length, kRoundTo));
  }
  if (choices.size() < 2) return {};
  std::vector<std::string> lines;
  const auto order = epoch_order(store.size(), 0, 0, /*shuffle=*/false);
  for (const std::int64_t choice : choices) {
    std::vector<std::uint32_t> cut(store.size());
    std::int64_t num_longer = 0, num_kept = 0;
    for (std::size_t i = 0; i < store.size(); ++i) {
      num_longer += store.num_tokens(i) > choice ? 1 : 0;
      cut[i] = static_cast<std::uint32_t>(std::min(store.num_tokens(i), choice));
      num_kept += cut[i];
    }
    const auto empty = [&](std::size_t num_rows) {
      return 100 * (1 - static_cast<double>(num_kept) / (static_cast<double>(num_rows) * static_cast<double>(choice)));
    };
    const auto share = [](std::int64_t part, std::int64_t whole) {
      return 100 * static_cast<double>(part) / static_cast<double>(whole);
    };
    lines.push_back(fmt::format(
        "  max_seq_len: {}: {:.2f}% of the examples are longer, with {:.2f}% of the tokens past the limit; {:.1f}% of "
        "slots empty with packing, {:.1f}% without",
        choice, share(num_longer, lengths.num_examples), share(lengths.num_tokens - num_kept, lengths.num_tokens),
        empty(pack_first_fit_decreasing(order, cut, choice, {}).size()), empty(store.size())));
  }
  return lines;
}

DocumentStore apply_length_policy(DocumentStore&& store, std::int64_t max_seq_len, Overlength policy, Ledger& ledger,
                                  const std::string& what, const LengthLimits& limits) {
  if (policy == Overlength::kError && store.longest() > max_seq_len) {
    refuse_overlength(store, max_seq_len, what, limits, ledger);
  }
  const auto limit = static_cast<std::size_t>(max_seq_len);
  DocumentStore out = store.empty_copy();
  StopPoll stop_poll;
  for (std::size_t i = 0; i < store.size(); ++i) {
    stop_poll();
    auto ids = store.ids(i), labels = store.labels(i);
    if (ids.size() > limit && policy == Overlength::kDrop) {
      ledger.add(LedgerReason::kOverlength, store.source(i), fmt::format("{} tokens", ids.size()));
      continue;
    }
    const bool is_cut = ids.size() > limit;
    ids = ids.first(std::min(limit, ids.size()));
    labels = labels.first(ids.size());
    if (count_supervised(labels) == 0) {
      ledger.add(LedgerReason::kFullyMasked, store.source(i), is_cut ? "after its tail was cut at max_seq_len" : "");
      continue;
    }
    if (is_cut) {
      ledger.add(LedgerReason::kTruncated, store.source(i), fmt::format("{} tokens", store.num_tokens(i)));
    }
    out.append_from(store, i, ids.size());
  }
  ledger.kept = static_cast<std::int64_t>(out.size());
  return out;
}

DocumentStore without_duplicates(const DocumentStore& train, Ledger& ledger) {
  return without(pairs_of(train, {}), LedgerReason::kDroppedDuplicate, train, ledger);
}

DocumentStore without_training_examples(const DocumentStore& eval, const DocumentStore& train, Ledger& ledger) {
  return without(pairs_of(eval, {&train}), LedgerReason::kDroppedInTraining, eval, ledger);
}

void count_duplicates(const DocumentStore& train, const std::vector<const DocumentStore*>& evals, Ledger& ledger) {
  add(pairs_of(train, {}), LedgerReason::kDuplicate, train, ledger);
  if (!evals.empty()) add(pairs_of(train, evals), LedgerReason::kInValidation, train, ledger);
}

StopTokenAudit audit_stop_token(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat_template,
                                const DocumentStore& train) {
  StopTokenAudit audit;
  const tokenizer::EndOfTurn end = tokenizer::end_of_turn(chat_template, tokenizer);
  audit.id = end.id;
  if (end.in_pieces) {
    audit.warnings.push_back(
        fmt::format("the chat template ends a turn with \"{}\", which this tokenizer cuts into {} ordinary tokens: it "
                    "was made for another tokenizer, and generation will not stop at the end of an answer. Use the "
                    "model's own template (chat_template: tokenizer) or one whose tokens this tokenizer has, or add "
                    "them with add_tokens",
                    visible_text(*end.in_pieces), tokenizer.encode(*end.in_pieces).ids.size()));
    return audit;
  }
  if (!audit.id) {
    audit.warnings.push_back(
        "the chat template writes no token that ends an answer (to a plain question): a model trained with it may not "
        "learn to stop. Use a template that ends a turn (chat_template: a .jinja file)");
    return audit;
  }
  if (auto warning = not_an_end_token(tokenizer, *audit.id)) {
    audit.warnings.push_back(std::move(*warning));
  }
  if (!train.empty() && count_trained(train, *audit.id) == 0) {
    audit.warnings.push_back(
        "the end of a turn, " + shown_token(tokenizer, *audit.id) +
        ", is not trained in any example, so the model does not learn to stop. See what is trained with `tokenize "
        "--show 2`; it depends on loss_on and overlength: truncate");
  }
  return audit;
}

std::optional<std::string> audit_end_of_text(const tokenizer::Tokenizer& tokenizer) {
  if (tokenizer.eos_id()) return std::nullopt;
  return "the model folder names no end token, so nothing marks the end of an example and the model does not learn to "
         "stop. Name one: eos_token in tokenizer_config.json, or eos_token_id in generation_config.json";
}

}  // namespace lora_train::data
