// From an exception to one message and one exit code.
#pragma once

#include <string>

#include "lora_train/base/error.h"

namespace lora_train::app {

/// What is said about an exception.
struct ErrorReport {
  ExitCode code = ExitCode::kInternal;
  std::string kind = "internal";
  std::string message;
  std::string where;
};

/// Of the exception that is being handled; call inside a catch block. An Error says itself what it is; of anything else
/// (LibTorch's c10::Error too, whose stack trace is cut off) it is an internal error, a bug, unless its text shows that
/// the device failed.
ErrorReport describe_current_exception();

/// Writes "error: where: message" to stderr (and run.log) and, with json, {"error": {"kind", "message", "where"}} to
/// stdout. Returns the exit code. Never throws.
int report_current_exception(bool json) noexcept;

}  // namespace lora_train::app
