#include "lora_train/metrics/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include "event_record.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/host_name.h"
#include "record_json.h"

namespace lora_train::metrics {
namespace {

constexpr std::chrono::seconds kFlushInterval{10};

std::string file_name(double time, int attempt) {
  std::string name = "events.out.tfevents." + std::to_string(static_cast<long long>(time)) + "." + host_name();
  return attempt == 0 ? name : name + "." + std::to_string(attempt);
}

// Of every number of a record but step and time.
std::string scalar_records(const std::string& prefix, const nlohmann::ordered_json& record, long long step,
                           double time) {
  std::string records;
  for (const auto& [key, value] : record.items()) {
    for (std::size_t rank = 0; value.is_array() && rank < value.size() && value[rank].is_number(); ++rank) {
      records += scalar_record(prefix + key + "/" + std::to_string(rank), value[rank].get<float>(), step, time);
    }
    if (!value.is_number() || key == "step" || key == "time") continue;
    records += scalar_record(prefix + key, value.get<float>(), step, time);
  }
  return records;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder)
    : last_flush_(std::chrono::steady_clock::now()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const double time = now_s();
  // O_EXCL: a run resumed within the same second must not append to the previous file.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    path_ = folder / file_name(time, attempt);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno != EEXIST) fail_with(path_, "cannot create the TensorBoard file");
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

void TensorBoardWriter::add(const TrainRecord& record) {
  buffer_ += scalar_records("train/", to_object(record), record.step, record.time);
  flush_when_due();
}

void TensorBoardWriter::add(const EvalRecord& record) {
  if (!has_eval_) {
    has_eval_ = true;
    first_eval_name_ = record.name;
  }
  const std::string prefix = record.name == first_eval_name_ ? "eval/" : "eval/" + record.name + "/";
  buffer_ += scalar_records(prefix, to_object(record), record.step, now_s());
  flush_when_due();
}

void TensorBoardWriter::add(const TaskRecord& record) {
  buffer_ += scalar_records("eval/" + record.name + "/", to_object(record), record.step, now_s());
  flush_when_due();
}

void TensorBoardWriter::flush() {
  const std::size_t written = write_all(fd_, buffer_);
  const bool is_whole = written == buffer_.size();
  const int code = errno;
  buffer_.erase(0, written);
  last_flush_ = std::chrono::steady_clock::now();
  if (!is_whole) fail_with(path_, "cannot write the TensorBoard file", code);
}

void TensorBoardWriter::flush_when_due() {
  if (std::chrono::steady_clock::now() - last_flush_ > kFlushInterval) flush();
}

}  // namespace lora_train::metrics
