#include "duplicates.h"

#include <algorithm>

#include "lora_train/base/stop_request.h"
namespace lora_train::data {
namespace {

struct HashedRow {
  std::uint64_t hash;
  std::uint32_t document;
};

// By hash, equal ones in the order of the documents.
std::vector<HashedRow> sorted_rows(const DocumentStore& store) {
  std::vector<HashedRow> rows(store.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {store.content_hash(i), static_cast<std::uint32_t>(i)};
  }
  StopPoll stop_poll;
  std::sort(rows.begin(), rows.end(), [&](const HashedRow& a, const HashedRow& b) {
    stop_poll();
    return a.hash != b.hash ? a.hash < b.hash : a.document < b.document;
  });
  return rows;
}

// A training row and the row that it equals.
struct Pair {
  std::uint32_t document;
  std::uint32_t twin;
  const DocumentStore* store;  // of the twin
};

bool is_earlier(const Pair& a, const Pair& b) { return a.document < b.document; }

void add(const std::vector<Pair>& pairs, LedgerReason reason, const DocumentStore& train, Ledger& ledger) {
  if (pairs.empty()) {
    return;
  }
  const Pair& first = *std::min_element(pairs.begin(), pairs.end(), is_earlier);
  ledger.add(reason, train.source(first.document), "like " + first.store->source(first.twin),
             static_cast<std::int64_t>(pairs.size()));
}

std::vector<Pair> pairs_within(const std::vector<HashedRow>& rows, const DocumentStore& train) {
  std::vector<Pair> pairs;
  for (std::size_t first = 0, i = 1; i < rows.size(); ++i) {
    if (rows[i].hash != rows[first].hash) {
      first = i;
    } else {
      pairs.push_back({rows[i].document, rows[first].document, &train});
    }
  }
  return pairs;
}

void add_pairs_between(const std::vector<HashedRow>& rows, const DocumentStore& eval, std::vector<Pair>& pairs) {
  const std::vector<HashedRow> others = sorted_rows(eval);
  auto other = others.begin();
  for (const HashedRow& row : rows) {
    while (other != others.end() && other->hash < row.hash) {
      ++other;
    }
    if (other != others.end() && other->hash == row.hash) {
      pairs.push_back({row.document, other->document, &eval});
    }
  }
}

/// The rows that are not in `pairs`, which count as lost.
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

}  // namespace

DocumentStore without_duplicates(const DocumentStore& train, Ledger& ledger) {
  return without(pairs_within(sorted_rows(train), train), LedgerReason::kDroppedDuplicate, train, ledger);
}

DocumentStore without_training_rows(const DocumentStore& eval, const DocumentStore& train, Ledger& ledger) {
  std::vector<Pair> pairs;
  add_pairs_between(sorted_rows(eval), train, pairs);
  return without(pairs, LedgerReason::kDroppedInTraining, eval, ledger);
}

void count_duplicates(const DocumentStore& train, const std::vector<const DocumentStore*>& evals, Ledger& ledger) {
  const std::vector<HashedRow> rows = sorted_rows(train);
  add(pairs_within(rows, train), LedgerReason::kDuplicate, train, ledger);
  std::vector<Pair> pairs;
  for (const DocumentStore* eval : evals) {
    add_pairs_between(rows, *eval, pairs);
  }
  // A row in several sets counts once.
  std::stable_sort(pairs.begin(), pairs.end(), is_earlier);
  const auto is_same = [](const Pair& a, const Pair& b) { return a.document == b.document; };
  pairs.erase(std::unique(pairs.begin(), pairs.end(), is_same), pairs.end());
  add(pairs, LedgerReason::kInValidation, train, ledger);
}

}  // namespace lora_train::data
