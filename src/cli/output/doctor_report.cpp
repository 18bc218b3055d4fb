#include "doctor_report.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/file_ops.h"
#include "lora_train/base/library.h"
#include "lora_train/base/text.h"
#include "lora_train/base/version.h"
#include "lora_train/device/gpu.h"
#include "standard_output.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

unsigned long ask_nccl(Symbol symbol) {
  int (*const ask)(int*) = symbol;
  int version = 0;
  ask(&version);
  return static_cast<unsigned long>(version);
}

unsigned long ask_size(Symbol symbol) {
  std::size_t (*const ask)() = symbol;
  return ask();
}

struct Source {
  std::string name, file;
  std::vector<std::string> folders;  ///< in site-packages/nvidia
  const char* symbol;
  unsigned long (*query)(Symbol symbol);
};

LibraryVersion look_up(const Source& source, const fs::path& wheels) {
  LibraryVersion found{source.name, "", ""};
  std::string name = source.file;
  for (const auto& folder : source.folders) {
    std::error_code error;
    if (fs::exists(wheels / folder / "lib" / source.file, error))
      name = (wheels / folder / "lib" / source.file).string();
  }
  SharedLibrary library(name, RTLD_LAZY | RTLD_LOCAL);
  const Symbol symbol = library.find(source.symbol);
  found.problem = library.problem();
  if (found.problem.empty()) found.version = version_of_number(source.query(symbol));
  return found;
}

constexpr std::size_t kBlock = std::size_t{4} << 20;
constexpr double kMaxSeconds = 5;

/// A file without a name, open for writing and reading.
Descriptor nameless_file(const fs::path& folder) {
  std::string name = (folder / ".lora-train-disk-XXXXXX").string();
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.is_open()) fail_with(folder, "cannot create a file");
  ::unlink(name.c_str());
  return file;
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string incompressible_block() {
  std::mt19937_64 random(42);
  std::string block(kBlock, '\0');
  for (std::size_t i = 0; i < kBlock; i += sizeof(std::uint64_t)) {
    const std::uint64_t value = random();
    std::memcpy(block.data() + i, &value, sizeof value);
  }
  return block;
}

void write_and_sync(const Descriptor& file, std::uint64_t most_bytes, DiskSpeed& speed) {
  const std::string block = incompressible_block();
  const Clock::time_point start = Clock::now();
  while (speed.num_bytes < most_bytes && seconds_since(start) < kMaxSeconds) {
    const std::size_t size = std::min<std::uint64_t>(kBlock, most_bytes - speed.num_bytes);
    if (write_all(file.get(), std::string_view(block).substr(0, size)) != size) fail_with(speed.folder, "cannot write");
    speed.num_bytes += size;
  }
  if (::fsync(file.get()) != 0) fail_with(speed.folder, "cannot sync");
  speed.write_bytes_per_s = static_cast<double>(speed.num_bytes) / std::max(seconds_since(start), 1e-9);
}

void read_back(const Descriptor& file, DiskSpeed& speed) {
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  ::lseek(file.get(), 0, SEEK_SET);
  std::vector<char> buffer(kBlock);
  std::uint64_t num_read = 0;
  const Clock::time_point start = Clock::now();
  for (ssize_t count = 1; count > 0; num_read += static_cast<std::uint64_t>(count)) {
    count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0) fail_with(speed.folder, "cannot read");
  }
  if (num_read != speed.num_bytes) throw IoError(speed.folder.string(), "a file came back shorter than it was written");
  speed.read_bytes_per_s = static_cast<double>(num_read) / std::max(seconds_since(start), 1e-9);
}

constexpr std::uint64_t kLittleDisk = std::uint64_t{10} << 30;
constexpr double kSlowDisk = 100e6;  // bytes/s: a checkpoint of 1 GB takes 10 s
constexpr std::size_t kWidestValue = 72, kWidestKernelName = 40;

using Checks = std::vector<DoctorCheck>;

std::string or_unknown(const std::string& text) { return text.empty() ? "unknown" : text; }

/// Something missing that only a GPU needs. `advice`: for a machine that has one.
DoctorCheck missing_for_gpu(const DoctorFindings& found, const std::string& name, const std::string& value,
                            const std::string& advice) {
  if (found.gpus.has_gpu_hardware()) return {name, value, CheckStatus::kFailed, advice};
  return {name, value, CheckStatus::kNote, "runs compute on the CPU only"};
}

