// The files that evaluations write next to metrics.jsonl. eval_losses.jsonl: the loss of each document in a run's last
// evaluation, to check if another run kept it. eval_answers.jsonl: some answers to a run's eval_tasks, in its first
// evaluation and in its latest.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::report {

/// One line of the file: one dataset.
struct DocumentLosses {
  long long step = 0;
  std::string name = {};             ///< name of the dataset
  std::string documents = {};        ///< hash of the documents' tokens and labels, in order: equal for equal documents
  std::vector<double> losses = {};   ///< per document: the weighted sum over its supervised tokens
  std::vector<double> weights = {};  ///< per document: the sum of these weights
};

/// Replaces the file atomically. Throws IoError.
void write_document_losses(const std::filesystem::path& file, const std::vector<DocumentLosses>& sets);

/// Empty if the file is missing, is a link, or has another format.
std::vector<DocumentLosses> read_document_losses(const std::filesystem::path& file);

/// A run's evaluation loss minus a base run's on the same documents, with the 95% confidence interval over documents.
struct LossDifference {
  double base_loss = 0;
  double mean = 0;  ///< per supervised token
  double low = 0, high = 0;
  long long num_documents = 0;
};

/// Treats the documents as a sample: the mean is a ratio of sums over them, with the variance of a ratio estimator and
/// Student's t. Empty unless both runs evaluated the same documents, at least five.
std::optional<LossDifference> difference_of(const std::vector<DocumentLosses>& base,
                                            const std::vector<DocumentLosses>& run);

/// Says if the loss was kept: at most kKeptShare of the base's loss higher.
enum class LossVerdict {
  kKept,    ///< with 95% confidence
  kWorse,   ///< higher than that, with 95% confidence
  kUnclear  ///< too few documents to tell
};
inline constexpr double kKeptShare = 0.01;
LossVerdict judge(const LossDifference& difference);
std::string to_string(LossVerdict verdict);  ///< "kept", "worse", "unclear"

/// {"baseline", "mean", "low", "high", "num_documents", "verdict"}
std::string to_json(const LossDifference& difference, const std::string& baseline);

/// "loss kept: +0.0012 (95%: -0.0031 to +0.0055) over 200 documents"
std::string in_words(const LossDifference& difference);

inline constexpr std::size_t kAnswersPerTask = 8;  ///< the first examples of a task

/// One line of the file: one example of a task.
struct EvalAnswer {
  long long step = 0;
  std::string name = {};                     ///< name of the task
  std::string source = {};                   ///< file:line
  std::string prompt = {};                   ///< only its end if it is long
  std::optional<std::string> expected = {};  ///< empty (null): the example itself says if its answer is right
  std::string answer = {};
  bool is_right = false;
  std::optional<double> confidence = {};  ///< key omitted if empty
};

/// One line of JSON, without a newline.
std::string to_json(const EvalAnswer& answer);
/// Empty if the line is not such an object.
std::optional<EvalAnswer> parse_answer(const std::string& line);

/// All answers in the file; empty if it is missing or a link.
std::vector<EvalAnswer> read_answers(const std::filesystem::path& file);

/// The content of the file: for each task, the answers of its first evaluation, then those of its latest. Not
/// thread-safe.
class EvalAnswers {
 public:
  explicit EvalAnswers(std::filesystem::path file) : file_(std::move(file)) {}

  /// For a resumed run: keeps the first answers to each task from the file, up to this step. -1: a new run keeps none.
  void keep_first(long long step);

  /// Takes one evaluation's answers to a task.
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
