// What the run of a setting took, read back from its folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/report/ablation/ladder.h"
#include "lora_train/report/document_losses.h"

namespace lora_train::report {

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

}  // namespace lora_train::report
