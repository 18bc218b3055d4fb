// Turns any exception into one message, one kind and one exit code.
#pragma once

#include <string>

#include "lora_train/base/error.h"

namespace lora_train {

struct ErrorReport {
  ExitCode code = ExitCode::kInternal;
  std::string kind = "internal";
  std::string message;
  std::string where;
  bool is_reported = false;  ///< a PeerError: another rank has printed it
  /// "where: message"
  std::string text() const { return where.empty() ? message : where + ": " + message; }
};

/// Describes the exception that is being handled; call inside a catch block. An Error describes itself. What the file
/// system refused is an I/O error. Too little host memory is a device error that says what to lower. Anything else
/// (including LibTorch's c10::Error, whose stack trace is cut off) is an internal error, a bug, unless its text shows that
/// the device failed.
ErrorReport describe_current_exception();

}  // namespace lora_train
