#include "lora_train/base/error.h"

#include <exception>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

namespace lora_train {
namespace {

constexpr const char* kBug = "This is a bug in lora-train: please report it with the command and run.log.";
constexpr const char* kHostMemory =
    "out of memory on the host. Lower micro_batch_size or max_seq_len, or set gradient_checkpointing: full";

// c10::Error::what() goes on with "Exception raised from ... (most recent call first):" and the frames.
std::string first_line(std::string_view text) {
  std::string line(text.substr(0, text.find('\n')));
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
  return line.empty() ? "no description" : line;
}

/// Advice for a LibTorch error that the device caused; empty for others.
std::string device_advice(std::string_view line) {
  if (line.find("CUDA out of memory") != std::string_view::npos) {
    return ". Lower micro_batch_size or max_seq_len, or set gradient_checkpointing: full; lora-train doctor shows what "
           "else holds memory";
  }
  if (line.find("CUDA error") != std::string_view::npos || line.find("NCCL") != std::string_view::npos) {
    return ". The work since the last checkpoint, if there is one, is lost. Run lora-train doctor, look for Xid "
           "messages of the driver (dmesg), then run the same command again";
  }
  return {};
}

ErrorReport describe_foreign(const std::exception& error) {
  const std::string line = first_line(error.what());
  // LibTorch's own allocator does not throw bad_alloc: "DefaultCPUAllocator: can't allocate memory: you tried to ...".
  if (const auto at = line.find("DefaultCPUAllocator: "); at != std::string::npos) {
    return {ExitCode::kDevice, "device", fmt::format("{}{})", kHostMemory, " (" + line.substr(at)), ""};
  }
  if (const std::string advice = device_advice(line); !advice.empty()) {
    return {ExitCode::kDevice, "device", line + advice, ""};
  }
  return {ExitCode::kInternal, "internal", fmt::format("internal error: {}. {}", line, kBug), ""};
}

}  // namespace

ErrorReport describe_current_exception() {
  try {
    throw;
  } catch (const PeerError& error) {
    return {error.exit_code(), error.kind(), error.message(), error.where(), true};
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInternal)
      return {error.exit_code(), error.kind(), error.message(), error.where()};
    return {error.exit_code(), error.kind(), "internal error: " + error.message() + ". " + kBug, error.where()};
  } catch (const std::filesystem::filesystem_error& error) {
    return {ExitCode::kIo, "io", error.code().message(), error.path1().string()};
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return describe_foreign(error);
    return {ExitCode::kDevice, "device",
            "cannot start a thread: the host has no memory for its stack (free -h, ulimit -v), or too many threads are "
            "running (ulimit -u)",
            ""};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kDevice, "device", kHostMemory, ""};
  } catch (const std::exception& error) {
    return describe_foreign(error);
  } catch (...) {
    return {ExitCode::kInternal, "internal", std::string("internal error: unknown exception. ") + kBug, ""};
  }
}

}  // namespace lora_train
