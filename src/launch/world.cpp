#include "lora_train/launch/world.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/host_name.h"
#include "lora_train/base/text.h"
#include "lora_train/launch/local_ranks.h"

namespace lora_train::launch {
namespace {

struct ProcessStat {
  std::string name, pid, parent, start_time;
};

/// proc(5): "pid (name) state ppid ..."; the name may contain blanks and parentheses; the start time is field 22.
std::optional<ProcessStat> read_stat(const std::filesystem::path& file) {
  std::ifstream stream(file);
  const std::string line{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || open == 0) return std::nullopt;
  std::istringstream words(line.substr(close + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
  if (fields.size() < 20) return std::nullopt;
  return ProcessStat{line.substr(open + 1, close - open - 1), line.substr(0, open - 1), fields[1], fields[19]};
}

/// "4711-98765": pid and start time of the nearest ancestor of this process with one of these names (as in
/// /proc/pid/stat, 15 characters). Empty if there is none. `proc` is /proc.
std::string launcher_process(const std::vector<std::string>& names, const std::filesystem::path& proc) {
  for (auto process = read_stat(proc / "self" / "stat"); process;
       process = read_stat(proc / process->parent / "stat")) {
    if (std::find(names.begin(), names.end(), process->name) != names.end())
      return fmt::format("{}-{}", process->pid, process->start_time);
  }
  return {};
}

struct LauncherRow {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

// The first one that is set gives the local rank. Slurm sets a number of tasks in a batch script too, but that of the
// step only under srun.
constexpr std::array<LauncherRow, 5> kRows{{
    {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kMvapich, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Launcher::kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
    {Launcher::kVariables, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
}};

/// The rank and size according to one launcher's variables.
struct Claim {
  LauncherRow row;
  int rank = 0, size = 1;

  std::string text() const { return fmt::format("{}={} and {}={}", row.rank, rank, row.size, size); }
};

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  std::optional<std::string> find(const char* name) const { return variables_(name); }
  std::string text(const char* name) const { return find(name).value_or(""); }

  /// A number in [low, high]. Throws ConfigError if the variable is missing; `because` says why it is needed.
  int number(const char* name, int low, int high, const std::string& because) const {
    const auto value = find(name);
    if (!value) throw ConfigError(name, "is not set, but {}. Set it, or start the ranks with a launcher.", because);
    const auto result = whole_number<int>(*value);
    if (!result || *result < low || *result > high) {
      throw ConfigError(fmt::format("{}={}", name, *value), "expected a number from {} to {}, because {}.", low, high,
                        because);
    }
    return *result;
  }

 private:
  const Variables& variables_;
};

constexpr int kMaxRanks = 1 << 20;

/// Returns nothing if this launcher started no other process.
std::optional<Claim> claim_of(const Reader& reader, const LauncherRow& row) {
  const bool has_rank = reader.find(row.rank).has_value(), has_size = reader.find(row.size).has_value();
  if (!has_size && (!has_rank || row.launcher == Launcher::kSlurm)) return std::nullopt;
  const std::string sets_both = fmt::format("{} sets {} and {}", to_string(row.launcher), row.rank, row.size);
  Claim claim{row};
  claim.size = reader.number(row.size, 1, kMaxRanks, has_rank ? std::string(row.rank) + " is" : sets_both);
  if (claim.size == 1 && !has_rank) return std::nullopt;
  claim.rank = reader.number(row.rank, 0, claim.size - 1, row.size + (fmt::format("={}", claim.size)));
  return claim.size > 1 ? std::optional(claim) : std::nullopt;
}

/// The launcher to take this rank from, among those whose variables are set. They must agree.
std::optional<Claim> agreed_claim(const Reader& reader) {
  std::vector<Claim> claims;
  for (const LauncherRow& row : kRows) {
    const bool is_mpi_rank = !claims.empty() && reader.find(claims.front().row.local_rank);
    if (row.launcher == Launcher::kSlurm && is_mpi_rank) continue;  // srun started MPI's daemons, not the ranks
    if (const auto claim = claim_of(reader, row)) claims.push_back(*claim);
  }
  if (claims.empty()) return std::nullopt;
  for (const Claim& other : claims) {
    if (other.rank == claims.front().rank && other.size == claims.front().size) continue;
    throw ConfigError(fmt::format("{} ({})", claims.front().text(), to_string(claims.front().row.launcher)),
                      "contradicts {} ({}). Unset the variables of the launcher that did not start this process.",
                      other.text(), to_string(other.row.launcher));
  }
  // srun --mpi=pmi2 sets PMI_RANK too, and leaves the local rank to Slurm's own variables.
  const auto with_local_rank =
      std::find_if(claims.begin(), claims.end(), [&](const Claim& claim) { return reader.find(claim.row.local_rank); });
  return with_local_rank != claims.end() ? *with_local_rank : claims.front();
}

int local_size_of(const Reader& reader, const Claim& claim) {
  if (claim.row.launcher != Launcher::kSlurm) return reader.number(claim.row.local_size, 1, claim.size, claim.text());
  const int node = reader.number("SLURM_NODEID", 0, kMaxRanks, claim.text());
  const std::string tasks = reader.text(claim.row.local_size);
  const auto count = tasks_on_node(tasks, node);
  if (!count || *count > claim.size) {
    throw ConfigError(fmt::format("{}={}", claim.row.local_size, tasks),
                      "does not say how many tasks node {} has; expected a list like 4(x2),1.", node);
  }
  return *count;
}

void read_job(const Reader& reader, const std::filesystem::path& proc, World& world) {
  switch (world.launcher) {
    case Launcher::kNproc:
      world.job = "nproc";
      world.job_folder = reader.text(kJobFolderVariable);
      break;
    case Launcher::kTorchrun: {
      const std::string attempt = reader.find("TORCHELASTIC_RESTART_COUNT").value_or("0");
      world.job = fmt::format("{}.{}", reader.text("TORCHELASTIC_RUN_ID"), attempt);
      world.has_agent_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
      break;
    }
    case Launcher::kOpenMpi:
      world.job = reader.text("PMIX_NAMESPACE");
      world.job_folder = reader.text("PMIX_SERVER_TMPDIR");
      break;
    case Launcher::kMpich:
    case Launcher::kMvapich:
      if (world.is_on_one_host()) world.job = launcher_process({"hydra_pmi_proxy", "mpispawn"}, proc);
      break;
    case Launcher::kSlurm:  // a requeued job keeps its number
      world.job = fmt::format("{}.{}.{}", reader.text("SLURM_JOB_ID"), reader.text("SLURM_STEP_ID"),
                              reader.find("SLURM_RESTART_COUNT").value_or("0"));
      break;
    case Launcher::kVariables:
    case Launcher::kNone: break;
  }
  std::replace_if(
      world.job.begin(), world.job.end(), [](char c) { return c == '/' || c == '@' || c <= ' '; }, '_');
}

void read_master(const Reader& reader, World& world) {
  const bool has_address = reader.find("MASTER_ADDR").has_value();
  if (has_address || reader.find("MASTER_PORT")) {
    world.master_port = reader.number("MASTER_PORT", 1, 65535, "MASTER_ADDR is");
    if (!has_address) throw ConfigError("MASTER_ADDR", "is not set, but MASTER_PORT is. Set both or neither.");
    world.master_address = reader.text("MASTER_ADDR");
    return;
  }
  if (!world.job.empty()) return;
  throw ConfigError("MASTER_ADDR",
                    "is not set, and nothing else tells the ranks where to meet ({}). Set MASTER_ADDR to the host of "
                    "rank 0, and MASTER_PORT to a free port there.",
                    to_string(world.launcher));
}

}  // namespace

const char* to_string(Launcher launcher) {
  constexpr const char* kNames[] = {"no launcher", "--nproc", "torchrun", "Open MPI",
                                    "MPICH",       "MVAPICH", "Slurm",    "RANK and WORLD_SIZE"};
  return kNames[static_cast<int>(launcher)];
}

World world_from(const Variables& variables, const std::filesystem::path& proc) {
  const Reader reader(variables);
  const bool is_torchrun = reader.find("TORCHELASTIC_RUN_ID").has_value();
  const bool is_nproc = reader.find(kJobFolderVariable).has_value();
  const auto claim = is_torchrun || is_nproc ? claim_of(reader, kRows.back()) : agreed_claim(reader);
  if (!claim) return {};
  World world;
  world.launcher = is_nproc ? Launcher::kNproc : is_torchrun ? Launcher::kTorchrun : claim->row.launcher;
  world.rank = claim->rank;
  world.size = claim->size;
  world.local_size = local_size_of(reader, *claim);
  world.local_rank = reader.number(claim->row.local_rank, 0, world.local_size - 1,
                                   fmt::format("{} of {} ranks are on this host", world.local_size, world.size));
  read_job(reader, proc, world);
  if (world.launcher != Launcher::kNproc) read_master(reader, world);
  return world;
}

std::string host_id(const std::filesystem::path& proc) {
  constexpr std::size_t kUuidLength = 36;
  try {
    return read_file(proc / "sys/kernel/random/boot_id").substr(0, kUuidLength);
  } catch (const IoError&) {  // some containers hide it
    return host_name();
  }
}

std::optional<int> tasks_on_node(const std::string& list, int node) {
  std::istringstream entries(list);
  for (std::string text; std::getline(entries, text, ',');) {  // "4" or "4(x2)"
    const std::size_t open = std::min(text.find("(x"), text.size());
    const auto tasks = whole_number<int>(text.substr(0, open));
    std::optional<int> num_nodes = 1;
    if (open < text.size()) {
      if (!text.ends_with(')')) return std::nullopt;
      num_nodes = whole_number<int>(text.substr(open + 2, text.size() - open - 3));
    }
    if (tasks.value_or(0) < 1 || num_nodes.value_or(0) < 1) return std::nullopt;
    if (node < *num_nodes) return tasks;
    node -= *num_nodes;
  }
  return std::nullopt;
}

}  // namespace lora_train::launch
