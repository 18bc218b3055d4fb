// The GPUs of this machine, as the driver reports them, and those that this build supports. Needs neither torch nor a
// CUDA context (which would take hundreds of MiB of GPU memory). Opens libcuda.so.1 and libnvidia-ml.so.1 by name on
// first use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lora_train::device {

/// A process that holds GPU memory. In a container, its pid may be the one on the host.
struct GpuProcess {
  std::uint32_t pid = 0;
  std::optional<std::uint64_t> bytes;  ///< empty if the driver does not say
};

/// Who may use a GPU (nvidia-smi -c).
enum class ComputeMode { kDefault, kExclusiveThread, kProhibited, kExclusiveProcess };

struct Gpu {
  int index = 0;  ///< CUDA's index, after CUDA_VISIBLE_DEVICES
  std::string name;
  std::string uuid;          ///< "GPU-0123...", or "MIG-0123..." for a MIG instance; empty if unknown
  std::string pci_id;        ///< "0000:3b:00.0"
  int major = 0, minor = 0;  ///< compute capability
  int num_multiprocessors = 0;
  std::uint64_t total_bytes = 0;
  std::optional<std::uint64_t> free_bytes;  ///< empty without libnvidia-ml.so.1
  ComputeMode compute_mode = ComputeMode::kDefault;
  bool has_mps = false;  ///< CUDA MPS (Multi-Process Service), through which processes share the GPU, is running
  std::vector<GpuProcess> processes;  ///< other processes that compute on it

  /// "sm_90"
  std::string architecture() const;
  /// "cuda:0 (NVIDIA H200)"
  std::string label() const;
};

/// The way one GPU reaches the memory of another.
enum class PeerAccess { kSelf, kNvlink, kPcie, kNone };
const char* to_string(PeerAccess value);

/// The result of find_gpus(), and why the rest is missing.
struct GpuSystem {
  std::string driver_version;  ///< "580.95.05"; empty if unknown
  int cuda_version = 0;  ///< newest CUDA that libcuda.so.1 supports: 13000 is 13.0; 0 = libcuda.so.1 cannot be used
  std::string library_problem;     ///< why libcuda.so.1 cannot be used
  int init_code = 0;               ///< result of cuInit; 0 = success
  std::string init_error;          ///< "CUDA_ERROR_NO_DEVICE"
  std::string management_problem;  ///< why libnvidia-ml.so.1 cannot be used; free memory and processes are then unknown
  std::vector<std::string> device_nodes;       ///< "/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"
  std::optional<std::string> visible_devices;  ///< CUDA_VISIBLE_DEVICES, if set
  std::vector<Gpu> gpus;
  std::vector<std::vector<PeerAccess>> peer_access;  ///< [from][to]

  /// False if the machine has no device node and its driver reports no GPU.
  bool has_gpu_hardware() const;
};

/// Where to look. Tests set other paths.
struct GpuPlaces {
  std::string cuda_library = "libcuda.so.1";
  std::string management_library = "libnvidia-ml.so.1";
  std::filesystem::path root = "/";
};

/// Queries the driver. Records failures in the result instead of throwing. Takes up to a few seconds if the driver must
/// initialise the GPUs. The libraries stay open.
GpuSystem find_gpus(const GpuPlaces& places = {});

/// NVIDIA's device nodes: /dev/nvidia<N>, /dev/nvidiactl, and /dev/dxg if WSL provides NVIDIA's library.
std::vector<std::string> nvidia_device_nodes(const std::filesystem::path& root = "/");

/// Throws DeviceError, with the problem and what to do, unless the driver works, is new enough and reports a GPU.
void require_driver(const GpuSystem& system);

/// Throws DeviceError if this build has no code for the GPU, if its compute mode forbids computing, or if another
/// process uses it exclusively.
void require_usable(const Gpu& gpu);

/// Returns the GPU with this index, after require_driver and require_usable.
const Gpu& require_gpu(const GpuSystem& system, int index = 0);

/// "pid 4711 (3.0 GiB), pid 12"; empty if no other process computes on the GPU.
std::string describe_processes(const Gpu& gpu);

/// A warning that other processes also compute on the GPU; empty if there are none.
std::string usage_warning(const Gpu& gpu);

/// A compute capability that our CUDA code was compiled for. `is_ptx`: compiled to PTX, which the driver compiles for
/// later GPUs.
struct CudaArchitecture {
  int major = 0, minor = 0;
  bool is_ptx = false;
};

/// The architectures of this build (LORA_TRAIN_CUDA_ARCHITECTURES, else those of cmake/cuda_architectures.txt).
const std::vector<CudaArchitecture>& built_architectures();

/// "sm_80 sm_86 sm_89 sm_90 sm_100 sm_120 compute_120"
std::string built_architectures_text();

/// The form in which our code runs on a GPU of this compute capability.
enum class CodeFor { kNone, kMachineCode, kPtx };
CodeFor code_for(int major, int minor, const std::vector<CudaArchitecture>& built = built_architectures());

/// The oldest driver that runs our CUDA code, and the CUDA version that it supports.
inline constexpr int kOldestDriver = 580;
inline constexpr int kOldestCudaVersion = 13000;

/// The path of lib/liblora_train_cuda.so next to the program. A CPU-only build has no such file.
std::filesystem::path cuda_library_file();

}  // namespace lora_train::device
