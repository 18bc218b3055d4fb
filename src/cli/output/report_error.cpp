#include "report_error.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "json_text.h"
#include "lora_train/base/error_report.h"
#include "lora_train/base/log.h"
#include "lora_train/base/utf8.h"
#include "standard_output.h"

namespace lora_train::cli {
namespace {

/// Messages quote what files hold: no control character of theirs reaches the terminal, and no line is endless.
std::string readable(const std::string& text) {
  constexpr std::size_t kLongestLine = 4000;
  const std::string valid = repair_utf8(text);
  std::string out;
  std::size_t line_bytes = 0;
  for (std::size_t at = 0; at < valid.size();) {
    const Utf8Char c = utf8_char(valid, at);
    const bool is_control = c.code_point < 0x20 || (c.code_point >= 0x7F && c.code_point < 0xA0);
    if (c.code_point == '\n') {
      out += '\n';
      line_bytes = 0;
    } else if (line_bytes <= kLongestLine) {
      out += is_control ? "?" : valid.substr(at, c.length);
      line_bytes += c.length;
      if (line_bytes > kLongestLine) out += "...";
    }
    at += c.length;
  }
  return out;
}

}  // namespace

int report_current_exception(bool json) noexcept {
  int code = static_cast<int>(ExitCode::kInternal);
  try {
    ErrorReport report = describe_current_exception();
    report.message = readable(report.message);
    std::replace(report.where.begin(), report.where.end(), '\n', '?');
    report.where = readable(report.where);
    code = static_cast<int>(report.code);
    report.is_reported ? log_to_file(LogLevel::kError, report.text()) : log_error(report.text());
    if (json) {
      const nlohmann::ordered_json object = {
          {"error", {{"kind", report.kind}, {"message", report.message}, {"where", report.where}}}};
      print_line(to_line(object));
    }
  } catch (const std::bad_alloc&) {
    constexpr char kText[] = "error: there is too little memory on the host even to say what failed\n";
    (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
    if (code == static_cast<int>(ExitCode::kInternal)) code = static_cast<int>(ExitCode::kDevice);
  } catch (...) {  // no stdout to say it: the code still says it
  }
  return code;
}

}  // namespace lora_train::cli