void judge_torch(const DoctorFindings& found, Checks& checks) {
  checks.push_back({"program", fmt::format("lora-train {}, commit {}", version(), commit())});
  if (!found.torch) {
    checks.push_back({"LibTorch", "not found", CheckStatus::kFailed, found.torch_problem});
    return;
  }
  const TorchInstallation& torch = *found.torch;
  checks.push_back({"LibTorch", fmt::format("{} in {} ({})", torch.version, torch.folder.string(), torch.found_by)});
  checks.push_back(torch.cuda.empty() ? missing_for_gpu(found, "CUDA of LibTorch", "none: a CPU build",
                                                        "Install the CUDA build: pip install torch==2.11.0")
                                      : DoctorCheck{"CUDA of LibTorch", torch.cuda});
  if (!found.engine_problem.empty()) {
    checks.push_back({"engine", "cannot be loaded", CheckStatus::kFailed, found.engine_problem});
  }
}

std::string cores_in_words(const device::Host& host) {
  if (host.num_physical_cores == host.num_cores) return fmt::format("{} cores", host.num_cores);
  return fmt::format("{} cores ({} threads)", host.num_physical_cores, host.num_cores);
}

void judge_host(const DoctorFindings& found, Checks& checks) {
  const device::Host& host = found.host;
  const std::string units = host.vector_units.empty() ? "no AVX2" : join(host.vector_units, " ");
  DoctorCheck cpu{"processor", fmt::format("{}, {}, {}", or_unknown(host.cpu_model), cores_in_words(host), units)};
  std::vector<std::string> advice;
  const bool has_bf16 =
      std::ranges::any_of(host.vector_units, [](const std::string& unit) { return unit.ends_with("_bf16"); });
  if (!has_bf16 && !found.gpus.has_gpu_hardware()) {
    cpu.status = CheckStatus::kNote;
    advice.emplace_back("it has no bf16 units; precision: fp32 is faster");
  }
  if (host.num_numa_nodes > 1 && !found.gpus.has_gpu_hardware()) {
    advice.push_back(
        fmt::format("{0} NUMA nodes: train on CPUs with --nproc {0}, one rank per node", host.num_numa_nodes));
  }
  cpu.advice = join(advice, "; ");
  checks.push_back(cpu);
  checks.push_back({"host memory", fmt::format("{}, {} available", format_bytes(host.memory_bytes),
                                               format_bytes(found.available_memory))});
}

/// Returns false if nothing can be said about single GPUs.
bool judge_driver(const device::GpuSystem& system, Checks& checks) {
  if (!system.has_gpu_hardware()) {
    checks.push_back({"GPU", "none", CheckStatus::kNote, "no NVIDIA GPU here; runs compute on the CPU"});
    return false;
  }
  const std::string cuda = system.cuda_version == 0 ? ""
                                                    : fmt::format(", CUDA up to {}.{}", system.cuda_version / 1000,
                                                                  system.cuda_version % 1000 / 10);
  DoctorCheck driver{"driver", or_unknown(system.driver_version) + cuda};
  try {
    device::require_driver(system);
  } catch (const DeviceError& error) {
    driver.status = CheckStatus::kFailed;
    driver.advice = error.message();
  }
  checks.push_back(driver);
  if (driver.status == CheckStatus::kOk && !system.management_problem.empty()) {
    checks.push_back({"driver management", "cannot be used", CheckStatus::kNote,
                      fmt::format("free memory and other processes are unknown ({})", system.management_problem)});
  }
  return driver.status == CheckStatus::kOk;
}

DoctorCheck judge_gpu(const device::Gpu& gpu) {
  std::string value = fmt::format("{}, {}, {} multiprocessors, {}", gpu.name, gpu.architecture(),
                                  gpu.num_multiprocessors, format_bytes(gpu.total_bytes));
  if (gpu.free_bytes) value += fmt::format(", {} free", format_bytes(*gpu.free_bytes));
  DoctorCheck check{fmt::format("GPU {}", gpu.index), value};
  try {
    device::require_usable(gpu);
    check.advice = device::usage_warning(gpu);
    if (check.advice.empty() && device::code_for(gpu.major, gpu.minor) == device::CodeFor::kPtx) {
      check.advice = "newer than this build: the driver compiles our kernels in the first run";
    }
    if (!check.advice.empty()) check.status = CheckStatus::kNote;
  } catch (const DeviceError& error) {
    check.status = CheckStatus::kFailed;
    check.advice = error.message();
  }
  return check;
}

