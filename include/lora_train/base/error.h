// Every failure a user, a file or a device can cause is one of these types. main() turns each into one message and one
// exit code; nothing else catches them all. Assertions are for failures that only our own bugs can cause.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace lora_train {

/// Exit codes of the program.
enum class ExitCode {
  kDone = 0,
  kInternal = 1,
  kUsage = 2,    ///< command line or profile
  kData = 3,     ///< datasets
  kFormat = 4,   ///< model, tokenizer or adapter file, or no good checkpoint
  kIo = 5,       ///< disk full, permission
  kDevice = 6,   ///< CUDA, NCCL, out of device memory
  kNumeric = 7,  ///< non-finite loss or gradient
  kStopped = 75  ///< stopped on request after a complete checkpoint
};

/// Base class of all errors. `where` names the place as "file", "file:line", "file:line:byte", "file: tensor" or a key;
/// it may be empty. `message` says what was wrong, what was expected and what to do, and does not repeat `where`; with
/// arguments, it is the format of fmt::format. what() is "where: message".
class Error : public std::runtime_error {
 public:
  const std::string& message() const { return message_; }
  const std::string& where() const { return where_; }
  /// Name of the kind as --json prints it: "config", "data", "format", "io", "device", "numeric", "stopped",
  /// "internal".
  virtual const char* kind() const { return "internal"; }
  virtual ExitCode exit_code() const { return ExitCode::kInternal; }

 protected:
  Error(std::string where, std::string message)
      : std::runtime_error(where.empty() ? message : where + ": " + message),
        message_(std::move(message)),
        where_(std::move(where)) {}

 private:
  std::string message_;
  std::string where_;
};

#define LORA_TRAIN_ERROR(Name, kind_name, code)                                                                \
  class Name : public Error {                                                                                  \
   public:                                                                                                     \
    Name(std::string where, std::string message) : Error(std::move(where), std::move(message)) {}              \
    template <class... Args>                                                                                   \
    requires(sizeof...(Args) > 0) Name(std::string where, fmt::format_string<Args...> message, Args&&... args) \
        : Error(std::move(where), fmt::format(message, std::forward<Args>(args)...)) {}                        \
    const char* kind() const override { return kind_name; }                                                    \
    ExitCode exit_code() const override { return code; }                                                       \
  }

LORA_TRAIN_ERROR(ConfigError, "config", ExitCode::kUsage);   ///< usage or profile; where = file:line or flag
LORA_TRAIN_ERROR(DataError, "data", ExitCode::kData);        ///< datasets; where = file:line or file:line:byte
LORA_TRAIN_ERROR(FormatError, "format", ExitCode::kFormat);  ///< model, tokenizer, adapter, checkpoint files
LORA_TRAIN_ERROR(IoError, "io", ExitCode::kIo);              ///< the operating system refused; message ends in strerror
LORA_TRAIN_ERROR(DeviceError, "device", ExitCode::kDevice);  ///< CUDA, NCCL, memory
LORA_TRAIN_ERROR(NumericError, "numeric", ExitCode::kNumeric);  ///< non-finite loss or gradient
LORA_TRAIN_ERROR(StopError, "stopped", ExitCode::kStopped);  ///< asked to stop; where = the cause (base/stop_request.h)
LORA_TRAIN_ERROR(ShapeError, "internal", ExitCode::kInternal);  ///< a tensor lacks the promised shape: our bug

#undef LORA_TRAIN_ERROR

/// Another rank has failed and printed its error: this rank ends with the same exit code and prints nothing.
class PeerError : public Error {
 public:
  PeerError(std::string where, std::string message, std::string kind, ExitCode code)
      : Error(std::move(where), std::move(message)), kind_(std::move(kind)), code_(code) {}
  const char* kind() const override { return kind_.c_str(); }
  ExitCode exit_code() const override { return code_; }

 private:
  std::string kind_;
  ExitCode code_;
};

struct ErrorReport {
  ExitCode code = ExitCode::kInternal;
  std::string kind = "internal";
  std::string message;
  std::string where;
  bool is_reported = false;  ///< a PeerError: another rank has printed it
  /// "where: message"
  std::string text() const { return where.empty() ? message : where + ": " + message; }
};

/// Describes the exception that is being handled; call inside a catch block. An Error describes itself. A refusal by
/// the file system is an I/O error. Too little host memory is a device error that says what to lower. Anything else
/// (including LibTorch's c10::Error, whose stack trace is cut off) is an internal error, a bug, unless its text shows
/// that the device failed.
ErrorReport describe_current_exception();

}  // namespace lora_train
