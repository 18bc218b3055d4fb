// The GPUs of this machine, asked of the driver itself: without torch, and without a CUDA context (which would hold
// hundreds of MiB of the GPU). libcuda.so.1 and libnvidia-ml.so.1 are opened by name when asked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::device {

/// A process that holds memory of a GPU. In a container its pid may be that of the host.
struct GpuProcess {
  std::uint32_t pid = 0;
  std::optional<std::uint64_t> bytes;  ///< unknown where the driver does not say
};

/// Who may use a GPU (nvidia-smi -c).
enum class ComputeMode { kDefault, kExclusiveThread, kProhibited, kExclusiveProcess };

struct Gpu {
  int index = 0;  ///< as CUDA counts: CUDA_VISIBLE_DEVICES is applied
  std::string name;
  std::string uuid;          ///< "GPU-0123...", "MIG-0123..." for a slice; empty where unknown
  std::string pci_id;        ///< "0000:3b:00.0"
  int major = 0, minor = 0;  ///< compute capability
  int num_multiprocessors = 0;
  std::uint64_t total_bytes = 0;
  std::optional<std::uint64_t> free_bytes;  ///< unknown without libnvidia-ml.so.1
  ComputeMode compute_mode = ComputeMode::kDefault;
  bool has_mps = false;               ///< CUDA's multi-process service runs: an exclusive GPU is then shared through it
  std::vector<GpuProcess> processes;  ///< computing on it, without this process

  /// "sm_90"
  std::string architecture() const;
  /// "cuda:0 (NVIDIA H200)"
  std::string label() const;
};

/// How one GPU reaches the memory of another.
enum class PeerAccess { kSelf, kNvlink, kPcie, kNone };
const char* to_string(PeerAccess value);

/// What was found, and what was not.
struct GpuSystem {
  std::string driver_version;      ///< "580.95.05"; empty where unknown
  int cuda_version = 0;            ///< newest CUDA of libcuda.so.1: 13000 is 13.0; 0 = libcuda.so.1 cannot be used
  std::string library_problem;     ///< why libcuda.so.1 cannot be used
  int init_code = 0;               ///< of cuInit; 0 = success
  std::string init_error;          ///< "CUDA_ERROR_NO_DEVICE"
  std::string management_problem;  ///< why libnvidia-ml.so.1 cannot be used: free memory and processes are unknown then
  std::vector<std::string> device_nodes;       ///< "/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"
  std::optional<std::string> visible_devices;  ///< CUDA_VISIBLE_DEVICES, when set
  std::vector<Gpu> gpus;
  std::vector<std::vector<PeerAccess>> peer_access;  ///< [from][to]

  /// False on a machine that has neither a device node nor a driver that offers a GPU.
  bool has_gpu_hardware() const;
};

/// Where to look; a test names other places.
struct GpuPlaces {
  std::string cuda_library = "libcuda.so.1";
  std::string management_library = "libnvidia-ml.so.1";
  std::filesystem::path root = "/";
};

/// Asks the driver. What does not work is noted in the result; throws nothing of its own. Takes up to seconds where the
/// driver has to start the GPUs. The libraries stay open.
GpuSystem find_gpus(const GpuPlaces& places = {});

/// Device nodes of NVIDIA: /dev/nvidia<N>, /dev/nvidiactl, and /dev/dxg where WSL brings NVIDIA's library.
std::vector<std::string> nvidia_device_nodes(const std::filesystem::path& root = "/");

/// Throws DeviceError, with what was found and what to do, unless the driver works, is new enough and shows a GPU.
void require_driver(const GpuSystem& system);

/// Throws DeviceError for a GPU that this build has no code for, that may not be computed on, or that another process
/// has for itself.
void require_usable(const Gpu& gpu);

/// The GPU of this index, after require_driver and require_usable.
const Gpu& require_gpu(const GpuSystem& system, int index = 0);

/// "pid 4711 (3.0 GiB), pid 12"; empty when nobody else computes on the GPU.
std::string describe_processes(const Gpu& gpu);

/// A warning for a GPU that other processes compute on too; empty when there are none.
std::string usage_warning(const Gpu& gpu);

}  // namespace lora_train::device
