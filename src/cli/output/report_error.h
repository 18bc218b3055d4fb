// An exception as the user gets it: one message and one exit code.
#pragma once

namespace lora_train::cli {

/// Inside a catch block: writes "error: where: message" (base/error_report.h) to stderr and run.log and, with json,
/// {"error": {"kind", "message", "where"}} to stdout. Returns the exit code. Never throws.
int report_current_exception(bool json) noexcept;

}  // namespace lora_train::cli
