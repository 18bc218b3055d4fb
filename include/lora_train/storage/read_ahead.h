// Files on their way into the page cache while something else is done.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <thread>

namespace lora_train::storage {

/// Asks the system, in a thread of its own, to read the *.safetensors files of a folder ahead. Nothing that goes wrong here
/// is an error: whoever opens the files says it. Goes with the object, after at most one piece more.
class ReadAhead {
 public:
  /// Files that take more than `most_bytes` in all are left alone: they would push out what is needed.
  ReadAhead(const std::filesystem::path& folder, std::int64_t most_bytes);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Waits until all is asked for. Returns the bytes.
  std::int64_t wait();

 private:
  std::atomic<bool> is_stopped_ = false;
  std::atomic<std::int64_t> asked_bytes_ = 0;
  std::thread thread_;
};

}  // namespace lora_train::storage
