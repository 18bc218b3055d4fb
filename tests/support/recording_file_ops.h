// A layer over FileOps that remembers what was synced and renamed.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "support/faulty_file_ops.h"

namespace lora_train::testing_support {

class RecordingFileOps : public FaultyFileOps {
 public:
  explicit RecordingFileOps(FileOps& below) : FaultyFileOps(below) {}

  /// In order: "open PATH", "sync PATH", "rename TARGET".
  std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  /// The place in the log; its size when the entry is not there.
  std::size_t place_of(const std::string& entry) const {
    const std::vector<std::string> all = log();
    return static_cast<std::size_t>(std::find(all.begin(), all.end(), entry) - all.begin());
  }

  int open(const std::string& path, int flags) override {
    const int fd = FaultyFileOps::open(path, flags);
    const std::lock_guard lock(mutex_);
    if (fd >= 0) paths_[fd] = path;
    log_.push_back("open " + path);
    return fd;
  }
  int sync(int fd) override {
    const int result = FaultyFileOps::sync(fd);
    const std::lock_guard lock(mutex_);
    log_.push_back("sync " + paths_[fd]);
    return result;
  }
  int rename(const std::string& from, const std::string& to) override {
    const int result = FaultyFileOps::rename(from, to);
    const std::lock_guard lock(mutex_);
    log_.push_back("rename " + to);
    return result;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, std::string> paths_;
  std::vector<std::string> log_;
};

}  // namespace lora_train::testing_support
