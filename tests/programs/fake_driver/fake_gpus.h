// What the fake driver libraries say, out of the environment at the time of each call:
//   FAKE_GPUS            one entry a GPU, separated by ";": NAME|CAPABILITY|TOTAL_MIB|FREE_MIB|COMPUTE_MODE|PID:MIB,PID
//                        (a process without MIB holds an unknown amount); default: one idle H200
//   FAKE_CUDA_VERSION    of cuDriverGetVersion, default 13000
//   FAKE_CUDA_INIT       what cuInit returns, default 0
//   FAKE_DRIVER_VERSION  default 580.95.05
//   FAKE_NVML_INIT       what nvmlInit_v2 returns, default 0
//   FAKE_PEERS           nvlink, pcie or none (default)
//   FAKE_UUID            32 hexadecimal digits, of the first GPU; the others count on from it
//   FAKE_SENSORS         what NVML reads of any GPU: "power=300000,!15;clock=1980" (utilization, power, energy, temperature, clock,
//                        throttle; in NVML's units): the n-th value for the n-th read since nvmlInit, the last one from there on;
//                        !15 is the error 15. A sensor that is not named is not supported
// CUDA_VISIBLE_DEVICES picks GPUs by number, as the driver does: up to the first that is not there.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace fake {

struct Process {
  unsigned pid = 0;
  long long mib = -1;
};

struct FakeGpu {
  int number = 0;  ///< on the machine
  std::string name;
  int major = 0, minor = 0, compute_mode = 0;
  unsigned long long total_mib = 0, free_mib = 0;
  std::vector<Process> processes;
};

inline std::string variable(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

inline std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

inline std::vector<FakeGpu> all_gpus() {
  std::vector<FakeGpu> gpus;
  for (const auto& entry : split(variable("FAKE_GPUS", "NVIDIA H200|9.0|143771|143000|0|"), ';')) {
    auto fields = split(entry, '|');
    fields.resize(6);
    FakeGpu gpu;
    gpu.number = static_cast<int>(gpus.size());
    gpu.name = fields[0];
    std::sscanf(fields[1].c_str(), "%d.%d", &gpu.major, &gpu.minor);
    gpu.total_mib = std::stoull(fields[2]);
    gpu.free_mib = std::stoull(fields[3]);
    gpu.compute_mode = std::atoi(fields[4].c_str());
    for (const auto& process : split(fields[5], ',')) {
      const std::size_t colon = process.find(':');
      gpu.processes.push_back({static_cast<unsigned>(std::stoul(process)),
                               colon == std::string::npos ? -1 : std::stoll(process.substr(colon + 1))});
    }
    gpus.push_back(gpu);
  }
  return gpus;
}

inline std::vector<FakeGpu> visible_gpus() {
  const std::vector<FakeGpu> gpus = all_gpus();
  const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  if (chosen == nullptr) return gpus;
  std::vector<FakeGpu> visible;
  for (const auto& word : split(chosen, ',')) {
    char* end = nullptr;
    const unsigned long number = std::strtoul(word.c_str(), &end, 10);
    if (end == word.c_str() || number >= gpus.size()) break;
    visible.push_back(gpus[number]);
  }
  return visible;
}

inline std::string uuid_digits(int number) {
  const std::string first = variable("FAKE_UUID", "0000000000000000000000000000abc0");
  char digits[8];
  std::snprintf(digits, sizeof digits, "%04x", std::stoi(first.substr(28), nullptr, 16) + number);
  return first.substr(0, 28) + digits;
}

}  // namespace fake
