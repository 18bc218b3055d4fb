// `ablate`: the settings it tries, what it measures of each, and what it prints and writes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/report/chart/drawing.h"
#include "lora_train/report/eval_files.h"

namespace lora_train::report {

enum class Rung {
  kProfile,  ///< the user's profile
  kStep,     ///< of the ladder: what the one before has, and one thing more
  kVariant   ///< the top of the ladder with one thing changed
};

struct Setting {
  std::string name = {};  ///< "plain", "+ bf16", "nf4 base"
  Rung rung = Rung::kStep;
  std::vector<std::pair<std::string, std::string>> values = {};  ///< profile key and value
};

struct LadderOptions {
  bool is_gpu = false;
  bool stores_quantised = false;  ///< the model folder is quantised: its format stays
  long long num_steps = 20;
  std::string no_token_cache = {};  ///< a folder that is empty before each run
};

/// The profile first; then the ladder from fp32, everything recomputed, nothing packed, nothing cached, up to all that the program
/// does; then the variants. What has no effect on a CPU is left out there.
std::vector<Setting> make_ladder(const Profile& profile, const LadderOptions& options);

/// What is left out, in words; empty on a GPU.
std::string left_out(const LadderOptions& options);

/// What all settings share: so many steps of so many documents, no evaluation but the last, every step logged.
std::vector<std::pair<std::string, std::string>> shared_values(long long num_steps, long long documents_per_step);

struct Measurement {
  Setting setting = {};
  bool is_done = false;
  std::string reason = {};  ///< why it is not done
  std::string device = {};  ///< "cpu", or the name of the GPU
  double tokens_per_s = 0;  ///< after the first fifth of the steps, saves included
  double startup_s = 0;     ///< to the end of step 1
  double loss = 0;          ///< of training, per supervised token, over all steps
  std::optional<double> eval_loss = {}, peak_memory_gib = {};
  long long num_documents = 0, num_supervised = 0;  ///< of all steps: the work
  std::vector<DocumentLosses> document_losses = {};
};

/// exit_code: of the run's process. Throws nothing for a run that failed.
Measurement measure(const Setting& setting, const std::filesystem::path& folder, int exit_code, long long num_steps);

/// Throws DataError unless all that are done trained on the same number of documents and supervised tokens: otherwise their speeds
/// and losses say nothing of the setting.
void check_same_work(const std::vector<Measurement>& measurements);

/// The setting with which the others are compared: the first of the ladder that is done; else the first that is; null: none.
const Measurement* baseline(const std::vector<Measurement>& measurements);

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
