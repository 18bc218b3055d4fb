// lora-train download: a model, an adapter or a dataset from the Hugging Face hub into the local cache.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "command_line.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/hub/download.h"
#include "output/standard_output.h"
#include "output/transfer_progress.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

std::string size_of(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

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
  for (const auto& [folder, count] : folders) names.push_back(folder + " (" + count_of(count, "file") + ")");
  return join(names);
}

void log_skipped(const std::vector<hub::SkippedFile>& files) {
  if (files.empty()) return;
  std::uint64_t num_bytes = 0;
  for (const hub::SkippedFile& file : files) num_bytes += file.num_bytes;
  log_info("skipped, because lora-train does not read them (" + size_of(num_bytes) +
           "; --all downloads them): " + names_of(files));
}

std::string next_command(const std::string& name, const hub::DownloadResult& result, bool is_dataset) {
  if (is_dataset)
    return "lora-train tokenize --profile my.yaml --set datasets[0].path=" + shell_line({name}) + " --show 3";
  if (result.is_adapter) return "lora-train chat --model BASE --adapter " + shell_line({result.snapshot.string()});
  return "lora-train train --model " + shell_line({name}) + " --train-data train.jsonl";
}

void print_download(const std::string& name, const hub::DownloadResult& result, bool is_dataset, bool json) {
  if (json) {
    nlohmann::ordered_json skipped = nlohmann::ordered_json::array();
    for (const hub::SkippedFile& file : result.skipped) skipped.push_back(file.path);
    print_line(to_line({{"snapshot", result.snapshot.string()},
                        {"commit", result.commit},
                        {"num_files", result.num_files},
                        {"num_bytes", result.num_bytes},
                        {"num_downloaded_bytes", result.num_downloaded_bytes},
                        {"skipped", skipped}}));
    return;
  }
  print_line(result.snapshot.string());
  if (result.num_files > 0)
    log_info(name + ": " + count_of(result.num_files, "file") + ", " + size_of(result.num_bytes) + ", commit " +
             result.commit.substr(0, 12) +
             (result.num_downloaded_bytes == 0 ? "; all were in the cache already"
                                               : "; downloaded " + size_of(result.num_downloaded_bytes)));
  log_info("next: " + next_command(name, result, is_dataset));
}

}  // namespace

int run_download(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "download",
      "Downloads a model, an adapter or a dataset from the Hugging Face hub into the local cache, where "
      "model: ORG/NAME finds it. Only what lora-train reads of a model; every file is checked. Run it "
      "again to resume. Reads HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and "
      "https_proxy.");
  std::string name;
  bool is_dataset = false;
  hub::DownloadRequest request;
  parser.app()
      .add_option("name", name, "a repository, with a branch, a tag or a commit if not main")
      ->type_name("ORG/NAME[@REV]");
  parser.app().add_flag("--dataset", is_dataset, "NAME is a dataset");
  parser.app().add_flag("--all", request.all_files, "every file of a model, whatever its format");
  if (!parser.parse(arguments)) return 0;
  const auto id = storage::parse_hub_id(name);
  if (!id)
    parser.refuse("ORG/NAME", name.empty() ? "missing; expected a name such as Qwen/Qwen3-4B."
                                           : "got " + name + ", expected org/name or org/name@revision.");
  request.id = *id;
  request.kind = is_dataset ? storage::HubKind::kDataset : storage::HubKind::kModel;
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

}  // namespace lora_train::cli
