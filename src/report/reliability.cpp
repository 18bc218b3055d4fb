#include "reliability.h"

#include <algorithm>

#include "json_value.h"

namespace lora_train::report {
namespace {

/// -1: not known.
long long result_step(const RunRecord& run) {
  const auto summary = nlohmann::ordered_json::parse(run.summary_json, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() ? whole_number_of(summary, "adapter_step").value_or(-1) : -1;
}

}  // namespace

std::vector<Reliability> find_reliability(const RunRecord& run) {
  const long long step_of_result = result_step(run);
  std::vector<Reliability> found;
  for (const LoggedEval& eval : run.evals) {
    if (eval.bins.empty()) continue;
    const auto same =
        std::find_if(found.begin(), found.end(), [&](const auto& other) { return other.before->name == eval.name; });
    if (same == found.end()) {
      found.push_back({&eval});
    } else if (same->after == nullptr || same->after->step != step_of_result) {
      same->after = &eval;
    }
  }
  return found;
}

}  // namespace lora_train::report
