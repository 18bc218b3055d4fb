// eval_losses.jsonl: the loss of each document in the last evaluation of a run; and whether another run kept it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::report {

inline constexpr const char* kDocumentLossesFile = "eval_losses.jsonl";

/// One line of the file: a data set.
struct DocumentLosses {
  long long step = 0;
  std::string name = {};             ///< of the data set
  std::string documents = {};        ///< hash of their tokens and labels, in order: equal for equal documents
  std::vector<double> losses = {};   ///< of each document: the weighted sum over its supervised tokens
  std::vector<double> weights = {};  ///< of each document: the sum of these weights
};

/// Replaces the file atomically. Throws IoError.
void write_document_losses(const std::filesystem::path& file, const std::vector<DocumentLosses>& sets);

/// Empty if the file is not there, is a link, or is not such a file.
std::vector<DocumentLosses> read_document_losses(const std::filesystem::path& file);

/// The evaluation loss of a run minus that of a base run on the same documents, with its 95% confidence interval over documents.
struct LossDifference {
  double base_loss = 0;
  double mean = 0;  ///< per supervised token
  double low = 0, high = 0;
  long long num_documents = 0;
};

/// The documents are a sample: the mean is a ratio of sums over them, and its variance that of a ratio estimator, with Student's t.
/// Empty unless both evaluated the same documents, at least five.
std::optional<LossDifference> difference_of(const std::vector<DocumentLosses>& base,
                                            const std::vector<DocumentLosses>& run);

/// Whether the loss was kept: it is at most kKeptShare of the base's loss higher.
enum class LossVerdict {
  kKept,    ///< with 95% confidence
  kWorse,   ///< it is higher than that, with 95% confidence
  kUnclear  ///< too few documents to tell
};
inline constexpr double kKeptShare = 0.01;
LossVerdict judge(const LossDifference& difference);
std::string to_string(LossVerdict verdict);  ///< "kept", "worse", "unclear"

/// {"baseline", "mean", "low", "high", "num_documents", "verdict"}
std::string to_json(const LossDifference& difference, const std::string& baseline);

/// "loss kept: +0.0012 (95%: -0.0031 to +0.0055) over 200 documents"
std::string in_words(const LossDifference& difference);

}  // namespace lora_train::report
