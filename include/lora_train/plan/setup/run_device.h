// The device that a run computes on, and its ranks. On a CPU, starting and waiting do nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lora_train/config/keys/profile.h"
#include "lora_train/launch/world.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/ranks/communicator.h"

namespace lora_train::plan {

class BusyCoresWatch;

struct RunDevice {
  at::Device device = at::kCPU;
  std::string name = "cpu";     ///< "NVIDIA H200"
  int num_multiprocessors = 0;  ///< on a GPU
  std::string uuid = {};        ///< on a GPU: "GPU-..."
  std::string driver = {};      ///< on a GPU: its version
  int num_gpus = 0;             ///< GPUs that this process sees
  std::shared_ptr<ranks::Communicator> ranks = std::make_shared<ranks::OneRank>();
  std::shared_ptr<BusyCoresWatch> busy_cores = {};  ///< on a CPU: how its threads wait

  bool is_cuda() const { return device.is_cuda(); }
};

/// Chooses the device by profile and machine, loads the CUDA library if needed, and applies the keys kernels,
/// attn_implementation, tf32 and deterministic. Call it before putting anything on the device. Throws DeviceError (exit
/// 6) for an unusable device, for more ranks than GPUs, and for a large model on a CPU that the profile does not ask
/// for. Local rank r takes GPU r, or the only one that it sees. On a CPU, logs one line naming the given keys that have
/// no effect there, and computes with at most one thread per physical core, unless OMP_NUM_THREADS is set.
RunDevice start_device(const Profile& profile, const model::ModelConfig& config, const launch::World& world = {});

/// Bytes of GPU memory that LibTorch holds (`reserved`), and the part that tensors use (`allocated`). Compare a plan
/// (plan/memory_plan.h) with `reserved`, which also includes the temporary memory of captured graphs, and fragments,
/// for which the plan has a reserve. Peaks count from reset_peak_memory(). Does not call the driver.
struct DeviceMemory {
  std::int64_t allocated = 0, reserved = 0, peak_allocated = 0, peak_reserved = 0;
  std::int64_t num_segments = 0;  ///< blocks allocated from the driver so far
};
DeviceMemory device_memory(const RunDevice& device);
/// Resets the peaks to the memory in use now.
void reset_peak_memory(const RunDevice& device);

/// Total and free bytes of a GPU, from the driver.
struct DeviceRoom {
  std::int64_t total = 0, free = 0;
};
DeviceRoom device_room(const RunDevice& device);

/// "12.1 GiB of 139.8 GiB in use, at most 14.0 GiB so far"
std::string memory_in_words(const RunDevice& device);

/// Returns memory that no tensor uses to the driver.
void release_unused_memory(const RunDevice& device);

/// The stream on which the GPU computes.
c10::Stream compute_stream(const RunDevice& device);

/// Waits until the device has finished all enqueued work.
void wait_for(const RunDevice& device);

/// Like wait_for(), for destructors of memory that the device may still copy from or to. Returns false if the device
/// has failed: then keep page-locked memory, because releasing it makes LibTorch query the device and throw.
bool is_done(const RunDevice& device) noexcept;
/// Keeps the memory of a tensor until the process exits.
void keep_forever(at::Tensor& tensor) noexcept;

/// A tensor on its way to host memory, after all work enqueued on the compute stream. On a CPU, the tensor itself.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& values);  ///< enqueues the copy
  ~HostCopy();
  HostCopy(HostCopy&&) = default;
  HostCopy& operator=(HostCopy&&) = default;
  const at::Tensor& wait();  ///< the values, once they have arrived

 private:
  at::Tensor values_;
  std::optional<c10::Event> arrived_;  ///< on a GPU
};

/// start_device() for one of several ranks, stored in the result. Its threads get their share of the physical cores
/// that it shares with other ranks, unless OMP_NUM_THREADS is set. Throws ConfigError if some ranks compute on GPUs and
/// others do not. Throws DeviceError, naming ranks and GPU, if two share a GPU, unless NCCL_MULTI_RANK_GPU_ENABLE=1
/// says that NCCL can. A collective.
RunDevice start_device(const Profile& profile, const model::ModelConfig& config, const launch::World& world,
                       const std::shared_ptr<ranks::Communicator>& ranks);

/// Compares values by name. Throws the same ConfigError on all ranks, naming the first rank whose value differs from
/// rank 0's. A collective.
void require_equal(ranks::Communicator& ranks, const std::map<std::string, std::string>& own);

/// Does the work of a rank and leaves. Returns the exit code of rank 0 once all ranks have one. Throws a StopError,
/// which all ranks get together, once all have left. If `work` throws anything else, reports it to the other ranks; if
/// one of them has failed earlier, throws that one's PeerError instead.
int work_as_rank(ranks::Communicator& ranks, const std::function<int()>& work);

}  // namespace lora_train::plan
