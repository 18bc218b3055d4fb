// What a rank of --nproc writes.
#pragma once

#include <string>

namespace lora_train::launch {

/// Reads the pipe of a rank and writes its lines to stderr, each with the rank before it. Without a pipe (fd -1) it does nothing.
class RankOutput {
 public:
  /// Owns `fd`.
  RankOutput(int fd, int rank);
  ~RankOutput();
  RankOutput(RankOutput&& other) noexcept;
  RankOutput& operator=(RankOutput&&) = delete;

  /// For poll(); -1 once the rank has closed its end.
  int fd() const { return fd_; }
  /// Writes the lines that are there, and does not wait for more.
  void forward();
  /// As forward(), and writes what is left without an end of line.
  void finish();

 private:
  void write_line(const std::string& line) const;

  int fd_;
  std::string prefix_, rest_;
};

}  // namespace lora_train::launch
