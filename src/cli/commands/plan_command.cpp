// lora-train plan: memory, time and cost of a run on GPUs that are not here.
#include <algorithm>

#include "command_line.h"
#include "engine/engine_loader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "lora_train/config/value/value.h"
#include "lora_train/device/gpu_table.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/report/run_log.h"
#include "open_model.h"
#include "output/plan_report.h"
#include "output/standard_output.h"
#include "profile_flags.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

constexpr std::int64_t kMostDocuments = 1'000'000'000, kLongestDocument = 10'000'000;
constexpr std::int64_t kUsualDocument = 500;
constexpr int kMostGpus = 1024;

/// Those of the table that are asked for, all that a name may mean; the whole table if none is.
std::vector<device::GpuFacts> choose_gpus(const CommandParser& parser, const std::vector<device::GpuFacts>& table,
                                          const std::vector<std::string>& names) {
  if (names.empty()) return table;
  std::vector<device::GpuFacts> chosen;
  for (const std::string& name : names) {
    if (lower_case(name) == "cpu") {
      chosen.push_back({.name = "CPU", .device_name = "cpu", .is_cpu = true});
      continue;
    }
    const std::vector<device::GpuFacts> found = device::find_gpus(table, name);
    if (found.empty())
      parser.refuse("--gpu",
                    device::why_not_one_gpu(table, name) + " --gpus FILE adds others, and cpu is this machine's.");
    chosen.insert(chosen.end(), found.begin(), found.end());
  }
  return chosen;
}

std::vector<int> parse_counts(const CommandParser& parser, const std::vector<std::string>& texts) {
  if (texts.empty()) return {1, 2, 4, 8};
  std::vector<int> counts;
  for (const std::string& text : texts) {
    const auto count = parse_integer(text);
    if (!count || *count < 1 || *count > kMostGpus)
      parser.refuse("--count", "is " + text + "; expected a whole number from 1 to " + std::to_string(kMostGpus) + ".");
    counts.push_back(static_cast<int>(*count));
  }
  return counts;
}

PlanLimits parse_limits(const CommandParser& parser, const std::string& deadline, const std::string& budget) {
  PlanLimits limits;
  if (!deadline.empty()) {
    limits.deadline_s = parse_duration(deadline);
    if (limits.deadline_s.value_or(0) <= 0)
      parser.refuse("--deadline", "is " + deadline + "; expected a time such as 6h.");
  }
  if (!budget.empty()) {
    limits.budget_usd = parse_number(budget);
    if (limits.budget_usd.value_or(0) <= 0) parser.refuse("--budget", "is " + budget + "; expected dollars above 0.");
  }
  return limits;
}

/// The rate of the steps, without evaluations: the median of the logged ones, the first of which are slower.
double median_rate(const report::RunRecord& run) {
  constexpr std::size_t kWarmUp = 2;
  std::vector<double> rates;
  for (std::size_t i = kWarmUp; i < run.steps.size(); ++i) {
    if (const auto rate = run.steps[i].tokens_per_s) rates.push_back(*rate);
  }
  if (rates.empty()) return run.figures.tokens_per_s.value_or(0);
  std::ranges::nth_element(rates, rates.begin() + std::ssize(rates) / 2);
  return rates[rates.size() / 2];
}

