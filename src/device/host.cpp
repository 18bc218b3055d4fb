#include "lora_train/device/host.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>

namespace lora_train::device {
namespace {

constexpr std::array<const char*, 4> kVectorUnits = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"};

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/// The text after "key\t: "; empty if the line has another key.
std::string value_of(const std::string& line, const std::string& key) {
  if (!line.starts_with(key)) return {};
  const std::size_t colon = line.find(':');
  const std::size_t begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

}  // namespace

Host describe_host(const std::string& proc) {
  Host host;
  host.num_cores = usable_cores();
  std::ifstream cpuinfo(proc + "/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (host.cpu_model.empty()) host.cpu_model = value_of(line, "model name");
    if (const std::string flags = value_of(line, "flags"); !flags.empty()) {
      std::istringstream stream(flags);
      const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
      for (const char* unit : kVectorUnits) {
        if (std::find(words.begin(), words.end(), unit) != words.end()) host.vector_units.emplace_back(unit);
      }
      break;  // the other processors are the same
    }
  }
  std::ifstream meminfo(proc + "/meminfo");
  std::string key, unit;
  for (std::uint64_t kib = 0; meminfo >> key >> kib >> unit;) {
    if (key == "MemTotal:") host.memory_bytes = kib * 1024;
  }
  return host;
}

}  // namespace lora_train::device
