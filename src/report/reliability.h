// Reliability diagrams: which evaluations of a run they compare.
#pragma once

#include <vector>

#include "lora_train/report/run_log.h"

namespace lora_train::report {

/// The evaluations of a data set or task that have bins: the first, and the one of the step that the result is of, else the
/// last. Both point into the run.
struct Reliability {
  const LoggedEval* before = nullptr;
  const LoggedEval* after = nullptr;  ///< null if there is one evaluation only
};

/// In the order in which their names come first.
std::vector<Reliability> find_reliability(const RunRecord& run);

}  // namespace lora_train::report
