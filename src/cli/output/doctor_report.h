// Findings of `doctor` (libraries, disk speed, GPUs, kernels), judged line by line, as a table and as JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_loader.h"
#include "lora_train/bench/doctor/doctor.h"
#include "lora_train/device/gpu.h"
#include "lora_train/device/host.h"

namespace lora_train::cli {

struct LibraryVersion {
  std::string name;     ///< "NCCL"
  std::string version;  ///< "2.28.9", as the library reports it; empty if it cannot be loaded
  std::string problem;  ///< why it cannot be loaded
};

/// NCCL, cuDNN and cuBLASLt, loaded from torch's neighbouring wheels, else from where the system's loader finds them.
/// They stay loaded. Empty for a CPU build of torch, which needs none.
std::vector<LibraryVersion> library_versions(const TorchInstallation& torch);

/// The architectures of our CUDA code, an array of texts.
nlohmann::ordered_json gpu_architectures(bool has_cuda_library);

/// 22809 -> "2.28.9": the version scheme of all three.
std::string version_of_number(unsigned long number);

struct DiskSpeed {
  std::filesystem::path folder;
  std::uint64_t free_bytes = 0;  ///< for this user
  std::uint64_t num_bytes = 0;   ///< written and read to measure; 0 = not measured
  double write_bytes_per_s = 0;  ///< sequential, with the fsync at the end
  double read_bytes_per_s = 0;   ///< sequential, after asking the kernel to forget the file; memory speed if it did not
};

/// The folder, or the nearest one above it that exists.
std::filesystem::path existing_folder(std::filesystem::path folder);

/// Measures only free space. Throws IoError.
DiskSpeed look_at_disk(const std::filesystem::path& folder);

/// Writes at most `most_bytes`, a quarter of the free space, or 5 s worth of data into a file without a name, syncs,
/// and reads it back. The file disappears with the process, whatever ends it. Throws IoError.
DiskSpeed measure_disk(const std::filesystem::path& folder, std::uint64_t most_bytes = std::uint64_t{256} << 20);

/// All results. A problem explains why its neighbouring member is empty.
struct DoctorFindings {
  std::optional<TorchInstallation> torch;
  std::string torch_problem;
  std::string engine_problem;
  bool has_cuda_library = false;  ///< lib/liblora_train_cuda.so; without it this is a CPU-only build
  device::Host host;
  std::uint64_t available_memory = 0;  ///< host memory, for this process
  device::GpuSystem gpus;
  std::vector<LibraryVersion> libraries;
  std::optional<DiskSpeed> disk;
  std::string disk_problem;
  std::string kernels_place;  ///< "CPU" or "cuda:0 (NVIDIA H200)"; empty if no kernel should run
  std::string kernels_problem;
  std::vector<bench::KernelCheck> kernels;
};

enum class CheckStatus { kOk, kNote, kFailed };

/// One line of the table.
struct DoctorCheck {
  std::string name;
  std::string value;
  CheckStatus status = CheckStatus::kOk;
  std::string advice = {};  ///< what to do; kOk rarely has any
  bool is_detail = false;   ///< a kernel: the table only counts those that are ok
};

DoctorCheck judge(const bench::KernelCheck& kernel);
/// The line of a check, printed once it is known: "swiglu forward fp32   N=3 F=5: error 1.5e-07, at most 1e-05; 12.5
/// us, reference 40.0 us   ok". Two spaces or more end the name and the figures.
std::string kernel_line(const bench::KernelCheck& kernel);

/// Judges the findings. A machine without a GPU gets a note, and nothing that only a GPU needs fails there.
std::vector<DoctorCheck> judge(const DoctorFindings& findings);

bool has_failed(const std::vector<DoctorCheck>& checks);

/// One line per check, "name  value  ok", and finally the count for each status.
std::string doctor_table(const std::vector<DoctorCheck>& checks);

/// One line: version, commit, passed, checks, and what the checks were made from: libtorch, host, driver, gpus,
/// peer_access, libraries, disk, kernels.
std::string doctor_json(const DoctorFindings& findings, const std::vector<DoctorCheck>& checks);

}  // namespace lora_train::cli
