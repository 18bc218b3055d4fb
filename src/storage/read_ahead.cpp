#include "lora_train/storage/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPieceBytes = 16 << 20;

/// Follows links: a Hub snapshot consists of them.
std::vector<std::pair<fs::path, std::int64_t>> weight_files(const fs::path& folder) {
  std::vector<std::pair<fs::path, std::int64_t>> files;
  std::error_code code;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    std::error_code unusable;
    if (at->path().extension() != ".safetensors" || !at->is_regular_file(unusable)) continue;
    const auto bytes = static_cast<std::int64_t>(at->file_size(unusable));
    if (!unusable) files.emplace_back(at->path(), bytes);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

ReadAhead::ReadAhead(const fs::path& folder, std::int64_t most_bytes) {
  const auto files = weight_files(folder);
  std::int64_t sum = 0;
  for (const auto& [path, bytes] : files) sum += bytes;
  if (sum == 0 || sum > most_bytes) return;
  try {
    thread_ = std::thread([this, files] {
      for (const auto& [path, bytes] : files) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) continue;
        for (std::int64_t begin = 0; begin < bytes && !is_stopped_; begin += kPieceBytes) {
          const std::int64_t count = std::min(kPieceBytes, bytes - begin);
          if (::posix_fadvise(fd, begin, count, POSIX_FADV_WILLNEED) == 0) asked_bytes_ += count;
        }
        ::close(fd);
      }
    });
  } catch (const std::system_error&) {  // no thread available: the files are read later
  }
}

ReadAhead::~ReadAhead() {
  is_stopped_ = true;
  wait();
}

std::int64_t ReadAhead::wait() {
  if (thread_.joinable()) thread_.join();
  return asked_bytes_;
}

}  // namespace lora_train::storage
