// The eval_tasks of a profile: reads their rows, asks the model, and counts what is right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lora_train/evaluate/evaluation.h"
#include "lora_train/plan/setup/setup.h"

namespace lora_train::evaluate {

struct TaskRows;

/// A model whose weights are in memory, and the ranks that share the work.
struct TaskModel {
  const plan::RunDevice& device;
  const plan::LoadedModel& model;
  const RunSection& run;
};

/// Holds the rows of all tasks, as tokens. Every rank must have the same.
class TaskEvaluation {
 public:
  /// Reads and checks all rows before anything is computed. `files` must outlive it. Throws ConfigError for what contradicts the
  /// tokenizer or a regular expression, DataError (file:line) for a row that its task cannot use, FormatError without a tokenizer,
  /// IoError, StopError.
  TaskEvaluation(const Profile& profile, const plan::ModelFiles& files);
  ~TaskEvaluation();
  TaskEvaluation(TaskEvaluation&&) noexcept;
  TaskEvaluation& operator=(TaskEvaluation&&) noexcept;

  /// Tokens of the longest sequence that a task computes, new ones included; 0 without tasks.
  std::int64_t longest() const;

  /// Of all tokens, answers and places: equal for equal rows.
  std::string fingerprint() const;

  /// GPU memory that evaluate() needs beside the weights: its buffers, and a key-value cache for the longest sequence. It takes
  /// half of what is free for a larger cache. On a CPU the cache has at most 1 GiB.
  std::int64_t least_bytes(const Profile& profile, const plan::ModelFiles& files) const;

  struct Options {
    std::size_t num_answers = 0;  ///< TaskResult::answers: the first rows of a task
    bool quiet = true;            ///< no progress bars
  };
  /// Evaluates the tasks `which` (indices of eval_tasks), and calls `on_result` after each. Rank r takes the rows r, r + W, ... of a
  /// task; the results of all rows go to all ranks, which compute the figures from them in the order of the rows: on a CPU they
  /// are the same bits for any number of ranks. Its buffers are freed on return. Throws StopError between two passes of the
  /// model, and what Generator::run throws.
  void evaluate(const TaskModel& model, std::span<const std::size_t> which, const Options& options,
                const std::function<void(TaskResult&&)>& on_result) const;

 private:
  std::vector<TaskRows> tasks_;
};

}  // namespace lora_train::evaluate
