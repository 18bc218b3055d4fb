#include "lora_train/run/background_saver.h"

#include <utility>

#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"

namespace lora_train::run {
namespace {

run_folder::Saver::Options saver_options(const RunSection& section) {
  const std::filesystem::path metrics = std::filesystem::path(section.output_dir) / "metrics.jsonl";
  run_folder::Saver::Options options{section.output_dir, section.save_total_limit, {}};
  if (path_kind(metrics) == PathKind::kFile) options.sync_first.push_back(metrics);
  return options;
}

}  // namespace

BackgroundSaver::BackgroundSaver(SavedParts parts, std::int64_t free_memory)
    : parts_(std::move(parts)), saver_(saver_options(parts_.section)) {
  const model::Trainables& parameters = parts_.parameters;
  const optim::OptimizerState& optimizer = parts_.optimizer;
  const std::int64_t bytes = static_cast<std::int64_t>(parameters.values.nbytes()) + optimizer.bytes();
  if (parameters.values.is_cuda() || bytes <= free_memory / 2) {
    snapshot_.emplace(parameters.host_copy(), optimizer.host_copy());
  } else {
    log_info("training will pause while a checkpoint is written: there is no memory for a copy of " +
             format_bytes(static_cast<double>(bytes)));
  }
}

void BackgroundSaver::start(const run_folder::TrainState& state) {
  if (snapshot_) {
    snapshot_->parameters.values.copy_(parts_.parameters.values);
    snapshot_->optimizer.copy_from(parts_.optimizer);
  }
  run_folder::Contents contents = parts_.contents;
  contents.state = state;
  contents.files =
      checkpoint_files(parts_.adapter, parts_.target_modules, snapshot_ ? snapshot_->parameters : parts_.parameters,
                       snapshot_ ? snapshot_->optimizer : parts_.optimizer);
  saver_.start(std::move(contents));
  if (!snapshot_) saver_.settle();
}

}  // namespace lora_train::run
