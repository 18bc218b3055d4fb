#include "lora_train/device/gpu.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "driver.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::device {
namespace {

namespace fs = std::filesystem;

bool is_gpu_node(const std::string& name) {
  return name.size() > 6 && name.starts_with("nvidia") &&
         std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// "GPU-01234567-89ab-cdef-0123-456789abcdef"
std::string uuid_text(const CudaUuid& uuid, bool is_slice) {
  std::string text = is_slice ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", uuid.bytes[i]);
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

int attribute(const CudaDriver& cuda, CudaDevice device, int which) {
  int value = 0;
  return cuda.attribute(&value, which, device) == kCudaSuccess ? value : 0;
}

Gpu describe(const CudaDriver& cuda, CudaDevice device, int index) {
  Gpu gpu;
  gpu.index = index;
  char text[256] = {};
  if (cuda.name(text, sizeof text, device) == kCudaSuccess) gpu.name = text;
  CudaUuid uuid{};
  // The driver names a MIG instance "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
  const bool is_slice = gpu.name.find(" MIG ") != std::string::npos;
  if (cuda.uuid(&uuid, device) == kCudaSuccess) gpu.uuid = uuid_text(uuid, is_slice);
  char pci_id[32] = {};
  if (cuda.pci_id(pci_id, sizeof pci_id, device) == kCudaSuccess) gpu.pci_id = pci_id;
  std::size_t bytes = 0;
  if (cuda.total_memory(&bytes, device) == kCudaSuccess) gpu.total_bytes = bytes;
  gpu.major = attribute(cuda, device, kAttributeComputeCapabilityMajor);
  gpu.minor = attribute(cuda, device, kAttributeComputeCapabilityMinor);
  gpu.num_multiprocessors = attribute(cuda, device, kAttributeMultiprocessorCount);
  gpu.compute_mode = static_cast<ComputeMode>(attribute(cuda, device, kAttributeComputeMode));
  return gpu;
}

PeerAccess peer_access(const CudaDriver& cuda, CudaDevice from, CudaDevice to) {
  if (from == to) return PeerAccess::kSelf;
  int can = 0;
  return cuda.can_access_peer(&can, from, to) == kCudaSuccess && can != 0 ? PeerAccess::kPcie : PeerAccess::kNone;
}

void find_devices(const CudaDriver& cuda, GpuSystem& system) {
  int count = 0;
  if (cuda.device_count(&count) != kCudaSuccess) return;
  std::vector<CudaDevice> devices;
  for (int i = 0; i < count; ++i) {
    CudaDevice device = 0;
    if (cuda.device(&device, i) != kCudaSuccess) continue;
    devices.push_back(device);
    system.gpus.push_back(describe(cuda, device, i));
  }
  for (const CudaDevice from : devices) {
    system.peer_access.emplace_back();
    for (const CudaDevice to : devices) system.peer_access.back().push_back(peer_access(cuda, from, to));
  }
}

void ask_cuda(const std::string& library, GpuSystem& system) {
  const CudaDriver cuda{SharedLibrary(library)};
  system.library_problem = cuda.library.problem();
  // An old driver may lack functions; its version tells the user more than their names.
  if (cuda.driver_version != nullptr && cuda.driver_version(&system.cuda_version) != kCudaSuccess) {
    system.cuda_version = 0;
  }
  if (!system.library_problem.empty()) return;
  system.init_code = cuda.init(0);
  if (system.init_code == kCudaSuccess) {
    find_devices(cuda, system);
    return;
  }
  const char* name = nullptr;
  const bool has_name = cuda.error_name(system.init_code, &name) == kCudaSuccess && name != nullptr;
  system.init_error = has_name ? name : fmt::format("CUDA error {}", system.init_code);
}

constexpr int kVersionBytes = 80;  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
constexpr unsigned long long kUnknownBytes = ~0ULL;

std::vector<GpuProcess> other_processes(const NvmlDriver& nvml, NvmlDevice device) {
  std::vector<NvmlProcess> listed(8);
  NvmlResult result = kNvmlInsufficientSize;
  for (int attempt = 0; result == kNvmlInsufficientSize && attempt < 5; ++attempt) {  // more processes may have started
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

/// libcuda.so.1 reports whether there is peer access; NVML reports whether it uses NVLink or PCIe.
void query_links(const NvmlDriver& nvml, const std::vector<NvmlDevice>& devices, GpuSystem& system) {
  for (std::size_t from = 0; from < devices.size(); ++from) {
    for (std::size_t to = 0; to < devices.size(); ++to) {
      PeerAccess& access = system.peer_access[from][to];
      if (access != PeerAccess::kPcie || devices[from] == nullptr || devices[to] == nullptr) continue;
      int status = -1;
      const NvmlResult result = nvml.peer_status(devices[from], devices[to], kNvmlPeerNvlink, &status);
      if (result == kNvmlSuccess && status == kNvmlPeerOk) access = PeerAccess::kNvlink;
    }
  }
}

/// Adds what libnvidia-ml.so.1 knows about the GPUs that libcuda.so.1 found: driver_version, free memory, processes and
/// peer access, or else management_problem.
void ask_management_library(const std::string& library, GpuSystem& system) {
  const NvmlDriver nvml{{SharedLibrary(library)}};
  system.management_problem = nvml.library.problem();
  if (!system.management_problem.empty()) return;
  if (const NvmlResult result = nvml.init(); result != kNvmlSuccess) {
    system.management_problem = fmt::format("{}: {}", library, nvml.error_string(result));
    return;
  }
  char version[kVersionBytes] = {};
  if (nvml.driver_version(version, sizeof version) == kNvmlSuccess) system.driver_version = version;
  std::vector<NvmlDevice> devices(system.gpus.size(), nullptr);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    Gpu& gpu = system.gpus[i];
    if (nvml.device_by_uuid(gpu.uuid.c_str(), &devices[i]) != kNvmlSuccess) {
      devices[i] = nullptr;
      continue;
    }
    NvmlMemory memory{};
    if (nvml.memory(devices[i], &memory) == kNvmlSuccess) gpu.free_bytes = memory.free;
    gpu.processes = other_processes(nvml, devices[i]);
  }
  query_links(nvml, devices, system);
  nvml.shutdown();
}

/// The loaded kernel module's version: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 ...".
std::string kernel_module_version(const fs::path& root) {
  std::ifstream file(root / "proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    const bool is_version =
        std::count(word.begin(), word.end(), '.') >= 1 &&
        std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
    if (is_version) return word;
  }
  return {};
}

bool runs_mps(const fs::path& root) {
  const char* const folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  std::error_code error;
  const bool is_named = folder != nullptr && *folder != '\0';
  return fs::exists((is_named ? fs::path(folder) : root / "tmp/nvidia-mps") / "control", error);
}

constexpr const char* kOrCpu = " To compute on the CPU, set device: cpu.";

std::string cuda_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string driver_text(const GpuSystem& system) {
  return system.driver_version.empty() ? "the NVIDIA driver" : "NVIDIA driver " + system.driver_version;
}

std::string nodes_text(const GpuSystem& system) {
  return system.device_nodes.empty() ? "no device node /dev/nvidia0" : "device nodes " + join(system.device_nodes);
}

std::string no_library(const GpuSystem& system) {
  const std::string version = system.driver_version.empty() ? std::to_string(kOldestDriver) + " or newer"
                                                            : "as the kernel module: " + system.driver_version;
  return fmt::format(
      "libcuda.so.1, the NVIDIA driver's library, cannot be used ({}; {}). Install the driver, {}. In a container: "
      "install the NVIDIA Container Toolkit on the host, and start the container with --gpus all. In WSL: export "
      "LD_LIBRARY_PATH=/usr/lib/wsl/lib.",
      system.library_problem, nodes_text(system), version);
}

std::string too_old(const GpuSystem& system) {
  return fmt::format(
      "{} is too old: it supports CUDA up to {}, and this build needs CUDA {}, which needs driver {} or newer. Update "
      "the driver (for a container: on the host). On a data-centre GPU, installing the package cuda-compat-13-0 works "
      "too.",
      driver_text(system), cuda_text(system.cuda_version), cuda_text(kOldestCudaVersion), kOldestDriver);
}

std::string no_device(const GpuSystem& system) {
  if (system.visible_devices) {
    return "no GPU is visible: CUDA_VISIBLE_DEVICES is \"" + *system.visible_devices +
           "\". Unset it, or set it to the number of a GPU that nvidia-smi -L lists (the first is 0).";
  }
  return fmt::format(
      "{} finds no GPU ({}). Check whether nvidia-smi -L lists it, and look for NVRM in dmesg. In a container, all of "
      "its device nodes must be passed in (--gpus all).",
      driver_text(system), nodes_text(system));
}

/// What to do about CUresult values of cuInit; CUDA's name of the error comes first in the message.
struct InitAdvice {
  int first_code, last_code;
  const char* text;
};

constexpr InitAdvice kInitAdvice[] = {
    {34, 34,
     "The libcuda.so.1 that was found is the CUDA toolkit's stub for linking: remove its folder (lib64/stubs) from "
     "LD_LIBRARY_PATH."},
    {46, 46, "Another process uses the GPU exclusively, or its compute mode forbids computing: check nvidia-smi."},
    {101, 101, "Check that CUDA_VISIBLE_DEVICES names GPUs that nvidia-smi -L lists."},
    {304, 304, "Check that this user may read and write /dev/nvidia*, and run nvidia-smi once."},
    {802, 802,
     "On a machine with NVSwitch (HGX, DGX), the fabric manager must run, in the same version as the driver: sudo "
     "systemctl start nvidia-fabricmanager."},
    {803, 803,
     "libcuda.so.1 has a different version than the loaded kernel module. After a driver update, restart the machine. "
     "In a container, remove libcuda.so.1 from the image."},
    {804, 804,
     "The package cuda-compat only works on data-centre GPUs: remove it from LD_LIBRARY_PATH, and update the driver."},
    {805, 809,
     "CUDA MPS (Multi-Process Service) cannot be reached: restart nvidia-cuda-mps-control, or unset "
     "CUDA_MPS_PIPE_DIRECTORY."},
    {999, 999,
     "Often the kernel module nvidia_uvm is missing (sudo modprobe nvidia_uvm), or the GPU has failed: look for NVRM "
     "or Xid in dmesg, and restart the machine."},
    {0, INT_MAX, "Check whether nvidia-smi works, and look for NVRM in dmesg."},
};

std::string init_failure(const GpuSystem& system) {
  const auto* const advice = std::ranges::find_if(kInitAdvice, [&](const InitAdvice& row) {
    return system.init_code >= row.first_code && system.init_code <= row.last_code;
  });
  return fmt::format("{} does not start: cuInit returns {} ({}). {}", driver_text(system), system.init_error,
                     system.init_code, advice->text);
}

[[noreturn]] void refuse(const std::string& message) { throw DeviceError("device", message + kOrCpu); }

}  // namespace

std::string Gpu::architecture() const { return fmt::format("sm_{}{}", major, minor); }

std::string Gpu::label() const { return fmt::format("cuda:{} ({})", index, name); }

const char* to_string(PeerAccess value) {
  switch (value) {
    case PeerAccess::kSelf: return "self";
    case PeerAccess::kNvlink: return "nvlink";
    case PeerAccess::kPcie: return "pcie";
    case PeerAccess::kNone: break;
  }
  return "none";
}

std::vector<std::string> nvidia_device_nodes(const fs::path& root) {
  std::vector<std::string> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "dev", error)) {
    const std::string name = entry.path().filename().string();
    if (is_gpu_node(name) || name == "nvidiactl") nodes.push_back("/dev/" + name);
  }
  // WSL has this node for GPUs of any vendor.
  if (fs::exists(root / "dev/dxg", error) && fs::exists(root / "usr/lib/wsl/lib/libcuda.so.1", error)) {
    nodes.emplace_back("/dev/dxg");
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

bool GpuSystem::has_gpu_hardware() const {
  if (!device_nodes.empty() || !gpus.empty()) return true;
  // The driver's library may be installed on a machine without a GPU; then cuInit finds none.
  return cuda_version != 0 && init_code != kErrorNoDevice;
}

GpuSystem find_gpus(const GpuPlaces& places) {
  GpuSystem system;
  system.device_nodes = nvidia_device_nodes(places.root);
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    system.visible_devices = visible;
  }
  ask_cuda(places.cuda_library, system);
  const bool has_mps = runs_mps(places.root);
  for (Gpu& gpu : system.gpus) gpu.has_mps = has_mps;
  ask_management_library(places.management_library, system);
  if (system.driver_version.empty()) system.driver_version = kernel_module_version(places.root);
  return system;
}

void require_driver(const GpuSystem& system) {
  const bool has_library = system.library_problem.empty(), is_old = system.cuda_version < kOldestCudaVersion;
  if (is_old && system.cuda_version != 0) refuse(too_old(system));
  if (!has_library) refuse(no_library(system));
  if (system.init_code == kErrorNoDevice || (system.init_code == kCudaSuccess && system.gpus.empty()))
    refuse(no_device(system));
  if (system.init_code != kCudaSuccess) refuse(init_failure(system));
}

void require_usable(const Gpu& gpu) {
  const bool is_exclusive =
      gpu.compute_mode == ComputeMode::kExclusiveProcess || gpu.compute_mode == ComputeMode::kExclusiveThread;
  std::string problem;
  if (code_for(gpu.major, gpu.minor) == CodeFor::kNone) {
    problem = fmt::format("its compute capability is {}.{} ({}), but this build has code for {}", gpu.major, gpu.minor,
                          gpu.architecture(), built_architectures_text());
  } else if (gpu.compute_mode == ComputeMode::kProhibited) {
    problem = fmt::format("its compute mode is Prohibited, which sudo nvidia-smi -i {} -c DEFAULT changes", gpu.pci_id);
  } else if (is_exclusive && !gpu.processes.empty() && !gpu.has_mps) {
    problem = fmt::format("it is in use by {}, and its compute mode is Exclusive_Process: one process at a time",
                          describe_processes(gpu));
  } else {
    return;
  }
  throw DeviceError(gpu.label(), "{}. Choose another GPU with CUDA_VISIBLE_DEVICES.{}", problem, kOrCpu);
}

const Gpu& require_gpu(const GpuSystem& system, int index) {
  require_driver(system);
  for (const Gpu& gpu : system.gpus) {
    if (gpu.index != index) continue;
    require_usable(gpu);
    return gpu;
  }
  refuse(fmt::format(
      "there is no GPU cuda:{}: the driver reports {}{}. Start at most one process per GPU.", index, system.gpus.size(),
      system.visible_devices ? fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", *system.visible_devices) : ""));
}

const std::vector<CudaArchitecture>& built_architectures() {
  static const std::vector<CudaArchitecture> built = [] {
    std::vector<CudaArchitecture> list;
    std::istringstream words(LORA_TRAIN_CUDA_ARCHITECTURES);
    for (std::string word; words >> word;) {
      const int number = std::stoi(word);
      list.push_back({number / 10, number % 10, word.ends_with("-virtual")});
    }
    return list;
  }();
  return built;
}

std::string built_architectures_text() {
  std::string text;
  for (const auto& built : built_architectures()) {
    if (!text.empty()) text += ' ';
    text += fmt::format("{}{}{}", built.is_ptx ? "compute_" : "sm_", built.major, built.minor);
  }
  return text;
}

CodeFor code_for(int major, int minor, const std::vector<CudaArchitecture>& built) {
  CodeFor found = CodeFor::kNone;
  for (const auto& code : built) {
    const bool is_later = major > code.major || (major == code.major && minor >= code.minor);
    // Machine code runs on GPUs with the same major number and the same or a later minor one.
    if (!code.is_ptx && major == code.major && is_later) return CodeFor::kMachineCode;
    if (code.is_ptx && is_later) found = CodeFor::kPtx;
  }
  return found;
}

std::filesystem::path cuda_library_file() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lib" / "liblora_train_cuda.so";
}

std::string describe_processes(const Gpu& gpu) {
  std::vector<std::string> parts;
  for (const GpuProcess& process : gpu.processes) {
    parts.push_back(
        fmt::format("pid {}{}", process.pid, process.bytes ? " (" + format_bytes(*process.bytes) + ")" : ""));
  }
  return join(parts);
}

std::string usage_warning(const Gpu& gpu) {
  if (gpu.processes.empty()) return {};
  return gpu.label() + " is in use by " + describe_processes(gpu) + ", which leaves less memory and slows steps down";
}

}  // namespace lora_train::device
