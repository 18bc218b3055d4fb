// The Hugging Face hub: download, push.
#include <chrono>
#include <map>
#include <optional>

#include "flags/command_line.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/hub/download.h"
#include "lora_train/hub/push.h"
#include "lora_train/report/progress_bar.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

/// Progress in bytes. Shows nothing until the first update(). Not thread-safe.
class TransferProgress {
 public:
  explicit TransferProgress(bool quiet) : quiet_(quiet) {}
  /// `doing` replaces the rate; empty: shows the rate. Bytes present at the first call do not count toward it.
  void update(std::uint64_t num_bytes, std::uint64_t total_bytes, const std::string& doing = {}) {
    constexpr double kMiB = 1 << 20;
    if (!bar_) {
      bar_.emplace(report::ProgressOptions{.quiet = quiet_});
      start_ = Clock::now();
      start_bytes_ = num_bytes;
    }
    const double elapsed_s = std::chrono::duration<double>(Clock::now() - start_).count();
    const double rate =
        elapsed_s > 0 ? (static_cast<double>(num_bytes) - static_cast<double>(start_bytes_)) / elapsed_s : 0;
    report::ProgressState state;
    state.unit = "MiB";
    state.step = static_cast<long long>(static_cast<double>(num_bytes) / kMiB);
    state.total_steps = static_cast<long long>(static_cast<double>(total_bytes) / kMiB);
    state.steps_per_s = rate / kMiB;
    state.eta_s = rate > 0 ? (static_cast<double>(total_bytes) - static_cast<double>(num_bytes)) / rate : 0;
    state.elapsed_s = elapsed_s;
    state.activity = doing.empty() ? format_bytes(rate) + "/s" : doing;
    bar_->update(state);
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool quiet_;
  std::optional<report::ProgressBar> bar_;
  Clock::time_point start_;
  std::uint64_t start_bytes_ = 0;
};

// download: a model, an adapter or a dataset from the Hugging Face hub into the local cache.

/// "pytorch_model.bin, onnx/ (12 files)"
std::string names_of(const std::vector<hub::SkippedFile>& files) {
  std::map<std::string, int> folders;
  std::vector<std::string> names;
  for (const hub::SkippedFile& file : files) {
    const auto slash = file.path.find('/');
    if (slash == std::string::npos)
      names.push_back(file.path);
    else
      ++folders[file.path.substr(0, slash + 1)];
  }
  for (const auto& [folder, count] : folders) names.push_back(fmt::format("{} ({})", folder, count_of(count, "file")));
  return join(names);
}

void log_skipped(const std::vector<hub::SkippedFile>& files) {
  if (files.empty()) return;
  std::uint64_t num_bytes = 0;
  for (const hub::SkippedFile& file : files) num_bytes += file.num_bytes;
  log_info("skipped, because lora-train does not read them ({}; --all downloads them): {}", format_bytes(num_bytes),
           names_of(files));
}

std::string next_command(const std::string& name, const hub::DownloadResult& result, bool is_dataset) {
  if (is_dataset)
    return fmt::format("lora-train tokenize --profile my.yaml --set datasets[0].path={} --show 3", shell_line({name}));
  if (result.is_adapter) return "lora-train chat --model BASE --adapter " + shell_line({result.snapshot.string()});
  return fmt::format("lora-train train --model {} --train-data train.jsonl", shell_line({name}));
}

void print_download(const std::string& name, const hub::DownloadResult& result, bool is_dataset, bool json) {
  if (json) {
    print_line(to_line({{"snapshot", result.snapshot.string()},
                        {"commit", result.commit},
                        {"num_files", result.num_files},
                        {"num_bytes", result.num_bytes},
                        {"num_downloaded_bytes", result.num_downloaded_bytes},
                        {"skipped", json_list(result.skipped, [](const auto& file) { return file.path; })}}));
    return;
  }
  print_line(result.snapshot.string());
  if (result.num_files > 0)
    log_info("{}: {}, {}, commit {}{}", name, count_of(result.num_files, "file"), format_bytes(result.num_bytes),
             result.commit.substr(0, 12),
             result.num_downloaded_bytes == 0 ? "; all were in the cache already"
                                              : "; downloaded " + format_bytes(result.num_downloaded_bytes));
  log_info("next: " + next_command(name, result, is_dataset));
}

}  // namespace

