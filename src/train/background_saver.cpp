#include "background_saver.h"

#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/metrics/host_memory.h"

namespace lora_train::train {
namespace {

checkpoint::Saver::Options saver_options(const Profile& profile) {
  const std::filesystem::path metrics = std::filesystem::path(profile.output_dir) / "metrics.jsonl";
  checkpoint::Saver::Options options{profile.output_dir, profile.save_total_limit, {}};
  if (path_kind(metrics) == PathKind::kFile) options.sync_first.push_back(metrics);
  return options;
}

}  // namespace

BackgroundSaver::BackgroundSaver(const Run& run)
    : run_(run), target_modules_(lora::explicit_targets(run.adapters.specs, run.files.config)),
      saver_(saver_options(run.profile())) {
  const model::Trainables& parameters = *run.model.parameters;
  const optim::OptimizerState& optimizer = *run.optimizer;
  const std::int64_t bytes = static_cast<std::int64_t>(parameters.values.nbytes()) + optimizer.bytes();
  if (parameters.values.is_cuda() || bytes <= metrics::available_host_memory() / 2) {
    snapshot_.emplace(parameters.host_copy(), optimizer.host_copy());
  } else {
    log_info("training will stand still while a checkpoint is written: a copy of " +
             format_bytes(static_cast<double>(bytes)) + " for saving beside it does not fit the memory");
  }
}

void BackgroundSaver::start() {
  const model::Trainables& live = *run_.model.parameters;
  if (snapshot_) {
    snapshot_->parameters.values.copy_(live.values);
    snapshot_->optimizer.copy_from(*run_.optimizer);
  }
  checkpoint::Contents contents = run_.checkpoint;
  contents.state = run_.state;
  contents.files = checkpoint_files(run_.adapters.specs.empty() ? nullptr : &run_.adapters.config, target_modules_,
                                    snapshot_ ? snapshot_->parameters : live,
                                    snapshot_ ? snapshot_->optimizer : *run_.optimizer);
  saver_.start(std::move(contents));
  if (!snapshot_) saver_.settle();
}

}  // namespace lora_train::train