std::vector<bench::PastRun> read_past_runs(const std::vector<std::string>& folders) {
  std::vector<bench::PastRun> runs;
  if (folders.empty()) return runs;
  for (const std::filesystem::path& folder : find_all_runs(folders)) {
    const report::RunRecord record = report::read_run(folder);
    bench::PastRun run{.folder = folder.string(), .tokens_per_s = median_rate(record)};
    if (record.summary_json.empty() || record.profile.empty() || run.tokens_per_s <= 0) {
      log_info(run.folder + ": not used: " + (record.reason.empty() ? "it has no steps" : record.reason));
      continue;
    }
    if (record.num_gpus == 0 && record.world_size > 1) {
      log_info(run.folder + ": not used: it had " + std::to_string(record.world_size) +
               " ranks on CPUs, and the plan of a CPU has one");
      continue;
    }
    run.gpu = report::gpu_of(record);
    run.num_gpus = std::max(1, static_cast<int>(record.num_gpus));
    run.profile = load_written_profile(folder / "profile.yaml");
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace

int run_plan(const std::vector<std::string>& arguments) {
  [[maybe_unused]] static const auto* const stop_requests = new StopRequests;
  CommandParser parser(
      "plan",
      "Says what a run would need, take and cost on GPUs that are not here: memory, tokens a second, "
      "hours and dollars. Needs config.json, tokenizer and data, or --shape and --documents; no weights, "
      "no GPU.");
  const ProfileFlags flags(parser, {{"--model", "model", "model folder, or org/name in the Hugging Face cache"},
                                    {"--train-data", "datasets", "training data: file, folder or glob"},
                                    {"--eval-data", "eval_datasets", "evaluation data: file, folder or glob"}});
  bench::ForecastRequest request;
  std::vector<std::string> gpu_names, counts, past_runs;
  std::string gpu_file, deadline, budget, disk;
  parser
      .add_list("--gpu", gpu_names,
                "a GPU of the table, as in \"A100\" (both sizes), \"4090\" or \"H100-80GB\" (default: all), or cpu: "
                "this machine's; repeatable")
      ->type_name("NAME");
  parser.add_list("--count", counts, "how many of them (default: 1, 2, 4 and 8); repeatable")->type_name("N");
  parser.app().add_option("--gpus", gpu_file, "GPUs and prices of yours, as in configs/gpus.json")->type_name("FILE");
  parser.app()
      .add_option("--shape", request.shape, "a published model in place of a folder: " + join(model::known_shapes()))
      ->type_name("NAME");
  parser.add_integer("--documents", request.num_documents, 1, kMostDocuments, "documents, in place of data");
  parser.add_integer("--tokens-per-document", request.tokens_per_document, 1, kLongestDocument,
                     "their length (default: 500, or max_seq_len)");
  parser
      .add_list("--calibrate", past_runs,
                "output folder of a run, or a folder of such folders, whose speed scales the times; repeatable")
      ->type_name("DIR");
  parser.app().add_option("--deadline", deadline, "end with the cheapest that is done in this time")->type_name("TIME");
  parser.app().add_option("--budget", budget, "end with the fastest for so many dollars")->type_name("DOLLARS");
  parser.app()
      .add_option("--disk", disk, "GB/s at which checkpoints are written (default 1; lora-train doctor measures it)")
      ->type_name("GB/S");
  if (!parser.parse(arguments)) return 0;
  const std::optional<double> disk_gb_s = disk.empty() ? 1 : parse_number(disk);
  if (disk_gb_s.value_or(0) <= 0) parser.refuse("--disk", "is " + disk + "; expected GB/s above 0.");
  const PlanLimits limits = parse_limits(parser, deadline, budget);
  request.counts = parse_counts(parser, counts);
  if (request.num_documents == 0 && (request.tokens_per_document > 0 || !request.shape.empty()))
    parser.refuse("--documents", "missing; expected how many, since there is no data to count.");
  if (!request.shape.empty()) model::known_shape(request.shape);
  std::vector<device::GpuFacts> table = shipped_gpus();
  if (!gpu_file.empty()) table = device::merge_gpu_tables(table, device::read_gpu_table(gpu_file));
  request.gpus = choose_gpus(parser, table, gpu_names);

  ProfileSources sources = flags.sources();
  sources.needs_model = request.shape.empty();
  sources.needs_datasets = false;
  const LoadedProfile loaded = load_and_log(sources);
  if (request.num_documents == 0 && loaded.profile.data.datasets.empty())
    throw ConfigError("datasets",
                      "missing; expected data to count, or --documents N (of 500 tokens each, unless "
                      "--tokens-per-document says otherwise).");
  if (request.num_documents > 0 && request.tokens_per_document == 0) {
    request.tokens_per_document = std::min(kUsualDocument, loaded.profile.data.max_seq_len.value_or(kUsualDocument));
    log_info("--documents: " + std::to_string(request.tokens_per_document) +
             " tokens each is assumed; "
             "--tokens-per-document says otherwise");
  }
  refuse_unbuilt_features(loaded);
  request.profile = loaded.profile;
  const DataSection& data = loaded.profile.data;
  const bool has_cpu = std::ranges::any_of(request.gpus, &device::GpuFacts::is_cpu);  // whose price it is
  if (loaded.profile.is_given("gpu_price_per_hour") && !has_cpu)
    log_info("gpu_price_per_hour is not used here: prices come from the table of GPUs; --gpus FILE has yours");
  if (request.num_documents > 0 && (!data.eval_datasets.empty() || data.val_set_size > 0))
    log_info("evaluations are not counted with --documents");
  request.past_runs = read_past_runs(past_runs);
  const bench::ForecastResult result = load_engine().forecast(request);
  for (const std::string& note : result.notes) log_info(note);
  print_text(parser.common().json ? plan_json(result, limits) : plan_table(result, limits, *disk_gb_s));
  return 0;
}

}  // namespace lora_train::cli
