// Reads weight files into the page cache in the background.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <thread>

namespace lora_train::storage {

/// Asks the system, from a background thread, to read the *.safetensors files of a folder ahead (posix_fadvise). Ignores all
/// errors: opening the files later reports them. The destructor stops the thread after the current piece of 16 MiB.
class ReadAhead {
 public:
  /// Does nothing if the files have more than `most_bytes` in total: they would evict pages that are needed.
  ReadAhead(const std::filesystem::path& folder, std::int64_t most_bytes);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Waits until everything is requested. Returns the number of requested bytes.
  std::int64_t wait();

 private:
  std::atomic<bool> is_stopped_ = false;
  std::atomic<std::int64_t> asked_bytes_ = 0;
  std::thread thread_;
};

}  // namespace lora_train::storage
