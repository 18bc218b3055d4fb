// Every reason why a GPU cannot be used, and what to do about it.
#include <algorithm>

#include "driver.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/device/cuda_build.h"
#include "lora_train/device/gpu.h"

namespace lora_train::device {
namespace {

constexpr const char* kOrCpu = " To compute on the CPU, set device: cpu.";

bool has_node(const GpuSystem& system, const std::string& node) {
  const auto& nodes = system.device_nodes;
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string driver_text(const GpuSystem& system) {
  return system.driver_version.empty() ? "the NVIDIA driver" : "NVIDIA driver " + system.driver_version;
}

std::string no_library(const GpuSystem& system) {
  const std::string what =
      "libcuda.so.1, the library of the NVIDIA driver, cannot be used (" + system.library_problem + ")";
  if (has_node(system, "/dev/dxg")) {
    return what + ". This is WSL, whose library is in /usr/lib/wsl/lib: export LD_LIBRARY_PATH=/usr/lib/wsl/lib.";
  }
  if (!system.device_nodes.empty()) {
    return what + ", though " + system.device_nodes.front() +
           " exists. In a container: install the NVIDIA Container Toolkit on the host, and start the container with "
           "--gpus all. Elsewhere: install the driver libraries that match the version of the kernel module" +
           (system.driver_version.empty() ? "." : " (" + system.driver_version + ").");
  }
  return what + ", and there is no device node /dev/nvidia0. On a machine with an NVIDIA GPU, install the driver, " +
         std::to_string(kOldestDriver) +
         " or newer. If this is a container, start it with --gpus all (NVIDIA Container Toolkit).";
}

std::string too_old(const GpuSystem& system) {
  return driver_text(system) + " is too old: it supports CUDA up to " + cuda_text(system.cuda_version) +
         ", and this build needs CUDA " + cuda_text(kOldestCudaVersion) + ", which needs driver " +
         std::to_string(kOldestDriver) + " or newer. Update the driver (for a container: on the host)" +
         ". On a data-centre GPU, installing the package cuda-compat-13-0 works too.";
}

std::string no_device(const GpuSystem& system) {
  if (system.visible_devices) {
    return "no GPU is visible: CUDA_VISIBLE_DEVICES is \"" + *system.visible_devices +
           "\". Unset it, or set it to the number of a GPU that nvidia-smi -L lists (the first is 0).";
  }
  const std::string what = driver_text(system) + " finds no GPU";
  if (system.device_nodes.empty()) {
    return what +
           ", and there is no device node /dev/nvidia0. If this is a container, start it with --gpus all. Elsewhere, "
           "check whether nvidia-smi lists the GPU.";
  }
  return what + " (device nodes: " + join(system.device_nodes) +
         "). Check whether nvidia-smi -L lists it, and look for NVRM in dmesg. In a container, all of its device nodes "
         "must be passed in (--gpus all).";
}

/// What to do about an error from cuInit.
std::string init_advice(const GpuSystem& system) {
  switch (system.init_code) {
    case kErrorOutOfMemory: return "The host or the GPU is out of memory: check free -h and nvidia-smi.";
    case kErrorStubLibrary:
      return "The libcuda.so.1 that was found is the CUDA toolkit's stub for linking: remove its folder (lib64/stubs) "
             "from LD_LIBRARY_PATH.";
    case kErrorDeviceUnavailable:
      return "Another process uses the GPU exclusively, or its compute mode forbids computing: check nvidia-smi.";
    case kErrorInvalidDevice: return "Check that CUDA_VISIBLE_DEVICES names GPUs that nvidia-smi -L lists.";
    case kErrorDeviceNotLicensed:
      return "The virtual GPU has no licence: check nvidia-smi -q, or ask the administrator of the host.";
    case kErrorOperatingSystem:
      return "The operating system refused the driver's request: check that this user may read and write "
             "/dev/nvidia*, and run nvidia-smi once.";
    case kErrorSystemNotReady:
      return "On a machine with NVSwitch (HGX, DGX), the fabric manager must run, in the same version as the driver: "
             "sudo systemctl start nvidia-fabricmanager.";
    case kErrorSystemDriverMismatch:
      return "libcuda.so.1 has another version than the loaded kernel module" +
             (system.driver_version.empty() ? std::string() : " " + system.driver_version) +
             ". After a driver update, restart the machine. In a container, remove libcuda.so.1 from the image.";
    case kErrorCompatNotSupported:
      return "The package cuda-compat works on data-centre GPUs only: remove it from LD_LIBRARY_PATH, and update the "
             "driver to " +
             std::to_string(kOldestDriver) + " or newer.";
    case kErrorUnknown:
      return "Often the kernel module nvidia_uvm is missing (sudo modprobe nvidia_uvm), or the GPU has failed: look "
             "for NVRM or Xid in dmesg, and restart the machine.";
    default: break;
  }
  if (system.init_code >= kErrorMpsFirst && system.init_code <= kErrorMpsLast) {
    return "CUDA MPS (Multi-Process Service) cannot be reached: restart nvidia-cuda-mps-control, or unset "
           "CUDA_MPS_PIPE_DIRECTORY.";
  }
  return "Check whether nvidia-smi works, and look for NVRM in dmesg.";
}

[[noreturn]] void refuse(const std::string& message) { throw DeviceError("device", message + kOrCpu); }

}  // namespace

void require_driver(const GpuSystem& system) {
  if (system.cuda_version == 0 && !system.library_problem.empty()) refuse(no_library(system));
  if (system.cuda_version < kOldestCudaVersion && system.cuda_version != 0) refuse(too_old(system));
  if (!system.library_problem.empty()) refuse(no_library(system));
  const bool finds_none = system.gpus.empty() && system.init_code == kCudaSuccess;
  if (finds_none || system.init_code == kErrorNoDevice) refuse(no_device(system));
  if (system.init_code != kCudaSuccess) {
    refuse(driver_text(system) + " does not start: cuInit returns " + system.init_error + " (" +
           std::to_string(system.init_code) + "). " + init_advice(system));
  }
}

void require_usable(const Gpu& gpu) {
  if (code_for(gpu.major, gpu.minor) == CodeFor::kNone) {
    throw DeviceError(
        gpu.label(), "its compute capability is " + std::to_string(gpu.major) + "." + std::to_string(gpu.minor) + " (" +
                         gpu.architecture() + "), but this build has code for " + built_architectures_text() +
                         ": Ampere (8.0) and newer. Choose another GPU with CUDA_VISIBLE_DEVICES." + kOrCpu);
  }
  if (gpu.compute_mode == ComputeMode::kProhibited) {
    throw DeviceError(gpu.label(),
                      "its compute mode is Prohibited: no program may compute on it. Allow it with sudo "
                      "nvidia-smi -i " +
                          gpu.pci_id + " -c DEFAULT, or choose another GPU with CUDA_VISIBLE_DEVICES." + kOrCpu);
  }
  const bool is_exclusive =
      gpu.compute_mode == ComputeMode::kExclusiveProcess || gpu.compute_mode == ComputeMode::kExclusiveThread;
  if (is_exclusive && !gpu.processes.empty() && !gpu.has_mps) {
    throw DeviceError(gpu.label(),
                      "it is in use by " + describe_processes(gpu) +
                          " and its compute mode is Exclusive_Process: one process at a time. Wait for that "
                          "process, end it, or choose another GPU with CUDA_VISIBLE_DEVICES." +
                          kOrCpu);
  }
}

const Gpu& require_gpu(const GpuSystem& system, int index) {
  require_driver(system);
  for (const Gpu& gpu : system.gpus) {
    if (gpu.index != index) continue;
    require_usable(gpu);
    return gpu;
  }
  refuse("there is no GPU cuda:" + std::to_string(index) + ": the driver reports " +
         std::to_string(system.gpus.size()) +
         (system.visible_devices ? " (CUDA_VISIBLE_DEVICES is \"" + *system.visible_devices + "\")" : "") +
         ". Start at most one process for each GPU.");
}

std::string describe_processes(const Gpu& gpu) {
  std::vector<std::string> parts;
  for (const GpuProcess& process : gpu.processes) {
    parts.push_back("pid " + std::to_string(process.pid) +
                    (process.bytes ? " (" + format_bytes(static_cast<double>(*process.bytes)) + ")" : ""));
  }
  return join(parts);
}

std::string usage_warning(const Gpu& gpu) {
  if (gpu.processes.empty()) return {};
  return gpu.label() + " is in use by " + describe_processes(gpu) +
         ": less memory is left, and steps take longer while they compute";
}

}  // namespace lora_train::device