int run_download(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "download",
      "Downloads a model, an adapter or a dataset from the Hugging Face hub into the local cache, where model: "
      "ORG/NAME finds it. Skips files of a model that lora-train does not read, and checks every file. Run it again to "
      "resume. Reads HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and https_proxy.");
  std::string name;
  bool is_dataset = false;
  hub::DownloadRequest request;
  parser.add("name", name, "ORG/NAME[@REV]", "a repository, with a branch, a tag or a commit if not main");
  parser.add_flag("--dataset", is_dataset, "NAME is a dataset");
  parser.add_flag("--all", request.all_files, "download every file of a model, whatever its format");
  if (!parser.parse(arguments)) return 0;
  const auto id = storage::parse_hub_id(name, is_dataset ? storage::HubKind::kDataset : storage::HubKind::kModel);
  if (!id)
    parser.refuse("ORG/NAME", name.empty() ? "missing; expected a name such as Qwen/Qwen3-4B."
                                           : fmt::format("got {}, expected org/name or org/name@revision.", name));
  request.id = *id;
  const StopRequests stop_requests;
  hub::DownloadResult result;
  {
    TransferProgress progress(parser.common().quiet);
    request.progress = [&](const hub::DownloadProgress& now) {
      progress.update(now.num_bytes, now.total_bytes, now.is_verifying ? "checking" : "");
    };
    result = hub::download(request);
  }
  log_skipped(result.skipped);
  print_download(name, result, is_dataset, parser.common().json);
  return 0;
}

// push: an adapter or a model to the Hugging Face hub.
int run_push(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "push",
      "Uploads an adapter, a model, or the result of a run to the Hugging Face hub: creates the repository, private "
      "unless --public, uploads what it lacks, and makes one commit at the end. Reads HF_TOKEN (which must allow "
      "writing), HF_ENDPOINT and https_proxy.");
  std::string folder, name, branch = "main";
  bool is_dry = false;
  hub::PushRequest request;
  parser.add("folder", folder, "DIR", "a PEFT adapter, a model, or output_dir of a run");
  parser.add("name", name, "ORG/NAME", "the repository");
  parser.add_flag("--public", request.is_public, "everyone may see the repository");
  parser.add("--revision", branch, "NAME", "branch to commit to (default main); created if missing");
  parser.add("--message", request.message, "TEXT", "commit message");
  parser.add_flag("--dry-run", is_dry, "list the files, and send nothing");
  if (!parser.parse(arguments)) return 0;
  if (folder.empty()) parser.refuse("DIR", "missing; expected an adapter, a model, or output_dir of a run.");
  if (!storage::parse_hub_id(name) || name.find('@') != std::string::npos)
    parser.refuse("ORG/NAME", name.empty() ? "missing; expected a name such as my-name/my-adapter."
                                           : fmt::format("got {}, expected org/name; a branch is --revision.", name));
  const auto id = storage::parse_hub_id(fmt::format("{}@{}", name, branch));
  if (!id) parser.refuse("--revision", fmt::format("got {}, expected the name of a branch.", branch));
  request.id = *id;
  request.plan = hub::plan_push(folder, name);
  if (request.message.empty()) request.message = "Upload with lora-train";
  if (!request.plan.skipped.empty()) log_info("not uploaded: " + join(request.plan.skipped));
  if (!request.plan.has_card) log_warning("there is no README.md: the repository will have no model card");
  if (is_dry) {
    for (const hub::PushFile& file : request.plan.files) {
      print_json_or_text(parser.common().json, {{"path", file.path}, {"num_bytes", file.num_bytes}},
                         fmt::format("{:>10}  {}", format_bytes(file.num_bytes), file.path));
    }
    log_info("{} would go to {}; --dry-run sent nothing", request.plan.folder.string(), name);
    return 0;
  }
  const StopRequests stop_requests;
  hub::PushResult result;
  {
    TransferProgress progress(parser.common().quiet);
    request.progress = [&](std::uint64_t num_bytes, std::uint64_t total) { progress.update(num_bytes, total); };
    result = hub::push(request);
  }
  print_json_or_text(parser.common().json,
                     {{"url", result.url},
                      {"commit", result.commit},
                      {"num_files", result.num_files},
                      {"num_uploaded_bytes", result.num_uploaded_bytes},
                      {"is_new", result.is_new}},
                     result.url);
  if (parser.common().json) return 0;
  log_info("{}: {}", name,
           result.num_files == 0
               ? "the repository has all files already; no commit was made"
               : fmt::format("{} in commit {}, {} of large files uploaded", count_of(result.num_files, "file"),
                             result.commit.substr(0, 12), format_bytes(result.num_uploaded_bytes)));
  return 0;
}

}  // namespace lora_train::cli
