// What evaluations leave beside metrics.jsonl. eval_losses.jsonl: the loss of each document in the last evaluation of a run, and whether
// another run kept it. eval_answers.jsonl: some answers to the eval_tasks of a run, in its first evaluation and in its latest.
#pragma once

#include <cstddef>
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

inline constexpr const char* kEvalAnswersFile = "eval_answers.jsonl";
inline constexpr std::size_t kAnswersPerTask = 8;  ///< the first rows of a task

/// One line of the file: a row of a task.
struct EvalAnswer {
  long long step = 0;
  std::string name = {};                     ///< of the task
  std::string source = {};                   ///< file:line
  std::string prompt = {};                   ///< its end, if it is long
  std::optional<std::string> expected = {};  ///< empty (null): the row itself says whether its answer is right
  std::string answer = {};
  bool is_right = false;
  std::optional<double> confidence = {};  ///< no key without one
};

/// One line of JSON, without its line end.
std::string to_json(const EvalAnswer& answer);
/// Empty if the line is no such object.
std::optional<EvalAnswer> parse_answer(const std::string& line);

/// All lines of the file that are answers; empty if it is not there, or is a link.
std::vector<EvalAnswer> read_answers(const std::filesystem::path& file);

/// What the file has: of each task the answers of its first evaluation, then those of its latest. Not thread-safe.
class EvalAnswers {
 public:
  explicit EvalAnswers(std::filesystem::path file) : file_(std::move(file)) {}

  /// For a resumed run: keeps the first answers of each task that the file has up to this step. -1: a new run, none.
  void keep_first(long long step);

  /// Takes the answers to one task in an evaluation.
  void take(std::vector<EvalAnswer> answers);

  /// Replaces the file atomically. Throws IoError.
  void write() const;

 private:
  struct Task {
    std::vector<EvalAnswer> first, latest;
  };
  Task& task_of(const std::string& name);

  std::filesystem::path file_;
  std::vector<std::pair<std::string, Task>> tasks_;
};

}  // namespace lora_train::report
