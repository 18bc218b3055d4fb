// `ablate`: the settings it tries, what it measures for each, and what it prints and writes.
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
  kStep,     ///< a step of the ladder: the previous one plus one change
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

/// The profile first; then the ladder from fp32, everything recomputed, nothing packed, nothing cached, up to
/// everything the program does; then the variants. Settings without effect on a CPU are left out there.
std::vector<Setting> make_ladder(const Profile& profile, const LadderOptions& options);

/// Says what is left out; empty on a GPU.
std::string left_out(const LadderOptions& options);

/// Values that all settings share: the number of steps, documents per step, no evaluation but the last, every step
/// logged.
std::vector<std::pair<std::string, std::string>> shared_values(long long num_steps, long long documents_per_step);

struct Measurement {
  Setting setting = {};
  bool is_done = false;
  std::string reason = {};  ///< why the run is not done
  std::string device = {};  ///< "cpu", or the name of the GPU
  double tokens_per_s = 0;  ///< after the first fifth of the steps, saves included
  double startup_s = 0;     ///< to the end of step 1
  double loss = 0;          ///< mean training loss per supervised token over all steps
  std::optional<double> eval_loss = {}, peak_memory_gib = {};
  long long num_documents = 0, num_supervised = 0;  ///< over all steps: the work done
  std::vector<DocumentLosses> document_losses = {};
};

/// exit_code: of the run's process. Does not throw for a failed run.
Measurement measure(const Setting& setting, const std::filesystem::path& folder, int exit_code, long long num_steps);

/// Throws DataError unless all runs that are done trained on the same number of documents and supervised tokens:
/// otherwise their speeds and losses do not reflect the setting.
void check_same_work(const std::vector<Measurement>& measurements);

/// The setting to compare the others with: the first of the ladder that is done, else the first that is done; null if
/// there is none.
const Measurement* baseline(const std::vector<Measurement>& measurements);

/// All settings tried for a profile, in ladder order.
struct Ablation {
  std::vector<Measurement> measurements = {};
  long long num_steps = 0, documents_per_step = 0;
  std::string note = {};  ///< says what was left out; may be empty
};

/// Columns: tokens per second and the ratio to the base; loss, and whether the evaluation loss was kept; memory; time
/// to step 1.
std::string ablation_table(const Ablation& ablation);

/// One object per setting: setting, tokens_per_s, loss, supervised_tokens, documents, speedup, eval_loss,
/// eval_loss_difference, peak_memory_gib, startup_s, values, reason. Null: not measured.
std::string ablation_json(const Ablation& ablation);

/// One bar per setting.
Drawing ablation_chart(const Ablation& ablation);

/// An HTML page with the chart and the table.
std::string ablation_page(const Ablation& ablation);
/// True if a file with this start was written by ablation_page().
bool is_ablation_page(std::string_view start);

}  // namespace lora_train::report
