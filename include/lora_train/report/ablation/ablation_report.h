// What `ablate` prints and writes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lora_train/report/ablation/measurement.h"
#include "lora_train/report/chart/bar_chart.h"

namespace lora_train::report {

/// All settings of a profile, in the order of the ladder.
struct Ablation {
  std::vector<Measurement> measurements = {};
  long long num_steps = 0, documents_per_step = 0;
  std::string note = {};  ///< what was left out; may be empty
};

/// Tokens a second, and how many times those of the base; loss, and whether the evaluation loss was kept; memory; time to step 1.
std::string ablation_table(const Ablation& ablation);

/// One object a setting: setting, tokens_per_s, loss, supervised_tokens, documents, speedup, eval_loss, eval_loss_difference,
/// peak_memory_gib, startup_s, values, reason. Null: not measured.
std::string ablation_json(const Ablation& ablation);

/// A bar a setting.
Drawing ablation_chart(const Ablation& ablation);

/// The chart and the table as a page.
std::string ablation_page(const Ablation& ablation);
/// Whether a file that starts so was written by it.
bool is_ablation_page(std::string_view start);

}  // namespace lora_train::report
