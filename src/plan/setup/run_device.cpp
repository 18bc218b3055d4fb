#include "lora_train/plan/setup/run_device.h"

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "busy_cores.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/device/gpu.h"
#include "lora_train/device/host.h"
#include "lora_train/kernels/aten.h"
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

int gpu_of(const launch::World& world, const device::GpuSystem& system) {
  const auto num_gpus = std::ssize(system.gpus);
  if (world.local_rank < num_gpus) return world.local_rank;
  if (num_gpus <= 1) return 0;  // require_gpu() refuses no GPU; refuse_unfit_devices() finds shared ones
  throw DeviceError("device",
                    "{} ranks were started on this host, which has {} GPUs{}. Start at most one rank per GPU.",
                    world.local_size, num_gpus,
                    system.visible_devices ? " (CUDA_VISIBLE_DEVICES is \"" + *system.visible_devices + "\")" : "");
}

RunDevice start_cuda(const RunSection& section, const launch::World& world) {
  const device::GpuSystem system = device::find_gpus();
  const device::Gpu& gpu = device::require_gpu(system, gpu_of(world, system));
  if (const std::string warning = device::usage_warning(gpu); !warning.empty()) log_warning(warning);
  if (const auto file = device::cuda_library_file(); !std::filesystem::exists(file)) {
    throw DeviceError("device",
                      "the CUDA library is missing, expected {}: this is a CPU-only build, and {} cannot be used. "
                      "Build on a machine with nvcc (scripts/install_deps.sh installs it) and copy the whole folder, "
                      "or set device: cpu to compute on the CPU.",
                      file.string(), gpu.label());
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
  log_info("device: {}, driver {}", gpu.label(), system.driver_version);
  return {
      device, gpu.name, gpu.num_multiprocessors, gpu.uuid, system.driver_version, static_cast<int>(system.gpus.size())};
}

/// Logs in one line which given keys have no effect on a CPU.
void log_cpu(const Profile& profile) {
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
  const bool is_found = run.device == Device::kAuto;
  if (keys.empty() && !is_found) return;
  if (keys.empty()) keys = {"cuda_graphs", "tf32"};
  log_info("device: CPU{}; GPU settings ({}) have no effect",
           is_found ? ", because this machine has no NVIDIA device" : "", join(keys));
}

/// The hyperthreads of a core share its vector and tile units.
void use_physical_cores() {
  const std::vector<int> cpus = device::usable_cpus();
  const int num_cores = device::count_physical_cores(cpus);
  if (cpus.empty() || std::getenv("OMP_NUM_THREADS") != nullptr || at::get_num_threads() <= num_cores) return;
  at::set_num_threads(num_cores);
  log_info("threads: {}, one per physical core ({} hyperthreads)", num_cores, cpus.size());
}

using ranks::Communicator;

void divide_cores(Communicator& ranks) {
  if (ranks.world_size() == 1) return;
  const std::vector<int> cpus = device::usable_cpus();
  const std::string own = launch::host_id() + " " + nlohmann::json(cpus).dump();
  const std::vector<std::string> all = ranks.all_gather(own);  // even if only the others need it
  if (cpus.empty() || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const auto num_sharing = static_cast<int>(std::count(all.begin(), all.end(), own));
  at::set_num_threads(std::max(1, device::count_physical_cores(cpus) / num_sharing));
}

void refuse_unfit_devices(const RunDevice& device, int num_local_ranks) {
  const std::vector<std::string> all = device.ranks->all_gather(device.uuid);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].empty() == all[0].empty()) continue;
    throw ConfigError("device",
                      "rank {} of {} computes on a GPU and rank {} on its CPU. Let all ranks see GPUs, or set device: "
                      "cpu",
                      all[0].empty() ? rank : 0, all.size(), all[0].empty() ? 0 : rank);
  }
  const char* const may_share = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");  // from NCCL 2.30 on
  if (may_share != nullptr && std::string_view(may_share) == "1") return;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto first = static_cast<std::size_t>(std::find(all.begin(), all.end(), all[rank]) - all.begin());
    if (all[rank].empty() || first == rank) continue;
    throw DeviceError("device",
                      "ranks {} and {} of {} see the same GPU ({}). Start at most one rank per GPU: {} were started on "
                      "this host.",
                      first, rank, all.size(), all[rank], num_local_ranks);
  }
}

}  // namespace

RunDevice start_device(const Profile& profile, const model::ModelConfig& config, const launch::World& world) {
  const RunSection& section = profile.run;
  choose_kernels(section.kernels);
  if (wants_cuda(section.device)) return start_cuda(section, world);
  refuse_large_model(section.device, config);
  log_cpu(profile);
  use_physical_cores();
  return {.busy_cores = std::make_shared<BusyCoresWatch>(device::usable_cpus(), at::get_num_threads())};
}

DeviceMemory device_memory(const RunDevice& device) {
  DeviceMemory memory;
  if (!device.is_cuda()) return memory;
  const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(device.device.index());
  constexpr std::size_t kAll = 0;  // small and large pool together
  memory.allocated = stats.allocated_bytes[kAll].current;
  memory.reserved = stats.reserved_bytes[kAll].current;
  memory.peak_allocated = stats.allocated_bytes[kAll].peak;
  memory.peak_reserved = stats.reserved_bytes[kAll].peak;
  memory.num_segments = stats.segment[kAll].allocated;
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
  return fmt::format("{} of {} in use, at most {} so far", format_bytes(memory.reserved),
                     format_bytes(device_room(device).total), format_bytes(memory.peak_reserved));
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

RunDevice start_device(const Profile& profile, const model::ModelConfig& config, const launch::World& world,
                       const std::shared_ptr<Communicator>& ranks) {
  divide_cores(*ranks);
  RunDevice device = start_device(profile, config, world);
  device.ranks = ranks;
  refuse_unfit_devices(device, world.local_size);
  return device;
}

void require_equal(Communicator& ranks, const std::map<std::string, std::string>& own) {
  const std::vector<std::string> all = ranks.all_gather(nlohmann::json(own).dump());
  const auto first = nlohmann::json::parse(all[0]);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto other = nlohmann::json::parse(all[rank]);
    for (const auto& [what, value] : first.items()) {
      if (other[what] == value) continue;
      throw ConfigError(fmt::format("rank {} of {}", rank, all.size()),
                        "differs from rank 0 in its {} ({} instead of {}). Give all ranks the same command, files and "
                        "program; paths must lead to the same files on every node",
                        what, other[what].get<std::string>(), value.get<std::string>());
    }
  }
}

int work_as_rank(Communicator& ranks, const std::function<int()>& work) {
  std::optional<StopError> stop;
  int exit_code = 0;
  try {
    try {
      exit_code = work();
    } catch (const StopError& error) {
      stop = error;
      exit_code = static_cast<int>(ExitCode::kStopped);
    }
    exit_code = ranks.leave(exit_code);
  } catch (...) {
    const ErrorReport error = describe_current_exception();
    if (ranks.report(error)) throw;
    throw PeerError(error.where, error.message, error.kind, error.code);
  }
  if (stop) throw *stop;
  return exit_code;
}

}  // namespace lora_train::plan
