// lora-train doctor: reports what this machine has, and whether this program can use it.
#include <unistd.h>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/device/gpu.h"
#include "lora_train/report/host_memory.h"
#include "output/doctor_report.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

/// The named folder, else the working directory if it is writable, else the folder for temporary files.
fs::path folder_to_measure(const std::string& named) {
  if (!named.empty()) return existing_folder(named);
  const fs::path here = fs::current_path();
  std::error_code no_folder;
  const fs::path temporary = fs::temp_directory_path(no_folder);
  return no_folder || ::access(here.c_str(), W_OK) == 0 ? here : temporary;
}

void look_at_torch(DoctorFindings& findings) {
  try {
    findings.torch = find_torch();
    findings.libraries = library_versions(*findings.torch);
  } catch (const ConfigError& error) {
    findings.torch_problem = error.message();
  }
}

void look_at_disk_of(const fs::path& folder, bool is_measured, DoctorFindings& findings) {
  try {
    if (is_measured) log_info("measuring the disk of " + folder.string());
    findings.disk = is_measured ? measure_disk(folder) : look_at_disk(folder);
  } catch (const IoError& error) {
    findings.disk_problem = error.what();
  }
}

/// The first GPU, if it is usable; else null, and the kernels run on the CPU.
const device::Gpu* gpu_for_kernels(const DoctorFindings& findings) {
  if (!findings.has_cuda_library) return nullptr;
  try {
    return &device::require_gpu(findings.gpus);
  } catch (const DeviceError&) {  // the table reports it
    return nullptr;
  }
}

void look_at_kernels(DoctorFindings& findings, bool is_json) {
  const EngineApi* engine = nullptr;
  try {
    engine = &load_engine();
  } catch (const ConfigError& error) {
    findings.engine_problem = error.what();
    return;
  }
  const device::Gpu* const gpu = gpu_for_kernels(findings);
  findings.kernels_place = gpu != nullptr ? gpu->label() : "CPU";
  log_info("checking every kernel against its reference on " + findings.kernels_place);
  try {
    // Prints each line as its check ends: a stopped program has reported what it knows.
    const auto print = [is_json](const bench::KernelCheck& check) {
      is_json ? log_info(kernel_line(check)) : print_line(kernel_line(check));
    };
    findings.kernels = engine->check_kernels({.use_cuda = gpu != nullptr, .on_check = print});
  } catch (const Error& error) {
    findings.kernels_problem = error.what();
  }
}

}  // namespace

int run_doctor(const std::vector<std::string>& arguments) {
  CommandParser parser("doctor",
                       "Checks the driver, GPUs, libraries and disk of this machine, and compares every kernel with "
                       "its reference. Exits with 6 if a check fails; a missing GPU is only a note.");
  std::string output_dir;
  bool skips_kernels = false, skips_disk = false;
  parser.add("--output-dir", output_dir, "DIR", "measure the disk of this folder (default: the working directory)");
  parser.add_flag("--no-disk", skips_disk,
                  "do not measure the disk (measuring writes at most 256 MiB and deletes them)");
  parser.add_flag("--no-kernels", skips_kernels, "do not check the kernels");
  if (!parser.parse(arguments)) return 0;

  DoctorFindings findings;
  findings.host = device::describe_host();
  findings.available_memory = static_cast<std::uint64_t>(report::available_host_memory());
  findings.gpus = device::find_gpus();
  findings.has_cuda_library = fs::exists(device::cuda_library_file());
  look_at_torch(findings);
  look_at_disk_of(folder_to_measure(output_dir), !skips_disk, findings);
  if (findings.torch && !skips_kernels) look_at_kernels(findings, parser.common().json);
  const std::vector<DoctorCheck> checks = judge(findings);
  print_text(parser.common().json ? doctor_json(findings, checks) : doctor_table(checks));
  return static_cast<int>(has_failed(checks) ? ExitCode::kDevice : ExitCode::kDone);
}

}  // namespace lora_train::cli
