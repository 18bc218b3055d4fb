// Checks of documents: leaves out those longer than a row, those without a target, and duplicates; and looks if the
// trained model will learn to stop, and servers will stop it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/cache/ledger.h"
#include "lora_train/data/prepare.h"

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

/// percentile p of the lengths = the smallest length that at least p% of the examples do not exceed.
LengthStatistics length_statistics(const std::vector<const DocumentStore*>& stores);

/// `max_seq_len: auto`: the longest example rounded up to 64, capped by 4x the 99th percentile (at least 2048) and by
/// max_position_embeddings (0 = unknown).
std::int64_t automatic_max_seq_len(const LengthStatistics& lengths, std::int64_t max_position_embeddings);

/// For the log, one line per alternative max_seq_len: examples that are longer, tokens past it, and the share of slots
/// left empty with and without packing. Empty if all values give the same result.
std::vector<std::string> length_choices(const DocumentStore& store, const LengthStatistics& lengths);

/// Limits for the advice in an error.
struct LengthLimits {
  std::int64_t max_position_embeddings = 0;  ///< 0 = unknown
  double max_drop_fraction = 1;
};

/// Applies the policy and drops examples left with nothing to train on, counting into the ledger (total is set before;
/// kept is set here). Under Overlength::kError, if an example is longer than max_seq_len, throws DataError (where = the
/// first such example) with the cost of each other choice within the limits. `what` names the data in messages.
DocumentStore apply_length_policy(DocumentStore&& store, std::int64_t max_seq_len, Overlength policy, Ledger& ledger,
                                  const std::string& what, const LengthLimits& limits = {});

/// Counts into `ledger` the training examples that equal an earlier one (kDuplicate) and those that equal an example of
/// an evaluation set (kInValidation). Examples are equal if their ids and labels are, before any cut. Takes 16 bytes
/// per example.
void count_duplicates(const DocumentStore& train, const std::vector<const DocumentStore*>& evals, Ledger& ledger);

/// The training examples without duplicates of earlier ones; counts these into `ledger` (kDroppedDuplicate).
DocumentStore without_duplicates(const DocumentStore& train, Ledger& ledger);

/// The examples of an evaluation set without those that equal a training example; counts these into `ledger`
/// (kDroppedInTraining).
DocumentStore without_training_examples(const DocumentStore& eval, const DocumentStore& train, Ledger& ledger);

struct StopTokenAudit {
  std::optional<std::int32_t> id;     ///< the token that ends an assistant turn; empty if the template has none
  std::vector<std::string> warnings;  ///< problems and how to fix them
};

/// Checks what the template writes after an answer, the end tokens of generation_config.json (else the tokenizer's),
/// and how often the token is trained in `train`.
StopTokenAudit audit_stop_token(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat_template,
                                const DocumentStore& train);

/// A warning if the tokenizer has no token to append to examples of text and of prompt and completion.
std::optional<std::string> audit_end_of_text(const tokenizer::Tokenizer& tokenizer);

}  // namespace lora_train::data
