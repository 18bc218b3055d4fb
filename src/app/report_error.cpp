#include "report_error.h"

#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lora_train/base/log.h"
#include "standard_output.h"

namespace lora_train::app {
namespace {

constexpr const char* kBug = "This is a bug in lora-train: please report it with the command and run.log.";

// c10::Error::what() goes on with "Exception raised from ... (most recent call first):" and the frames.
std::string first_line(std::string_view text) {
  std::string line(text.substr(0, text.find('\n')));
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
  return line.empty() ? "no description" : line;
}

bool names_the_device(std::string_view line) {
  return line.find("CUDA error") != std::string_view::npos ||
         line.find("CUDA out of memory") != std::string_view::npos || line.find("NCCL") != std::string_view::npos;
}

ErrorReport describe_foreign(const std::exception& error) {
  const std::string line = first_line(error.what());
  if (names_the_device(line)) return {ExitCode::kDevice, "device", line, ""};
  return {ExitCode::kInternal, "internal", "internal error: " + line + ". " + kBug, ""};
}

}  // namespace

ErrorReport describe_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::kInternal)
      return {error.exit_code(), error.kind(), error.message(), error.where()};
    return {error.exit_code(), error.kind(), "internal error: " + error.message() + ". " + kBug, error.where()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kInternal, "internal", std::string("internal error: out of memory on the host. ") + kBug, ""};
  } catch (const std::exception& error) {
    return describe_foreign(error);
  } catch (...) {
    return {ExitCode::kInternal, "internal", std::string("internal error: unknown exception. ") + kBug, ""};
  }
}

int report_current_exception(bool json) noexcept {
  int code = static_cast<int>(ExitCode::kInternal);
  try {
    const ErrorReport report = describe_current_exception();
    code = static_cast<int>(report.code);
    log_error(report.where.empty() ? report.message : report.where + ": " + report.message);
    if (json) {
      const nlohmann::ordered_json object = {
          {"error", {{"kind", report.kind}, {"message", report.message}, {"where", report.where}}}};
      print_line(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    }
  } catch (...) {  // no memory or no stdout to say it: the code still says it
  }
  return code;
}

}  // namespace lora_train::app
