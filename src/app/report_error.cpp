#include "report_error.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/error_report.h"
#include "lora_train/base/log.h"
#include "standard_output.h"

namespace lora_train::app {

int report_current_exception(bool json) noexcept {
  int code = static_cast<int>(ExitCode::kInternal);
  try {
    const ErrorReport report = describe_current_exception();
    code = static_cast<int>(report.code);
    log_error(report.text());
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
