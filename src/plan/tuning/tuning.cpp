#include "lora_train/plan/tuning/tuning.h"

#include <c10/core/Event.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/plan/setup/run_device.h"

namespace lora_train::kernels {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Tuned, choice, ms, default_ms, num_candidates)
}  // namespace lora_train::kernels

namespace lora_train::plan {
namespace {

namespace fs = std::filesystem;
using kernels::TuningTable;
using nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{16} << 20;  // of a cache file; a choice takes about 400

/// Raise it when the meaning of a key or a choice changes; older files are then ignored.
constexpr int kTuningVersion = 3;

void ignore(const std::string& where, const std::string& reason) { log_info("tuning: ignoring {}: {}", where, reason); }

std::string hash_of(const json& choices) { return hash128_hex(choices.dump()); }

/// Measures the time between two events on the current stream. Short work is repeated, and the mean is returned.
kernels::Stopwatch cuda_stopwatch(const RunDevice& device) {
  constexpr double kShortMs = 0.2;  // below this, the cost of events and launches matters
  constexpr int kRepeats = 10;
  return [device](const std::function<void()>& run) {
    c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    const auto time = [&](int repeats) {
      begin.record(compute_stream(device));
      for (int i = 0; i < repeats; ++i) run();
      end.record(compute_stream(device));
      end.synchronize();
      return begin.elapsedTime(end) / repeats;
    };
    const double once = time(1);
    return once < kShortMs ? time(kRepeats) : once;
  };
}

std::unique_ptr<RunTuning> make_tuning(const RunDevice& device, const std::string& known,
                                       kernels::Stopwatch stopwatch) {
  return std::make_unique<RunTuning>(tuning_machine(device.name, kernels::cuda_library()->versions()), known,
                                     std::move(stopwatch));
}

}  // namespace

TuningMachine tuning_machine(const std::string& gpu_name, const kernels::CudaVersions& versions) {
  return {gpu_name, fmt::format("cublasLt {}, cuDNN {}, runtime {}, driver {}, lora-train {}", versions.cublas_lt,
                                versions.cudnn, versions.runtime, versions.driver, kTuningVersion)};
}

std::string tuning_text(const TuningMachine& machine, const TuningTable& table) {
  const json choices = table;
  return json{{"gpu", machine.gpu}, {"versions", machine.versions}, {"choices", choices}, {"hash", hash_of(choices)}}
      .dump();
}

TuningTable parse_tuning(const std::string& text, const TuningMachine& machine, const std::string& where) {
  if (text.empty()) return {};
  try {
    const json object = json::parse(text);
    const TuningMachine other{object.at("gpu").get<std::string>(), object.at("versions").get<std::string>()};
    if (other != machine) {
      ignore(where, fmt::format("it is from {} ({}), but this is {} ({})", other.gpu, other.versions, machine.gpu,
                                machine.versions));
      return {};
    }
    const auto table = object.at("choices").get<TuningTable>();
    if (object.at("hash").get<std::string>() == hash_of(table)) return table;
    ignore(where, "its hash does not match its choices");
  } catch (const json::exception& error) {
    ignore(where, error.what());
  }
  return {};
}

std::string name_in_file(const std::string& gpu) {
  std::string name = gpu;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return name;
}

fs::path cache_folder() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return fs::path(value != nullptr ? value : "");
  };
  const fs::path cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (cache.empty() && home.empty()) return {};
  return (cache.empty() ? home / ".cache" : cache) / "lora-train";
}

fs::path tuning_cache_file(const TuningMachine& machine) {
  const fs::path folder = cache_folder();
  const std::string versions = hash128_hex(machine.versions).substr(0, 12);
  return folder.empty() ? fs::path() : folder / fmt::format("tuning-{}-{}.json", name_in_file(machine.gpu), versions);
}

TuningTable read_tuning_cache(const fs::path& file, const TuningMachine& machine) {
  try {
    if (file.empty() || path_kind(file) == PathKind::kNone) return {};
    if (path_kind(file) != PathKind::kFile || fs::file_size(file) > kMaxBytes) {
      ignore(file.string(), "it is not a cache file");
      return {};
    }
    return parse_tuning(read_file(file), machine, file.string());
  } catch (const std::exception& error) {  // treated like a missing cache
    ignore(file.string(), error.what());
  }
  return {};
}

void add_to_tuning_cache(const fs::path& file, const TuningMachine& machine, const TuningTable& table) {
  if (file.empty() || table.empty()) return;
  try {
    make_folders(file.parent_path());
    TuningTable all = read_tuning_cache(file, machine);
    for (const auto& [key, tuned] : table) all[key] = tuned;
    write_file_atomic(file, tuning_text(machine, all) + "\n");
  } catch (const IoError& error) {
    log_info(std::string("tuning: cannot store the measurements for later runs: ") + error.what());
  }
}

RunTuning::RunTuning(TuningMachine machine, const std::string& known, const kernels::Stopwatch& stopwatch)
    : machine_(std::move(machine)),
      cache_file_(tuning_cache_file(machine_)),
      tuner_(parse_tuning(known, machine_, "the checkpoint's table"),
             stopwatch ? read_tuning_cache(cache_file_, machine_) : kernels::TuningTable(), stopwatch) {}

void RunTuning::finish() const {
  add_to_tuning_cache(cache_file_, machine_, tuner_.measured());
  log_info(tuner_.describe());
}

bool makes_choices(const RunSection& section, const RunDevice& device) {
  return device.is_cuda() && !section.deterministic && section.tuning != Tuning::kOff;
}

std::unique_ptr<RunTuning> start_tuning(const RunSection& section, const RunDevice& device, const std::string& known) {
  return makes_choices(section, device) ? make_tuning(device, known, cuda_stopwatch(device)) : nullptr;
}

std::unique_ptr<RunTuning> adopt_tuning(const RunDevice& device, const std::string& known) {
  return make_tuning(device, known, nullptr);
}

std::unique_ptr<kernels::GemmTuning> tune_products(RunTuning* tuning) {
  return tuning != nullptr ? std::make_unique<kernels::GemmTuning>(tuning->tuner()) : nullptr;
}

}  // namespace lora_train::plan
