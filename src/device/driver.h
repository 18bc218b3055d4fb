// The functions that we call in NVIDIA's two driver libraries, which are opened by name at run time, so that the
// program starts without them. Declared here because only machines with a CUDA toolkit have cuda.h and nvml.h. Sources:
// docs.nvidia.com/cuda/cuda-driver-api (group CUDA_DEVICE), docs.nvidia.com/deploy/nvml-api.
#pragma once

#include <cstddef>

#include "lora_train/base/library.h"

namespace lora_train::device {

using CudaResult = int;  ///< CUresult
using CudaDevice = int;  ///< CUdevice
struct CudaUuid {        ///< CUuuid
  unsigned char bytes[16];
};

inline constexpr CudaResult kCudaSuccess = 0, kErrorNoDevice = 100;

/// Values of CUdevice_attribute.
enum CudaAttribute : int {
  kAttributeMultiprocessorCount = 16,
  kAttributeComputeMode = 20,
  kAttributeComputeCapabilityMajor = 75,
  kAttributeComputeCapabilityMinor = 76,
};

/// Functions of libcuda.so.1. None of them creates a context.
struct CudaDriver {
  SharedLibrary library;
  CudaResult (*init)(unsigned flags) = library.find("cuInit");
  CudaResult (*driver_version)(int* version) = library.find("cuDriverGetVersion");
  CudaResult (*error_name)(CudaResult error, const char** name) = library.find("cuGetErrorName");
  CudaResult (*device_count)(int* count) = library.find("cuDeviceGetCount");
  CudaResult (*device)(CudaDevice* device, int ordinal) = library.find("cuDeviceGet");
  CudaResult (*name)(char* name, int size, CudaDevice device) = library.find("cuDeviceGetName");
  CudaResult (*uuid)(CudaUuid* uuid, CudaDevice device) =
      library.find("cuDeviceGetUuid_v2");  ///< on a GPU split by MIG: the instance's UUID
  CudaResult (*pci_id)(char* id, int size, CudaDevice device) = library.find("cuDeviceGetPCIBusId");
  CudaResult (*total_memory)(std::size_t* bytes, CudaDevice device) = library.find("cuDeviceTotalMem_v2");
  CudaResult (*attribute)(int* value, int attribute, CudaDevice device) = library.find("cuDeviceGetAttribute");
  CudaResult (*can_access_peer)(int* can, CudaDevice from, CudaDevice to) = library.find("cuDeviceCanAccessPeer");
};

using NvmlResult = int;  ///< nvmlReturn_t
struct NvmlDeviceHandle;
using NvmlDevice = NvmlDeviceHandle*;  ///< nvmlDevice_t

inline constexpr NvmlResult kNvmlSuccess = 0;
inline constexpr NvmlResult kNvmlInsufficientSize = 7;
inline constexpr NvmlResult kNvmlFunctionNotFound = 13;
inline constexpr NvmlResult kNvmlGpuIsLost = 15;

struct NvmlMemory {  ///< nvmlMemory_t
  unsigned long long total, free, used;
};
struct NvmlProcess {  ///< nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3
  unsigned pid;
  unsigned long long used_bytes;  ///< all bits set = unknown (NVML_VALUE_NOT_AVAILABLE)
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(NvmlMemory) == 24 && sizeof(NvmlProcess) == 24);

/// Values of nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t.
inline constexpr int kNvmlPeerNvlink = 2, kNvmlPeerOk = 0;

/// Functions of libnvidia-ml.so.1.
struct Nvml {
  SharedLibrary library;
  NvmlResult (*init)() = library.find("nvmlInit_v2");
  NvmlResult (*shutdown)() = library.find("nvmlShutdown");
  const char* (*error_string)(NvmlResult error) = library.find("nvmlErrorString");
  NvmlResult (*device_by_uuid)(const char* uuid, NvmlDevice* device) = library.find("nvmlDeviceGetHandleByUUID");
};

struct NvmlDriver : Nvml {
  NvmlResult (*driver_version)(char* version, unsigned size) = library.find("nvmlSystemGetDriverVersion");
  NvmlResult (*memory)(NvmlDevice device, NvmlMemory* memory) = library.find("nvmlDeviceGetMemoryInfo");
  NvmlResult (*compute_processes)(NvmlDevice device, unsigned* count,
                                  NvmlProcess* processes) = library.find("nvmlDeviceGetComputeRunningProcesses_v3");
  NvmlResult (*peer_status)(NvmlDevice one, NvmlDevice other, int capability,
                            int* status) = library.find("nvmlDeviceGetP2PStatus");
};

struct NvmlUtilization {  ///< nvmlUtilization_t: percent of the last sample period of the driver
  unsigned gpu, memory;
};

/// Values of nvmlTemperatureSensors_t and nvmlClockType_t.
inline constexpr int kNvmlTemperatureGpu = 0, kNvmlClockSm = 1;

/// Bits of nvmlDeviceGetCurrentClocksEventReasons. Others mean no loss (idle), or a user's setting.
inline constexpr unsigned long long kNvmlPowerCap = 0x4, kNvmlHardwareSlowdown = 0x8, kNvmlThermal = 0x20,
                                    kNvmlHardwareThermal = 0x40, kNvmlPowerBrake = 0x80;

/// Those that read a GPU's sensors. They are null if the driver lacks them.
struct NvmlSensors : Nvml {
  NvmlResult (*gpu_of_slice)(NvmlDevice slice,
                             NvmlDevice* gpu) = library.find_if_there("nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
  NvmlResult (*utilization)(NvmlDevice device,
                            NvmlUtilization* percent) = library.find_if_there("nvmlDeviceGetUtilizationRates");
  NvmlResult (*power)(NvmlDevice device, unsigned* milliwatts) = library.find_if_there("nvmlDeviceGetPowerUsage");
  NvmlResult (*energy)(NvmlDevice device, unsigned long long* millijoules) =
      library.find_if_there("nvmlDeviceGetTotalEnergyConsumption");  ///< since the driver was loaded
  NvmlResult (*temperature)(NvmlDevice device, int sensor,
                            unsigned* celsius) = library.find_if_there("nvmlDeviceGetTemperature");
  NvmlResult (*clock)(NvmlDevice device, int type, unsigned* mhz) = library.find_if_there("nvmlDeviceGetClockInfo");
  NvmlResult (*throttle_reasons)(NvmlDevice device, unsigned long long* bits) =
      library.find_if_there("nvmlDeviceGetCurrentClocksEventReasons");
  NvmlResult (*memory)(NvmlDevice device, NvmlMemory* memory) = library.find_if_there("nvmlDeviceGetMemoryInfo");
};

}  // namespace lora_train::device
