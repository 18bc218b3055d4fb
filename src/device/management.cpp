#include "management.h"

#include <unistd.h>

#include "driver.h"

namespace lora_train::device {
namespace {

constexpr int kVersionBytes = 80;  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
constexpr unsigned long long kUnknownBytes = ~0ULL;

std::vector<GpuProcess> other_processes(const NvmlDriver& nvml, NvmlDevice device) {
  std::vector<NvmlProcess> listed(8);
  NvmlResult result = kNvmlInsufficientSize;
  for (int attempt = 0; result == kNvmlInsufficientSize && attempt < 5; ++attempt) {  // others start meanwhile
    auto count = static_cast<unsigned>(listed.size());
    result = nvml.compute_processes(device, &count, listed.data());
    listed.resize(result == kNvmlInsufficientSize ? count + 8 : count);
  }
  std::vector<GpuProcess> processes;
  if (result != kNvmlSuccess) return processes;
  const auto self = static_cast<unsigned>(::getpid());
  for (const NvmlProcess& process : listed) {
    if (process.pid == self) continue;
    processes.push_back({process.pid, std::nullopt});
    if (process.used_bytes != kUnknownBytes) processes.back().bytes = process.used_bytes;
  }
  return processes;
}

void ask_about(const NvmlDriver& nvml, NvmlDevice device, Gpu& gpu) {
  NvmlMemory memory{};
  if (nvml.memory(device, &memory) == kNvmlSuccess) gpu.free_bytes = memory.free;
  gpu.processes = other_processes(nvml, device);
}

bool has_capability(const NvmlDriver& nvml, NvmlDevice one, NvmlDevice other, int capability) {
  int status = -1;
  return nvml.peer_status(one, other, capability, &status) == kNvmlSuccess && status == kNvmlPeerOk;
}

/// libcuda.so.1 says whether there is access; here it is told which way it goes.
void ask_about_links(const NvmlDriver& nvml, const std::vector<NvmlDevice>& devices, GpuSystem& system) {
  for (std::size_t from = 0; from < devices.size(); ++from) {
    for (std::size_t to = 0; to < devices.size(); ++to) {
      PeerAccess& access = system.peer_access[from][to];
      if (access != PeerAccess::kPcie || devices[from] == nullptr || devices[to] == nullptr) continue;
      if (has_capability(nvml, devices[from], devices[to], kNvmlPeerNvlink)) access = PeerAccess::kNvlink;
    }
  }
}

}  // namespace

void ask_management_library(const std::string& library, GpuSystem& system) {
  NvmlDriver nvml{};
  if (!open_nvml_driver(library, nvml, system.management_problem)) return;
  if (const NvmlResult result = nvml.init(); result != kNvmlSuccess) {
    system.management_problem = library + ": " + nvml.error_string(result);
    return;
  }
  char version[kVersionBytes] = {};
  if (nvml.driver_version(version, sizeof version) == kNvmlSuccess) system.driver_version = version;
  std::vector<NvmlDevice> devices(system.gpus.size(), nullptr);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (nvml.device_by_uuid(system.gpus[i].uuid.c_str(), &devices[i]) == kNvmlSuccess) {
      ask_about(nvml, devices[i], system.gpus[i]);
    } else {
      devices[i] = nullptr;
    }
  }
  ask_about_links(nvml, devices, system);
  nvml.shutdown();
}

}  // namespace lora_train::device
