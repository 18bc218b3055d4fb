// A fuzzer's input as a file, without touching a disk.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace lora_train::fuzz {

/// A folder of this process in memory with one file, rewritten for each input.
class InputFile {
 public:
  explicit InputFile(const std::string& name)
      : folder_("/dev/shm/lora-train-fuzz-" + name + "-" + std::to_string(getpid())), path_(folder_ / name) {
    std::filesystem::create_directories(folder_);
    std::atexit([] { std::filesystem::remove_all(folder_to_remove()); });
    folder_to_remove() = folder_;
  }

  void write(const std::uint8_t* data, std::size_t size) const {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  }
  /// Another file of the same folder.
  void write_beside(const std::string& name, std::string_view bytes) const {
    std::ofstream(folder_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  const std::filesystem::path& folder() const { return folder_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  static std::filesystem::path& folder_to_remove() {
    static std::filesystem::path folder;
    return folder;
  }
  std::filesystem::path folder_, path_;
};

/// What a target found wrong that is no crash by itself.
[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

}  // namespace lora_train::fuzz
