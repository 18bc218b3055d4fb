#include "transfer_progress.h"

#include "lora_train/base/text.h"

namespace lora_train::cli {

void TransferProgress::update(std::uint64_t num_bytes, std::uint64_t total_bytes, const std::string& doing) {
  constexpr double kMiB = 1 << 20;
  if (bar_ == nullptr) {
    report::ProgressOptions options;
    options.quiet = quiet_;
    bar_ = std::make_unique<report::ProgressBar>(options);
    start_ = Clock::now();
    start_bytes_ = num_bytes;
  }
  const double elapsed_s = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate =
      elapsed_s > 0 ? (static_cast<double>(num_bytes) - static_cast<double>(start_bytes_)) / elapsed_s : 0;
  report::ProgressState state;
  state.unit = "MiB";
  state.step = static_cast<long long>(static_cast<double>(num_bytes) / kMiB);
  state.total_steps = static_cast<long long>(static_cast<double>(total_bytes) / kMiB);
  state.steps_per_s = rate / kMiB;
  state.eta_s = rate > 0 ? (static_cast<double>(total_bytes) - static_cast<double>(num_bytes)) / rate : 0;
  state.elapsed_s = elapsed_s;
  state.activity = doing.empty() ? format_bytes(rate) + "/s" : doing;
  bar_->update(state);
}

}  // namespace lora_train::cli
