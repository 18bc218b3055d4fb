// From an exception of any kind to what is said about it: one message, one kind, one exit code.
#pragma once

#include <string>

#include "lora_train/base/error.h"

namespace lora_train {

struct ErrorReport {
  ExitCode code = ExitCode::kInternal;
  std::string kind = "internal";
  std::string message;
  std::string where;
  /// "where: message"
  std::string text() const { return where.empty() ? message : where + ": " + message; }
};

/// Of the exception that is being handled; call inside a catch block. An Error says itself what it is. What the file
/// system refused is an I/O error. Too little memory on the host is a device error with what to lower. Of anything else
/// (LibTorch's c10::Error too, whose stack trace is cut off) it is an internal error, a bug, unless its text shows that
/// the device failed.
ErrorReport describe_current_exception();

}  // namespace lora_train
