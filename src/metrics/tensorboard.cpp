#include "lora_train/metrics/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "event_record.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"

namespace lora_train::metrics {
namespace {

constexpr std::chrono::seconds kFlushInterval{10};

std::string file_name(double time, int attempt) {
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  std::string name = "events.out.tfevents." + std::to_string(static_cast<long long>(time)) + "." + host;
  return attempt == 0 ? name : name + "." + std::to_string(attempt);
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder)
    : last_flush_(std::chrono::steady_clock::now()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const double time = now_s();
  // O_EXCL: a run that was resumed within the same second must not append to the file of the one before.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    path_ = folder / file_name(time, attempt);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno != EEXIST) {
      throw IoError(path_.string(), std::string("cannot create the TensorBoard file: ") + std::strerror(errno));
    }
  }
  buffer_ = version_record(time);
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (const IoError&) {  // a destructor must not throw; the caller who cares has called flush()
  }
  if (fd_ >= 0) ::close(fd_);
}

void TensorBoardWriter::add_scalar(std::string_view tag, double value, long long step, double time) {
  put(tag, value, step, time);
  flush_when_due();
}

void TensorBoardWriter::put(std::string_view tag, double value, long long step, double time) {
  buffer_ += scalar_record(tag, static_cast<float>(value), step, time);
}

void TensorBoardWriter::add(const TrainRecord& record) {
  const std::pair<const char*, double> scalars[] = {
      {"train/epoch", record.epoch},
      {"train/loss", record.loss},
      {"train/supervised_tokens", static_cast<double>(record.supervised_tokens)},
      {"train/loss_mean", record.loss_mean},
      {"train/grad_norm", record.grad_norm},
      {"train/learning_rate", record.learning_rate},
      {"train/tokens", static_cast<double>(record.tokens)},
      {"train/num_documents", static_cast<double>(record.num_documents)},
      {"train/tokens_per_s", record.tokens_per_s},
      {"train/step_ms", record.step_ms},
      {"train/data_wait_ms", record.data_wait_ms},
      {"train/elapsed_s", record.elapsed_s},
      {"train/eta_s", record.eta_s},
  };
  for (const auto& [tag, value] : scalars) put(tag, value, record.step, record.time);
  if (record.memory_gib) put("train/memory_gib", *record.memory_gib, record.step, record.time);
  flush_when_due();
}

void TensorBoardWriter::add(const EvalRecord& record) {
  if (!has_eval_) {
    has_eval_ = true;
    first_eval_name_ = record.name;
  }
  const std::string prefix = record.name == first_eval_name_ ? "eval/" : "eval/" + record.name + "/";
  const double time = now_s();
  put(prefix + "loss", record.loss, record.step, time);
  put(prefix + "perplexity", record.perplexity, record.step, time);
  put(prefix + "token_accuracy", record.token_accuracy, record.step, time);
  put(prefix + "num_tokens", static_cast<double>(record.num_tokens), record.step, time);
  put(prefix + "eval_s", record.eval_s, record.step, time);
  put(prefix + "ece", record.ece, record.step, time);
  flush_when_due();
}

void TensorBoardWriter::flush() {
  const std::size_t written = write_all(fd_, buffer_);
  const bool is_whole = written == buffer_.size();
  const int code = errno;
  buffer_.erase(0, written);
  last_flush_ = std::chrono::steady_clock::now();
  if (!is_whole)
    throw IoError(path_.string(), std::string("cannot write the TensorBoard file: ") + std::strerror(code));
}

void TensorBoardWriter::flush_when_due() {
  if (std::chrono::steady_clock::now() - last_flush_ > kFlushInterval) flush();
}

}  // namespace lora_train::metrics
