// A layer over FileOps that numbers the operations and fails one of them, or all from one on.
#pragma once

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>

#include "lora_train/base/file_ops.h"

namespace lora_train::testing_support {

/// kCrash...: from then on nothing happens any more, whatever is called; the caller sees EIO.
/// kShort: read and write take half of the bytes; other operations are as ever.
/// kDamaged: write puts down a wrong byte and says nothing; other operations are as ever.
enum class Fault { kNone, kCrashBefore, kCrashAfter, kIoError, kNoSpace, kShort, kInterrupted, kDamaged };

class FaultyFileOps : public FileOps {
 public:
  explicit FaultyFileOps(FileOps& below) : below_(below) {}

  /// Operations are counted from 0 again.
  void arm(Fault fault, std::size_t at = 0, bool from_then_on = false) {
    fault_ = fault;
    at_ = at;
    from_then_on_ = from_then_on;
    count_ = 0;
    has_crashed_ = false;
  }
  std::size_t num_operations() const { return count_; }

  bool can_exchange = true;  ///< false: as on a file system without RENAME_EXCHANGE

  int open(const std::string& path, int flags) override {
    return run([&] { return below_.open(path, flags); });
  }
  std::ptrdiff_t read(int fd, void* buffer, std::size_t size) override {
    return run([&](std::size_t part) { return below_.read(fd, buffer, part); }, size);
  }
  std::ptrdiff_t write(int fd, const void* bytes, std::size_t size) override {
    std::string damaged(static_cast<const char*>(bytes), size);
    if (!damaged.empty()) damaged[size / 2] = static_cast<char>(damaged[size / 2] ^ 1);
    return run([&](std::size_t part) { return below_.write(fd, is_damaging_ ? damaged.data() : bytes, part); }, size);
  }
  int allocate(int fd, std::size_t size) override {
    return run([&] { return below_.allocate(fd, size); });
  }
  int truncate(int fd, std::size_t size) override {
    return run([&] { return below_.truncate(fd, size); });
  }
  int sync(int fd) override {
    return run([&] { return below_.sync(fd); });
  }
  int close(int fd) override {  // whatever it says, the descriptor is gone
    const int result = below_.close(fd);
    return run([&] { return result; });
  }
  int rename(const std::string& from, const std::string& to) override {
    return run([&] { return below_.rename(from, to); });
  }
  int exchange(const std::string& one, const std::string& other) override {
    return run([&] { return can_exchange ? below_.exchange(one, other) : static_cast<int>(refuse(EINVAL)); });
  }
  int unlink(const std::string& path) override {
    return run([&] { return below_.unlink(path); });
  }
  int make_folder(const std::string& path) override {
    return run([&] { return below_.make_folder(path); });
  }
  int remove_folder(const std::string& path) override {
    return run([&] { return below_.remove_folder(path); });
  }
  int list(const std::string& path, std::vector<std::string>& names) override {
    return run([&] { return below_.list(path, names); });
  }
  int kind(const std::string& path, PathKind& kind) override {
    return run([&] { return below_.kind(path, kind); });
  }
  int free_bytes(const std::string& folder, std::uint64_t& bytes) override {
    return run([&] { return below_.free_bytes(folder, bytes); });
  }

 private:
  template <typename Call>
  int run(const Call& call) {
    return static_cast<int>(run([&](std::size_t) { return std::ptrdiff_t{call()}; }, 0));
  }

  template <typename Call>
  std::ptrdiff_t run(const Call& call, std::size_t size) {
    const std::lock_guard lock(mutex_);
    if (has_crashed_) return refuse(EIO);
    const std::size_t number = count_++;
    const bool is_hit = fault_ != Fault::kNone && (from_then_on_ ? number >= at_ : number == at_);
    is_damaging_ = is_hit && fault_ == Fault::kDamaged;
    if (!is_hit || is_damaging_) return call(size);
    switch (fault_) {
      case Fault::kCrashBefore: has_crashed_ = true; return refuse(EIO);
      case Fault::kCrashAfter:
        call(size);
        has_crashed_ = true;
        return refuse(EIO);
      case Fault::kIoError: return refuse(EIO);
      case Fault::kNoSpace: return refuse(ENOSPC);
      case Fault::kInterrupted: return refuse(EINTR);
      default: return call(size == 0 ? 0 : std::max<std::size_t>(size / 2, 1));
    }
  }

  static std::ptrdiff_t refuse(int code) {
    errno = code;
    return -1;
  }

  FileOps& below_;
  std::mutex mutex_;
  Fault fault_ = Fault::kNone;
  std::size_t at_ = 0, count_ = 0;
  bool from_then_on_ = false, has_crashed_ = false, is_damaging_ = false;
};

/// The program's file operations, as long as it lives.
class ScopedFileOps {
 public:
  explicit ScopedFileOps(FileOps& ops) : previous_(&file_ops()) { set_file_ops(&ops); }
  ~ScopedFileOps() { set_file_ops(previous_); }
  ScopedFileOps(const ScopedFileOps&) = delete;
  ScopedFileOps& operator=(const ScopedFileOps&) = delete;

 private:
  FileOps* previous_;
};

}  // namespace lora_train::testing_support