void judge_gpus(const device::GpuSystem& system, Checks& checks) {
  Checks gpus;
  for (const auto& gpu : system.gpus) gpus.push_back(judge_gpu(gpu));
  const bool any_is_usable = std::ranges::count(gpus, CheckStatus::kFailed, &DoctorCheck::status) < std::ssize(gpus);
  for (DoctorCheck& check : gpus) {
    // An old display card in a machine with good ones is not a failure.
    if (any_is_usable && check.status == CheckStatus::kFailed) check.status = CheckStatus::kNote;
    checks.push_back(check);
  }
  for (std::size_t from = 0; system.gpus.size() > 1 && from < system.peer_access.size(); ++from) {
    std::vector<std::string> ways;
    bool has_none = false;
    for (const device::PeerAccess way : system.peer_access[from]) {
      ways.emplace_back(device::to_string(way));
      has_none = has_none || way == device::PeerAccess::kNone;
    }
    checks.push_back({fmt::format("GPU {} reaches", from), join(ways, " "),
                      has_none ? CheckStatus::kNote : CheckStatus::kOk,
                      has_none ? "without peer access, gradients go through host memory" : ""});
  }
}

void judge_build(const DoctorFindings& found, Checks& checks) {
  if (found.has_cuda_library) {
    checks.push_back({"CUDA code", "built for " + device::built_architectures_text()});
    return;
  }
  checks.push_back(missing_for_gpu(found, "CUDA code", "none: a CPU-only build",
                                   "lib/liblora_train_cuda.so is not next to the program: build where nvcc is "
                                   "(scripts/install_deps.sh installs it) and copy the whole folder"));
}

void judge_libraries(const DoctorFindings& found, Checks& checks) {
  const bool needs_them = found.gpus.has_gpu_hardware();
  for (const LibraryVersion& library : found.libraries) {
    DoctorCheck check{library.name, library.version};
    if (library.version.empty()) {
      check.value = "cannot be loaded";
      check.status = needs_them ? CheckStatus::kFailed : CheckStatus::kNote;
      check.advice = library.problem + ". Reinstall the wheel: pip install --force-reinstall torch==2.11.0";
    }
    checks.push_back(check);
  }
}

void judge_disk(const DoctorFindings& found, Checks& checks) {
  if (!found.disk) {
    checks.push_back({"disk", "cannot be written", CheckStatus::kFailed,
                      found.disk_problem + ". Choose a writable folder with --output-dir"});
    return;
  }
  const DiskSpeed& disk = *found.disk;
  std::string value = fmt::format("{}: {} free", disk.folder.string(), format_bytes(disk.free_bytes));
  if (disk.num_bytes > 0) {
    value += fmt::format(", writes {}/s with fsync, reads {}/s ({})", format_bytes(disk.write_bytes_per_s),
                         format_bytes(disk.read_bytes_per_s), format_bytes(disk.num_bytes));
  }
  DoctorCheck check{"disk", value};
  if (disk.num_bytes > 0 && disk.write_bytes_per_s < kSlowDisk) {
    check.advice = "slow: saving (in the background) and reading the model take long";
  }
  if (disk.free_bytes < kLittleDisk) check.advice = "little space is free: checkpoints and the token cache may not fit";
  if (!check.advice.empty()) check.status = CheckStatus::kNote;
  checks.push_back(check);
}

/// "41 of 41 agree with their references on CPU; the largest error is 12% of the tolerance"
std::string sum_of_kernels(const DoctorFindings& found) {
  std::size_t num_passed = 0;
  double largest = 0;
  for (const bench::KernelCheck& kernel : found.kernels) {
    num_passed += kernel.passed ? 1 : 0;
    if (kernel.tolerance > 0) largest = std::max(largest, kernel.max_error / kernel.tolerance);
  }
  return fmt::format("{} of {} agree with their references on {}; the largest error is {:.0f}% of the tolerance",
                     num_passed, found.kernels.size(), found.kernels_place, 100 * largest);
}

void judge_kernels(const DoctorFindings& found, Checks& checks) {
  if (!found.kernels_problem.empty()) {
    checks.push_back(
        {"kernels", "cannot be run on " + found.kernels_place, CheckStatus::kFailed, found.kernels_problem});
  } else if (!found.kernels_place.empty()) {
    checks.push_back({"kernels", sum_of_kernels(found)});
  }
  for (const bench::KernelCheck& kernel : found.kernels) checks.push_back(judge(kernel));
}

