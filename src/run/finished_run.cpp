#include "finished_run.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/config/load.h"
#include "lora_train/data/prepare.h"
#include "lora_train/plan/setup/setup.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::run {
namespace {

namespace fs = std::filesystem;

struct DataPrints {
  std::string of_run, now;
};

/// nullopt: no checkpoint says what the run had, or something that decides is gone.
std::optional<DataPrints> data_prints(const TrainRequest& request) {
  const fs::path folder = request.profile.run.output_dir;
  try {
    const std::vector<fs::path> checkpoints = run_folder::list(folder);
    if (checkpoints.empty()) return std::nullopt;
    const run_folder::Description found = run_folder::describe(checkpoints.front());
    const auto max_seq_len = load_written_profile(folder / "profile.yaml").data.max_seq_len;
    if (!max_seq_len) return std::nullopt;
    tokenizer::set_template_time(found.state.started_at);
    const plan::ModelFiles files = plan::open_model(request.profile.model, request.profile.adapter.init_adapter);
    const data::DataContext context = plan::data_context(request.profile, files);
    return DataPrints{found.fingerprints.data, data::data_fingerprint(request.profile.data, context, *max_seq_len)};
  } catch (const StopError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

void refuse_other_data(const TrainRequest& request) {
  const auto prints = data_prints(request);
  if (!prints || prints->of_run == prints->now || std::ranges::count(request.allow_changed, "datasets") > 0) return;
  throw ConfigError(request.profile.run.output_dir,
                    "the run here is complete, but was trained with different data: the files of datasets, or what "
                    "decides their tokens, have changed since. Choose one:\n  --output-dir OTHER  starts a new run "
                    "elsewhere\n  --overwrite  deletes the run here\n  --allow-changed datasets  leaves it as it is");
}

}  // namespace lora_train::run
