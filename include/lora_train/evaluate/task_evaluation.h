// The eval_tasks of a profile: reads their examples, asks the model, and counts what is right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lora_train/evaluate/evaluation.h"
#include "lora_train/plan/setup/setup.h"

namespace lora_train::evaluate {

struct TaskExamples;

/// A model whose weights are in memory, and the ranks that share the work.
struct TaskModel {
  const plan::RunDevice& device;
  const plan::LoadedModel& model;
  const RunSection& run;
};

/// Holds the examples of all tasks, as tokens. Every rank must have the same.
class TaskEvaluation {
 public:
  /// Reads and checks all examples before computing anything. `files` must outlive it. Throws ConfigError for a
  /// conflict with the tokenizer or an invalid regular expression, DataError (file:line) for an example that its task
  /// cannot use, FormatError without a tokenizer, IoError, StopError.
  TaskEvaluation(const Profile& profile, const lora::ModelFiles& files);
  ~TaskEvaluation();
  TaskEvaluation(TaskEvaluation&&) noexcept;
  TaskEvaluation& operator=(TaskEvaluation&&) noexcept;

  /// Tokens of the longest sequence that a task computes, new ones included; 0 without tasks.
  std::int64_t longest() const;

  /// Hash of all tokens, answers and places: equal for equal examples.
  std::string fingerprint() const;

  /// GPU memory that evaluate() needs in addition to the weights: its buffers, and a key-value cache for the longest
  /// sequence. It uses half of the free memory for a larger cache. On a CPU the cache has at most 1 GiB.
  std::int64_t least_bytes(const Profile& profile, const lora::ModelFiles& files) const;

  struct Options {
    std::size_t num_answers = 0;  ///< answers to keep in TaskResult::answers: those of a task's first examples
    bool quiet = true;            ///< no progress bars
  };
  /// Evaluates the tasks `which` (indices of eval_tasks), and calls `on_result` after each. Rank r takes the examples
  /// r, r + W, ... of a task; all ranks get the results of all examples and compute the figures from them in example
  /// order: on a CPU the bits are the same for any number of ranks. Frees its buffers on return. Throws StopError
  /// between two passes of the model, and what Generator::run throws.
  void evaluate(const TaskModel& model, std::span<const std::size_t> which, const Options& options,
                const std::function<void(TaskResult&&)>& on_result) const;

 private:
  std::vector<TaskExamples> tasks_;
};

}  // namespace lora_train::evaluate