std::string status_text(const DoctorCheck& check) {
  if (check.status == CheckStatus::kOk) return check.advice.empty() ? "ok" : "ok; " + check.advice;
  return (check.status == CheckStatus::kNote ? "note: " : "FAILED: ") + check.advice;
}

std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// "name  value  ok"
std::string line_of(const DoctorCheck& check, std::size_t name_width, std::size_t value_width) {
  const auto gap = [](std::size_t size, std::size_t width) {
    return std::string(std::max(size, width) - size + 2, ' ');
  };
  return check.name + gap(check.name.size(), name_width) + on_one_line(check.value) +
         gap(check.value.size(), value_width) + on_one_line(status_text(check));
}

using Json = nlohmann::ordered_json;

const char* name_of(CheckStatus status) {
  return status == CheckStatus::kOk ? "ok" : status == CheckStatus::kNote ? "note" : "failed";
}

Json check_json(const DoctorCheck& check) {
  return {{"name", check.name},
          {"value", check.value},
          {"status", name_of(check.status)},
          {"advice", or_null(check.advice)}};
}

std::string compute_mode_name(device::ComputeMode mode) {
  constexpr std::array kNames = {"default", "exclusive_thread", "prohibited", "exclusive_process"};
  const auto index = static_cast<std::size_t>(mode);
  return index < kNames.size() ? kNames[index] : fmt::format("unknown ({})", index);
}

Json gpu_json(const device::Gpu& gpu) {
  const auto process_json = [](const device::GpuProcess& process) {
    return Json{{"pid", process.pid}, {"bytes", or_null(process.bytes)}};
  };
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"uuid", or_null(gpu.uuid)},
          {"pci_id", or_null(gpu.pci_id)},
          {"architecture", gpu.architecture()},
          {"multiprocessors", gpu.num_multiprocessors},
          {"total_bytes", gpu.total_bytes},
          {"free_bytes", or_null(gpu.free_bytes)},
          {"compute_mode", compute_mode_name(gpu.compute_mode)},
          {"processes", json_list(gpu.processes, process_json)}};
}

Json disk_json(const std::optional<DiskSpeed>& disk) {
  if (!disk) return nullptr;
  const bool is_measured = disk->num_bytes > 0;
  return {{"folder", disk->folder.string()},
          {"free_bytes", disk->free_bytes},
          {"write_bytes_per_s", is_measured ? Json(disk->write_bytes_per_s) : Json(nullptr)},
          {"read_bytes_per_s", is_measured ? Json(disk->read_bytes_per_s) : Json(nullptr)}};
}

Json kernel_json(const bench::KernelCheck& kernel) {
  return {{"name", kernel.name},           {"shape", kernel.shape},       {"max_error", kernel.max_error},
          {"tolerance", kernel.tolerance}, {"own_us", kernel.own_us},     {"reference_us", kernel.reference_us},
          {"passed", kernel.passed},       {"note", or_null(kernel.note)}};
}

}  // namespace

nlohmann::ordered_json gpu_architectures(bool has_cuda_library) {
  Json list = Json::array();
  std::istringstream words(has_cuda_library ? device::built_architectures_text() : "");
  for (std::string word; words >> word;) list.push_back(word);
  return list;
}

