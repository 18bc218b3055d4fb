#include <sstream>

#include "doctor_report.h"
#include "json_text.h"
#include "lora_train/base/version.h"
#include "lora_train/device/cuda_build.h"

namespace lora_train::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(CheckStatus status) {
  return status == CheckStatus::kOk ? "ok" : status == CheckStatus::kNote ? "note" : "failed";
}

Json checks_json(const std::vector<DoctorCheck>& checks) {
  Json list = Json::array();
  for (const auto& check : checks) {
    list.push_back({{"name", check.name},
                    {"value", check.value},
                    {"status", name_of(check.status)},
                    {"advice", or_null(check.advice)}});
  }
  return list;
}

const char* name_of(device::ComputeMode mode) {
  switch (mode) {
    case device::ComputeMode::kDefault: return "default";
    case device::ComputeMode::kExclusiveThread: return "exclusive_thread";
    case device::ComputeMode::kProhibited: return "prohibited";
    case device::ComputeMode::kExclusiveProcess: break;
  }
  return "exclusive_process";
}

Json gpu_json(const device::Gpu& gpu) {
  Json processes = Json::array();
  for (const auto& process : gpu.processes)
    processes.push_back({{"pid", process.pid}, {"bytes", or_null(process.bytes)}});
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"uuid", or_null(gpu.uuid)},
          {"pci_id", or_null(gpu.pci_id)},
          {"architecture", gpu.architecture()},
          {"multiprocessors", gpu.num_multiprocessors},
          {"total_bytes", gpu.total_bytes},
          {"free_bytes", or_null(gpu.free_bytes)},
          {"compute_mode", name_of(gpu.compute_mode)},
          {"processes", processes}};
}

Json peers_json(const device::GpuSystem& system) {
  Json rows = Json::array();
  for (const auto& row : system.peer_access) {
    Json ways = Json::array();
    for (const device::PeerAccess way : row) ways.push_back(device::to_string(way));
    rows.push_back(ways);
  }
  return rows;
}

Json disk_json(const std::optional<DiskSpeed>& disk) {
  if (!disk) return nullptr;
  const bool is_measured = disk->num_bytes > 0;
  return {{"folder", disk->folder.string()},
          {"free_bytes", disk->free_bytes},
          {"write_bytes_per_s", is_measured ? Json(disk->write_bytes_per_s) : Json(nullptr)},
          {"read_bytes_per_s", is_measured ? Json(disk->read_bytes_per_s) : Json(nullptr)}};
}

Json kernels_json(const std::vector<bench::KernelCheck>& kernels) {
  Json list = Json::array();
  for (const auto& kernel : kernels) {
    list.push_back({{"name", kernel.name},
                    {"shape", kernel.shape},
                    {"max_error", kernel.max_error},
                    {"tolerance", kernel.tolerance},
                    {"own_us", kernel.own_us},
                    {"reference_us", kernel.reference_us},
                    {"passed", kernel.passed},
                    {"note", or_null(kernel.note)}});
  }
  return list;
}

}  // namespace

std::string doctor_json(const DoctorFindings& findings, const std::vector<DoctorCheck>& checks) {
  const device::GpuSystem& system = findings.gpus;
  Json object = {
      {"version", version()}, {"commit", commit()}, {"passed", !has_failed(checks)}, {"checks", checks_json(checks)}};
  object["libtorch"] = nullptr;
  if (const auto& torch = findings.torch) {
    object["libtorch"] = {
        {"version", torch->version}, {"folder", torch->folder.string()}, {"cuda", or_null(torch->cuda)}};
  }
  object["gpu_architectures"] = Json::array();
  std::istringstream architectures(findings.has_cuda_library ? device::built_architectures_text() : "");
  for (std::string name; architectures >> name;) object["gpu_architectures"].push_back(name);
  object["host"] = {{"cpu", or_null(findings.host.cpu_model)},
                    {"cores", findings.host.num_cores},
                    {"vector_units", findings.host.vector_units},
                    {"memory_bytes", findings.host.memory_bytes},
                    {"available_bytes", findings.available_memory}};
  object["driver"] = {{"version", or_null(system.driver_version)},
                      {"cuda_version", system.cuda_version},
                      {"init_error", or_null(system.init_error)},
                      {"device_nodes", system.device_nodes}};
  object["gpus"] = Json::array();
  for (const auto& gpu : system.gpus) object["gpus"].push_back(gpu_json(gpu));
  object["peer_access"] = peers_json(system);
  object["libraries"] = Json::object();
  for (const auto& library : findings.libraries) object["libraries"][library.name] = or_null(library.version);
  object["disk"] = disk_json(findings.disk);
  object["kernels_place"] = or_null(findings.kernels_place);
  object["kernels"] = kernels_json(findings.kernels);
  return to_line(object) + "\n";
}

}  // namespace lora_train::cli
