// The ledger counts every example dropped or changed on its way to the trainer, by reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lora_train::data {

/// Why an example was lost or changed.
enum class LedgerReason {
  kBadRow,             ///< malformed, dropped under on_bad_row: drop
  kOverlength,         ///< longer than max_seq_len, dropped under overlength: drop
  kTruncated,          ///< longer than max_seq_len, tail cut under overlength: truncate; the example is still trained
  kFullyMasked,        ///< no label to train on (no assistant turn, or it is in the cut tail)
  kNotRendered,        ///< the chat template left out a message's content; the example is still trained
  kEmptyAnswer,        ///< a trained answer is empty, so only its end is learned; the example is still trained
  kNullFields,         ///< null members of messages or tools are left out (null_fields)
  kJsonArguments,      ///< arguments of tool calls are JSON text, decoded for the template
  kDuplicate,          ///< an earlier example of the training data has the same tokens and labels; the example is still
                       ///< trained
  kInValidation,       ///< an evaluation set has the same example; the example is still trained
  kDroppedDuplicate,   ///< as kDuplicate, but dropped under drop_duplicates
  kDroppedInTraining,  ///< an example of an evaluation set that is also a training example, dropped under
                       ///< drop_duplicates
};

/// The name in summary.json: "bad_row", ...
const char* name_of(LedgerReason reason);

/// False for reasons that keep the example.
bool is_lost(LedgerReason reason);

struct LedgerEntry {
  LedgerReason reason = LedgerReason::kBadRow;
  std::int64_t count = 0;
  std::string first_source;                    ///< file:line of the first example (file:line:byte if malformed)
  std::string first_message;                   ///< the first example's problem; may be empty
  std::vector<std::string> more_sources = {};  ///< places of the next examples, at most kMaxMoreSources
  static constexpr std::size_t kMaxMoreSources = 9;
};

/// Assistant turns with thoughts, by what the text has of them.
struct ThoughtCounts {
  std::int64_t kept = 0;
  std::int64_t dropped = 0;
  std::int64_t empty = 0;  ///< an empty block in their place

  std::int64_t total() const { return kept + dropped + empty; }
  void add(const ThoughtCounts& other);
  /// "3 turns with thoughts: 1 kept, 2 dropped, 0 written empty"
  std::string text() const;
};

/// total = examples read, kept = examples that arrive (including cut ones): total - kept = the sum of the lost entries.
struct Ledger {
  std::int64_t total = 0;
  std::int64_t kept = 0;
  std::vector<LedgerEntry> entries = {};  ///< only reasons that occurred, in enum order
  ThoughtCounts thoughts = {};            ///< in the examples read that are not malformed

  /// Counts `count` examples; `source` is the place of the first, the only one recorded. Does not change total and
  /// kept.
  void add(LedgerReason reason, const std::string& source, const std::string& message = {}, std::int64_t count = 1);
  /// Adds an entry whose examples come after those counted here.
  void add(const LedgerEntry& entry);
  /// Adds the counts of another ledger, whose examples come after those counted here.
  void add(const Ledger& other);
  std::int64_t lost() const { return total - kept; }
  /// 0 for a reason that did not occur.
  std::int64_t count(LedgerReason reason) const;
  /// Log line: count, share of `total`, what happened, first place and message, the next places.
  static std::string line(const LedgerEntry& entry, std::int64_t total);
  /// Log lines: "examples: 100 read, 97 kept", then a line() for each reason, then the thoughts if there are any.
  std::vector<std::string> lines() const;
  /// Throws DataError if more than max_fraction of the examples read were lost. The error names reasons, first places,
  /// the key max_drop_fraction and the fix. `what` names the data ("training data"). An empty ledger passes.
  void check_drop_fraction(double max_fraction, const std::string& what) const;
};

}  // namespace lora_train::data