std::string version_of_number(unsigned long number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::vector<LibraryVersion> library_versions(const TorchInstallation& torch) {
  if (torch.cuda.empty()) return {};
  const std::string series = torch.cuda.substr(0, torch.cuda.find('.'));
  const Source sources[] = {
      {"NCCL", "libnccl.so.2", {"nccl"}, "ncclGetVersion", ask_nccl},
      {"cuDNN", "libcudnn.so.9", {"cudnn"}, "cudnnGetVersion", ask_size},
      {"cuBLASLt", "libcublasLt.so." + series, {"cublas", "cu" + series}, "cublasLtGetVersion", ask_size}};
  std::vector<LibraryVersion> versions;
  for (const Source& source : sources) versions.push_back(look_up(source, torch.folder.parent_path() / "nvidia"));
  return versions;
}

fs::path existing_folder(fs::path folder) {
  folder = fs::absolute(folder);
  std::error_code error;
  while (!fs::is_directory(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

DiskSpeed look_at_disk(const fs::path& folder) {
  DiskSpeed speed;
  speed.folder = folder;
  if (file_ops().free_bytes(folder.string(), speed.free_bytes) != 0)
    fail_with(folder, "cannot determine its free space");
  return speed;
}

DiskSpeed measure_disk(const fs::path& folder, std::uint64_t most_bytes) {
  DiskSpeed speed = look_at_disk(folder);
  const Descriptor file = nameless_file(folder);
  write_and_sync(file, std::min(most_bytes, speed.free_bytes / 4), speed);
  if (speed.num_bytes > 0) read_back(file, speed);
  return speed;
}

DoctorCheck judge(const bench::KernelCheck& kernel) {
  DoctorCheck check{kernel.name,
                    fmt::format("{}: error {:.1e}, at most {:.0e}; {:.1f} us, reference {:.1f} us", kernel.shape,
                                kernel.max_error, kernel.tolerance, kernel.own_us, kernel.reference_us)};
  if (!kernel.passed) {
    check.status = CheckStatus::kFailed;
    check.advice = (kernel.note.empty() ? "wrong result" : kernel.note) +
                   ". Train with kernels: reference, and report it together with this table";
  } else if (!kernel.note.empty()) {
    check.status = CheckStatus::kNote;
    check.advice = kernel.note;
  }
  check.is_detail = true;
  return check;
}

std::string kernel_line(const bench::KernelCheck& kernel) {
  return line_of(judge(kernel), kWidestKernelName, kWidestValue);
}

std::vector<DoctorCheck> judge(const DoctorFindings& findings) {
  Checks checks;
  judge_torch(findings, checks);
  judge_host(findings, checks);
  if (judge_driver(findings.gpus, checks)) judge_gpus(findings.gpus, checks);
  judge_build(findings, checks);
  judge_libraries(findings, checks);
  judge_disk(findings, checks);
  judge_kernels(findings, checks);
  return checks;
}

bool has_failed(const std::vector<DoctorCheck>& checks) {
  return std::ranges::count(checks, CheckStatus::kFailed, &DoctorCheck::status) > 0;
}

std::string doctor_table(const std::vector<DoctorCheck>& checks) {
  std::size_t name_width = 0, value_width = 0;
  int counts[3] = {};
  const auto is_shown = [](const DoctorCheck& check) { return !check.is_detail || check.status != CheckStatus::kOk; };
  for (const auto& check : checks) {
    ++counts[static_cast<int>(check.status)];
    if (!is_shown(check)) continue;
    name_width = std::max(name_width, check.name.size());
    value_width = std::max(value_width, std::min(check.value.size(), kWidestValue));
  }
  std::string table;
  for (const auto& check : checks) {
    if (is_shown(check)) table += line_of(check, name_width, value_width) + "\n";
  }
  return fmt::format("{}{} ok, {}{}{} FAILED\n", table, counts[0], counts[1], counts[1] == 1 ? " note, " : " notes, ",
                     counts[2]);
}

std::string doctor_json(const DoctorFindings& findings, const std::vector<DoctorCheck>& checks) {
  const device::GpuSystem& system = findings.gpus;
  Json object = {{"version", version()},
                 {"commit", commit()},
                 {"passed", !has_failed(checks)},
                 {"checks", json_list(checks, check_json)}};
  object["libtorch"] = nullptr;
  if (const auto& torch = findings.torch) {
    object["libtorch"] = {
        {"version", torch->version}, {"folder", torch->folder.string()}, {"cuda", or_null(torch->cuda)}};
  }
  object["gpu_architectures"] = gpu_architectures(findings.has_cuda_library);
  object["host"] = {{"cpu", or_null(findings.host.cpu_model)},
                    {"cores", findings.host.num_cores},
                    {"physical_cores", findings.host.num_physical_cores},
                    {"numa_nodes", findings.host.num_numa_nodes},
                    {"vector_units", findings.host.vector_units},
                    {"memory_bytes", findings.host.memory_bytes},
                    {"available_bytes", findings.available_memory}};
  object["driver"] = {{"version", or_null(system.driver_version)},
                      {"cuda_version", system.cuda_version},
                      {"init_error", or_null(system.init_error)},
                      {"device_nodes", system.device_nodes}};
  object["gpus"] = json_list(system.gpus, gpu_json);
  object["peer_access"] = json_list(system.peer_access, [](const auto& row) {
    return json_list(row, [](device::PeerAccess way) { return device::to_string(way); });
  });
  object["libraries"] = Json::object();
  for (const auto& library : findings.libraries) object["libraries"][library.name] = or_null(library.version);
  object["disk"] = disk_json(findings.disk);
  object["kernels_place"] = or_null(findings.kernels_place);
  object["kernels"] = json_list(findings.kernels, kernel_json);
  return to_line(object) + "\n";
}

}  // namespace lora_train::cli
