#include "disk_speed.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/file_ops.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = std::size_t{4} << 20;
constexpr double kMaxSeconds = 5;

/// A file without a name.
class NamelessFile {
 public:
  explicit NamelessFile(const fs::path& folder) {
    std::string name = (folder / ".lora-train-disk-XXXXXX").string();
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ < 0) fail_with(folder, "cannot create a file");
    ::unlink(name.c_str());
  }
  ~NamelessFile() { ::close(fd_); }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string incompressible_block() {
  std::mt19937_64 random(42);
  std::string block(kBlock, '\0');
  for (std::size_t i = 0; i < kBlock; i += sizeof(std::uint64_t)) {
    const std::uint64_t value = random();
    std::memcpy(block.data() + i, &value, sizeof value);
  }
  return block;
}

void write_and_sync(const NamelessFile& file, std::uint64_t most_bytes, DiskSpeed& speed) {
  const std::string block = incompressible_block();
  const Stopwatch clock;
  while (speed.num_bytes < most_bytes && clock.seconds() < kMaxSeconds) {
    const std::size_t size = std::min<std::uint64_t>(kBlock, most_bytes - speed.num_bytes);
    if (write_all(file.fd(), std::string_view(block).substr(0, size)) != size) fail_with(speed.folder, "cannot write");
    speed.num_bytes += size;
  }
  if (::fsync(file.fd()) != 0) fail_with(speed.folder, "cannot sync");
  speed.write_bytes_per_s = static_cast<double>(speed.num_bytes) / std::max(clock.seconds(), 1e-9);
}

void read_back(const NamelessFile& file, DiskSpeed& speed) {
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  ::lseek(file.fd(), 0, SEEK_SET);
  std::vector<char> buffer(kBlock);
  std::uint64_t num_read = 0;
  const Stopwatch clock;
  for (ssize_t count = 1; count > 0; num_read += static_cast<std::uint64_t>(count)) {
    count = ::read(file.fd(), buffer.data(), buffer.size());
    if (count < 0) fail_with(speed.folder, "cannot read");
  }
  if (num_read != speed.num_bytes) throw IoError(speed.folder.string(), "a file came back shorter than it was written");
  speed.read_bytes_per_s = static_cast<double>(num_read) / std::max(clock.seconds(), 1e-9);
}

}  // namespace

fs::path existing_folder(fs::path folder) {
  folder = fs::absolute(folder);
  std::error_code error;
  while (!fs::is_directory(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

DiskSpeed look_at_disk(const fs::path& folder) {
  DiskSpeed speed;
  speed.folder = folder;
  if (file_ops().free_bytes(folder.string(), speed.free_bytes) != 0)
    fail_with(folder, "cannot determine its free space");
  return speed;
}

DiskSpeed measure_disk(const fs::path& folder, std::uint64_t most_bytes) {
  DiskSpeed speed = look_at_disk(folder);
  const NamelessFile file(folder);
  write_and_sync(file, std::min(most_bytes, speed.free_bytes / 4), speed);
  if (speed.num_bytes > 0) read_back(file, speed);
  return speed;
}

}  // namespace lora_train::cli
