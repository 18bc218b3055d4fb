#include "lora_train/device/host.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace lora_train::device {
namespace {

constexpr int kTicks = 100;  // a second, in /proc (USER_HZ)

constexpr std::array<const char*, 4> kVectorUnits = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"};

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

/// `list`: as Linux writes it, "0-3,8".
bool lists_any(const std::string& list, const std::vector<int>& cpus) {
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream bounds(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(bounds >> first)) continue;
    if (!(bounds >> dash >> last)) last = first;
    if (std::ranges::any_of(cpus, [&](int cpu) { return first <= cpu && cpu <= last; })) return true;
  }
  return false;
}

/// The text after "key\t: "; empty if the line has another key.
std::string value_of(const std::string& line, const std::string& key) {
  if (!line.starts_with(key)) return {};
  const std::size_t colon = line.find(':');
  const std::size_t begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

}  // namespace

std::vector<int> usable_cpus() {
  std::array<cpu_set_t, 8> set{};  // as many CPUs as Linux supports: the call fails if one does not fit
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof set, set.data()) != 0) return cpus;
  for (std::size_t cpu = 0; cpu < 8 * sizeof set; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof set, set.data())) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

CpuTimes cpu_times(const std::vector<int>& cpus, const std::string& proc) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  CpuTimes times;
  rusage own{};
  ::getrusage(RUSAGE_SELF, &own);
  times.own = seconds(own.ru_utime) + seconds(own.ru_stime);
  std::ifstream stat(proc + "/stat");
  for (std::string line; std::getline(stat, line);) {  // cpu1 user nice system idle iowait irq softirq steal ...
    int cpu = 0;
    std::array<double, 8> ticks{};
    std::istringstream fields(line.starts_with("cpu") ? line.substr(3) : "");
    if (!line.starts_with("cpu ") && fields >> cpu && std::ranges::count(cpus, cpu) > 0) {
      for (double& count : ticks) fields >> count;
      times.all += (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) / static_cast<double>(kTicks);
    }
  }
  return times;
}

int count_physical_cores(const std::vector<int>& cpus, const std::string& sys) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string name = "cpu" + std::to_string(cpu);
    const std::string siblings = first_line(sys + "/devices/system/cpu/" + name + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? name : siblings);
  }
  return static_cast<int>(cores.size());
}

int count_numa_nodes(const std::vector<int>& cpus, const std::string& sys) {
  std::error_code ignored;
  int num_nodes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(sys + "/devices/system/node", ignored)) {
    if (lists_any(first_line(entry.path() / "cpulist"), cpus)) ++num_nodes;
  }
  return std::max(1, num_nodes);
}

Host describe_host(const std::string& proc, const std::string& sys) {
  Host host;
  const std::vector<int> cpus = usable_cpus();
  host.num_cores = std::max(1, static_cast<int>(cpus.size()));
  host.num_physical_cores = std::max(1, count_physical_cores(cpus, sys));
  host.num_numa_nodes = count_numa_nodes(cpus, sys);
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
