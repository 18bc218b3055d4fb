// eval_answers.jsonl: some answers to the eval_tasks of a run, in its first evaluation and in its latest.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::report {

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
