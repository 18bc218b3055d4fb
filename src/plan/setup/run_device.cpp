#include "lora_train/plan/setup/run_device.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/device/gpu.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/dispatch/implementation.h"

namespace lora_train::plan {
namespace {

constexpr std::int64_t kLargestUnaskedCpuModel = 1'000'000'000;

bool wants_cuda(Device device) {
  return device == Device::kCuda || (device == Device::kAuto && !device::nvidia_device_nodes().empty());
}

void refuse_large_model(Device device, const model::ModelConfig& config) {
  const std::int64_t count = model::num_parameters(config);
  if (device == Device::kCpu || count <= kLargestUnaskedCpuModel) return;
  throw DeviceError("device", "no NVIDIA device was found and the model has " + format_count(count) +
                                  " parameters, which is slow on a CPU; set device: cpu to use the CPU anyway");
}

void choose_kernels(const KernelChoices& choices) {
  kernels::set_all_kernel_settings(choices.all);
  for (const auto& [name, choice] : choices.single) {
    const auto found = std::find(kKernelNames.begin(), kKernelNames.end(), name);
    kernels::set_kernel_setting(static_cast<KernelName>(found - kKernelNames.begin()), choice);
  }
}

int gpu_of(LocalRank rank, const device::GpuSystem& system) {
  const auto num_gpus = std::ssize(system.gpus);
  if (rank.index < num_gpus) return rank.index;
  if (num_gpus <= 1) return 0;  // require_gpu() refuses none; who shares one is found out together
  throw DeviceError(
      "device", std::to_string(rank.count) + " ranks were started on this host, which has " + std::to_string(num_gpus) +
                    " GPUs" +
                    (system.visible_devices ? " (CUDA_VISIBLE_DEVICES is \"" + *system.visible_devices + "\")" : "") +
                    ". Start at most one rank for each GPU.");
}

RunDevice start_cuda(const RunSection& section, LocalRank rank) {
  const device::GpuSystem system = device::find_gpus();
  const device::Gpu& gpu = device::require_gpu(system, gpu_of(rank, system));
  if (const std::string warning = device::usage_warning(gpu); !warning.empty()) log_warning(warning);
  if (const auto file = device::cuda_library_file(); !std::filesystem::exists(file)) {
    throw DeviceError("device",
                      "the CUDA library is missing, expected " + file.string() + ": this is a CPU-only build, and " +
                          gpu.label() +
                          " cannot be used. Build on a machine with nvcc (scripts/install_deps.sh installs it) "
                          "and copy the whole folder, or set device: cpu to compute on the CPU.");
  }
  const kernels::CudaFolders folders = kernels::default_cuda_folders();
  const kernels::CudaLibrary& library = kernels::load_cuda_library(folders.library, folders.torch);
  kernels::start_cuda({gpu.index, section.tf32, section.deterministic});
  at::globalContext().setDeterministicAlgorithms(section.deterministic, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setAllowTF32CuBLAS(section.tf32);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu.index));
  kernels::use_native_kernels({library.native_kernels, library.stream, false});
  kernels::reserve_native_workspace(kernels::kWorkspaceElements, device);
  log_info("device: " + gpu.label() + ", driver " + system.driver_version);
  return {
      device, gpu.name, gpu.num_multiprocessors, gpu.uuid, system.driver_version, static_cast<int>(system.gpus.size())};
}

/// What a profile asks for that only a GPU has.
std::vector<std::string> keys_for_gpus(const Profile& profile) {
  const RunSection& run = profile.run;
  const std::pair<const char*, bool> settings[] = {
      {"tf32", run.tf32},
      {"cuda_graphs", run.cuda_graphs != CudaGraphs::kOff},
      {"tuning", run.tuning != Tuning::kOff},
      {"attn_implementation",
       run.attn_implementation == AttnImplementation::kFa2 || run.attn_implementation == AttnImplementation::kCudnn},
      {"dataloader_pin_memory", profile.data.dataloader_pin_memory}};
  std::vector<std::string> keys;
  for (const auto& [key, is_asked_for] : settings) {
    if (is_asked_for && profile.is_given(key)) keys.emplace_back(key);
  }
  return keys;
}

/// One line for all that is different on a CPU.
void log_cpu(const Profile& profile) {
  std::vector<std::string> keys = keys_for_gpus(profile);
  const bool is_found = profile.run.device == Device::kAuto;
  if (keys.empty() && !is_found) return;
  if (keys.empty()) keys = {"cuda_graphs", "tf32"};
  log_info(std::string("device: CPU") + (is_found ? ", because this machine has no NVIDIA device" : "") +
           "; settings for a GPU (" + join(keys) + ") do nothing");
}

}  // namespace

RunDevice start_device(const Profile& profile, const model::ModelConfig& config, LocalRank rank) {
  const RunSection& section = profile.run;
  choose_kernels(section.kernels);
  if (wants_cuda(section.device)) return start_cuda(section, rank);
  refuse_large_model(section.device, config);
  log_cpu(profile);
  return {};
}

DeviceMemory device_memory(const RunDevice& device) {
  DeviceMemory memory;
  if (!device.is_cuda()) return memory;
  const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(device.device.index());
  constexpr std::size_t kAll = 0;  // of small and large pool together
  memory.allocated = stats.allocated_bytes[kAll].current;
  memory.reserved = stats.reserved_bytes[kAll].current;
  memory.peak_allocated = stats.allocated_bytes[kAll].peak;
  memory.peak_reserved = stats.reserved_bytes[kAll].peak;
  memory.num_segments = stats.segment[kAll].allocated;
  memory.num_allocations = stats.allocation[kAll].allocated;
  return memory;
}

void reset_peak_memory(const RunDevice& device) {
  if (device.is_cuda()) at::getDeviceAllocator(at::kCUDA)->resetPeakStats(device.device.index());
}

DeviceRoom device_room(const RunDevice& device) {
  if (!device.is_cuda()) return {};
  const auto [free, total] = at::getDeviceAllocator(at::kCUDA)->getMemoryInfo(device.device.index());
  return {static_cast<std::int64_t>(total), static_cast<std::int64_t>(free)};
}

std::string memory_in_words(const RunDevice& device) {
  const DeviceMemory memory = device_memory(device);
  const auto words = [](std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  return words(memory.reserved) + " of " + words(device_room(device).total) + " in use, at most " +
         words(memory.peak_reserved) + " so far";
}

void release_unused_memory(const RunDevice& device) {
  if (device.is_cuda()) at::getDeviceAllocator(at::kCUDA)->emptyCache();
}

c10::Stream compute_stream(const RunDevice& device) {
  return c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device.device);
}

void wait_for(const RunDevice& device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(device.device.index());
}

bool is_done(const RunDevice& device) noexcept {
  try {
    wait_for(device);
    return true;
  } catch (...) {  // the call that used the device reports the error
    return false;
  }
}

void keep_forever(at::Tensor& tensor) noexcept { static_cast<void>(tensor.unsafeReleaseTensorImpl()); }

HostCopy::HostCopy(const at::Tensor& values) : values_(values.to(at::kCPU, /*non_blocking=*/true)) {
  if (!values.is_cuda()) return;
  arrived_.emplace(at::kCUDA);
  arrived_->record(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(values.device()));
}

HostCopy::~HostCopy() {
  if (arrived_ && values_.defined() && !is_done({.device = arrived_->device()})) keep_forever(values_);
}

const at::Tensor& HostCopy::wait() {
  if (arrived_) arrived_->synchronize();
  arrived_.reset();
  return values_;
}

}  // namespace lora_train::plan
