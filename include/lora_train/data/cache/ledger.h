// The ledger counts every row that was dropped or changed on its way to the trainer, by reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lora_train::data {

/// Why a row was lost or changed.
enum class LedgerReason {
  kBadRow,             ///< malformed, dropped under on_bad_row: drop
  kOverlength,         ///< longer than max_seq_len, dropped under overlength: drop
  kTruncated,          ///< longer than max_seq_len, its tail cut under overlength: truncate; the row is still trained
  kFullyMasked,        ///< no label to train on (no assistant turn, or it lies in the cut tail)
  kNotRendered,        ///< the chat template left out a message's content; the row is still trained
  kEmptyAnswer,        ///< a trained answer has no content, only its end is learned; the row is still trained
  kDuplicate,          ///< an earlier row of the training data has the same tokens and labels; the row is still trained
  kInValidation,       ///< an evaluation set has the same row; it is still trained
  kDroppedDuplicate,   ///< like kDuplicate, dropped under drop_duplicates
  kDroppedInTraining,  ///< a row of an evaluation set that is also a training row, dropped under drop_duplicates
};

/// "bad_row", "overlength", "truncated", "fully_masked", "not_rendered", "empty_answer", "duplicate",
/// "in_validation", "dropped_duplicate", "dropped_in_training": the names in summary.json.
const char* name_of(LedgerReason reason);

/// False for reasons that keep the row (kTruncated, kNotRendered, kEmptyAnswer, kDuplicate, kInValidation).
bool is_lost(LedgerReason reason);

struct LedgerEntry {
  LedgerReason reason = LedgerReason::kBadRow;
  std::int64_t count = 0;
  std::string first_source;                    ///< file:line (file:line:byte for a malformed row) of the first
  std::string first_message;                   ///< what was wrong with the first; may be empty
  std::vector<std::string> more_sources = {};  ///< of the next ones, kMaxMoreSources at most
  static constexpr std::size_t kMaxMoreSources = 9;
};

/// total = rows read, kept = rows that arrive (those cut included): total - kept = the sum of the lost entries.
struct Ledger {
  std::int64_t total = 0;
  std::int64_t kept = 0;
  std::vector<LedgerEntry> entries = {};  ///< only reasons that occurred, in the order of the enumeration

  /// Counts rows, of which `source` is the first, and the only one whose place is known. Does not touch total and kept.
  void add(LedgerReason reason, const std::string& source, const std::string& message = {}, std::int64_t count = 1);
  /// Adds rows that come after those counted here.
  void add(const LedgerEntry& entry);
  /// Adds the counts of another ledger, whose rows come after the ones counted here.
  void add(const Ledger& other);
  std::int64_t lost() const { return total - kept; }
  /// 0 for a reason that did not occur.
  std::int64_t count(LedgerReason reason) const;
  /// For the log: count, share of `total`, what happened, first place and message, the next places.
  static std::string line(const LedgerEntry& entry, std::int64_t total);
  /// For the log: "rows: 100 read, 97 kept", then a line() for each reason.
  std::vector<std::string> lines() const;
  /// Throws DataError if more than max_fraction of the rows read were lost, naming reasons, first places, the key
  /// max_drop_fraction and what to set. `what` names the data ("training data"). An empty ledger passes.
  void check_drop_fraction(double max_fraction, const std::string& what) const;
};

}  // namespace lora_train::data
