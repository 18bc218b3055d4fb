#include "lora_train/run_folder/checkpoint_writer.h"

#include <chrono>

namespace lora_train::run_folder {
namespace {

using Clock = std::chrono::steady_clock;

SaveResult save_and_rotate(const CheckpointWriter::Options& options, const Contents& contents,
                           Clock::time_point start) {
  SaveResult result;
  result.step = contents.state.step;
  try {
    result.folder = save(options.output_dir, contents, options.sync_first);
    result.durable_s = std::chrono::duration<double>(Clock::now() - start).count();
    if (options.keep) rotate(options.output_dir, result.step, *options.keep, contents.state.best_step);
  } catch (...) {
    result.error = std::current_exception();
  }
  return result;
}

}  // namespace

void CheckpointWriter::start(Contents contents) {
  pending_ = std::async(std::launch::async, [this, contents = std::move(contents), start = Clock::now()] {
    return save_and_rotate(options_, contents, start);
  });
}

void CheckpointWriter::settle() const {
  if (is_busy()) pending_.wait();
}

std::optional<SaveResult> CheckpointWriter::poll() {
  if (!is_busy() || pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return pending_.get();
}

std::optional<SaveResult> CheckpointWriter::wait() {
  if (!is_busy()) return std::nullopt;
  return pending_.get();
}

}  // namespace lora_train::run_folder
