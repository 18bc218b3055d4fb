#include "launcher_process.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

namespace lora_train::launch {
namespace {

struct ProcessStat {
  std::string name, pid, parent, start_time;
};

/// proc(5): "pid (name) state ppid ..."; the name may hold blanks and parentheses, and the start time is field 22.
std::optional<ProcessStat> read_stat(const std::filesystem::path& file) {
  std::ifstream stream(file);
  const std::string line{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || open == 0) return std::nullopt;
  std::istringstream words(line.substr(close + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
  if (fields.size() < 20) return std::nullopt;
  return ProcessStat{line.substr(open + 1, close - open - 1), line.substr(0, open - 1), fields[1], fields[19]};
}

}  // namespace

std::string launcher_process(const std::vector<std::string>& names, const std::filesystem::path& proc) {
  for (auto process = read_stat(proc / "self" / "stat"); process;
       process = read_stat(proc / process->parent / "stat")) {
    if (std::find(names.begin(), names.end(), process->name) != names.end())
      return process->pid + "-" + process->start_time;
  }
  return {};
}

}  // namespace lora_train::launch
