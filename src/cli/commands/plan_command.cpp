#include "plan_command.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/open_model.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"
#include "lora_train/device/gpu_table.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/report/run_log.h"
#include "lora_train/report/run_times.h"
#include "lora_train/storage/run_names.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

using bench::Forecast;
using bench::ForecastResult;
using Json = nlohmann::ordered_json;

constexpr double kGiB = 1 << 30;

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

std::string dollars(const std::optional<double>& amount) {
  return amount ? report::format_dollars(*amount) : "no price";
}

std::string name_of(const Forecast& row) { return fmt::format("{} x {}", row.num_gpus, row.gpu); }

std::string in_words(const Forecast& row) {
  return name_of(row) + ": " + format_duration(row.hours * 3600) + " (" + format_duration(row.hours_low * 3600) +
         " to " + format_duration(row.hours_high * 3600) + "), " + dollars(row.cost_usd);
}

/// The smallest `figure` among the rows that fit and pass `filter`; null if there is none.
const Forecast* least(
    const ForecastResult& result, double (*figure)(const Forecast&),
    const std::function<bool(const Forecast&)>& filter = [](const Forecast&) { return true; }) {
  const Forecast* best = nullptr;
  for (const Forecast& row : result.rows) {
    if (!row.fits || !filter(row)) continue;
    if (best == nullptr || figure(row) < figure(*best)) best = &row;
  }
  return best;
}

double hours_of(const Forecast& row) { return row.hours; }
double cost_of(const Forecast& row) { return row.cost_usd.value_or(std::numeric_limits<double>::infinity()); }

Json row_json(const Forecast& row) {
  const plan::MemoryPlan& memory = row.memory;
  Json object = {{"gpu", row.gpu},
                 {"num_gpus", row.num_gpus},
                 {"fits", row.fits},
                 {"memory_gib",
                  {{"weights", gib(memory.weights)},
                   {"quantization", gib(memory.quantization)},
                   {"adapter", gib(memory.adapter)},
                   {"optimizer", gib(memory.optimizer)},
                   {"activations", gib(memory.activations)},
                   {"workspace", gib(memory.workspace())},
                   {"total", gib(memory.total())}}},
                 {"memory_limit_gib", gib(row.memory_limit)},
                 {"least_memory_gib", gib(row.least_memory)},
                 {"micro_batch_size", row.micro_batch_size},
                 {"global_batch_size", row.global_batch_size},
                 {"gradient_checkpointing", row.recompute},
                 {"num_steps", row.num_steps},
                 {"step_s", row.step_s},
                 {"tokens_per_s", row.tokens_per_s},
                 {"hours", row.hours},
                 {"hours_low", row.hours_low},
                 {"hours_high", row.hours_high},
                 {"cost_usd", or_null(row.cost_usd)},
                 {"rates", row.is_measured ? "measured" : "assumed"},
                 {"past_runs", row.num_past_runs},
                 {"checkpoint_bytes", row.checkpoint_bytes}};
  if (memory.program > 0) object["memory_gib"]["program"] = gib(memory.program);
  return object;
}

std::string table_head() {
  return fmt::format("{:<14} {:>4}  {:<16} {:>6} {:>6}  {:<20} {:>9}  {:<27} {:>9}  {}\n", "GPU", "GPUs",
                     "memory (GiB)", "least", "rows", "recomputation", "tok/s", "time", "cost", "from");
}

/// The source of a row's time.
std::string basis_of(const Forecast& row) {
  if (row.num_past_runs > 0) return count_of(row.num_past_runs, "run");
  return row.is_measured ? "measured rates" : "assumed rates";
}

std::string table_line(const Forecast& row) {
  const std::string memory =
      fmt::format("{:.1f} of {:.1f}{}", gib(row.memory.total()), gib(row.memory_limit), row.fits ? "" : " NO");
  const std::string time = fmt::format("{} ({}-{})", format_duration(row.hours * 3600),
                                       format_duration(row.hours_low * 3600), format_duration(row.hours_high * 3600));
  return fmt::format("{:<14} {:4}  {:<16} {:6.1f} {:6}  {:<20} {:>9}  {:<27} {:>9}  {}\n", row.gpu, row.num_gpus,
                     memory, gib(row.least_memory), row.micro_batch_size, row.recompute,
                     format_count(static_cast<long long>(row.tokens_per_s)), time, dollars(row.cost_usd),
                     basis_of(row));
}

std::string data_line(const bench::DataFacts& data) {
  return fmt::format("data: {} documents of {:.0f} tokens on average{}, rows of {}\n", format_count(data.num_documents),
                     static_cast<double>(data.num_tokens) / static_cast<double>(data.num_documents),
                     data.are_stated ? " (as stated)" : "", data.max_seq_len);
}

std::string variants_table(const ForecastResult& result) {
  std::string text;
  for (const auto& variant : result.variants) {
    if (!variant.forecast) continue;
    const Forecast& row = *variant.forecast;
    if (text.empty()) text = fmt::format("\nOn one {}, one setting changed:\n", row.gpu);
    text += fmt::format("  {:<32} {:6.1f} GiB{:<4} least {:6.1f} {:>9} tok/s  {:<12} {:>9}\n", variant.setting,
                        gib(row.memory.total()), row.fits ? "" : " NO", gib(row.least_memory),
                        format_count(static_cast<long long>(row.tokens_per_s)), format_duration(row.hours * 3600),
                        dollars(row.cost_usd));
  }
  return text;
}

/// Names the changes that fit the run on the GPU with most memory, where they are smallest.
std::string what_would_fit(const ForecastResult& result) {
  const auto largest = std::ranges::max_element(result.rows, {}, &Forecast::memory_limit);
  if (largest == result.rows.end() || largest->ways_to_fit.empty())
    return "use a smaller model, or a GPU with more memory";
  return fmt::format("it would fit on {} with {}", name_of(*largest), join(largest->ways_to_fit, ", or with "));
}

/// For the first row that fits, otherwise the first row.
std::string saves_line(const ForecastResult& result, double disk_gb_s) {
  if (result.rows.empty()) return "";
  const auto fitting = std::ranges::find_if(result.rows, &Forecast::fits);
  const Forecast& row = fitting == result.rows.end() ? result.rows.front() : *fitting;
  const bench::SaveCost cost = bench::save_cost(row, disk_gb_s);
  return fmt::format(
      "\nA checkpoint takes {}: on {} a pause of about {:.2f} s, then {:.1f} s of writing during the steps at {:.1f} "
      "GB/s (--disk).\nsave_steps: 100 costs {:.2f}% of the steps' time, 500 {:.2f}%.\n",
      format_bytes(row.checkpoint_bytes), name_of(row), cost.pause_s, cost.write_s, disk_gb_s,
      100 * cost.share_of(row, 100), 100 * cost.share_of(row, 500));
}

/// The rows that matter most without limits; empty if none fits.
std::string short_verdict(const ForecastResult& result) {
  const Forecast* const cheapest = least(result, cost_of);
  const Forecast* const fastest = least(result, hours_of);
  if (fastest == nullptr) return {};
  const auto count = std::ranges::count_if(result.rows, &Forecast::fits);
  return fmt::format("\nVerdict: the run fits in {} of {} cases{}; the fastest is {}\n", count, result.rows.size(),
                     cheapest == nullptr ? "" : "; the cheapest is " + in_words(*cheapest), in_words(*fastest));
}

bool has_limits(const PlanLimits& limits) { return limits.deadline_s || limits.budget_usd; }

constexpr std::int64_t kMostDocuments = 1'000'000'000, kLongestDocument = 10'000'000;
constexpr std::int64_t kUsualDocument = 500;
constexpr int kMostGpus = 1024;

/// The GPUs requested from the table, every one that a name may mean; the whole table if none is named.
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
      parser.refuse("--count", fmt::format("is {}; expected a whole number from 1 to {}.", text, kMostGpus));
    counts.push_back(static_cast<int>(*count));
  }
  return counts;
}

/// The rate of the steps, without evaluations: the median of the logged ones, since the first are slower.
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
      log_info("{}: not used: {}", run.folder, record.reason.empty() ? "it has no steps" : record.reason);
      continue;
    }
    if (record.num_gpus == 0 && record.world_size > 1) {
      log_info("{}: not used: it had {} ranks on CPUs, but a CPU plan has one", run.folder, record.world_size);
      continue;
    }
    run.gpu = record.gpu;
    run.num_gpus = std::max(1, static_cast<int>(record.num_gpus));
    run.profile = load_written_profile(folder / storage::kProfileFile);
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace

PlanVerdict judge(const ForecastResult& result, const PlanLimits& limits) {
  const auto is_in_time = [&](const Forecast& row) {
    return !limits.deadline_s || row.hours * 3600 <= *limits.deadline_s;
  };
  const auto is_paid = [&](const Forecast& row) { return !limits.budget_usd || cost_of(row) <= *limits.budget_usd; };
  const auto is_good = [&](const Forecast& row) { return is_in_time(row) && is_paid(row); };
  const Forecast* const met = limits.deadline_s ? least(result, cost_of, is_good) : least(result, hours_of, is_good);
  if (met != nullptr) {
    const char* const kind = limits.deadline_s   ? "the cheapest within the deadline"
                             : limits.budget_usd ? "the fastest within the budget"
                                                 : "the fastest";
    return {met, true, fmt::format("{} is {}", kind, in_words(*met))};
  }
  const Forecast* const nearest = limits.deadline_s ? least(result, hours_of) : least(result, cost_of);
  if (nearest == nullptr) return {nullptr, false, "the run fits on none of these GPUs; " + what_would_fit(result)};
  return {nearest, false, "nothing meets the limits; the closest is " + in_words(*nearest)};
}

std::string plan_table(const ForecastResult& result, const PlanLimits& limits, double disk_gb_s) {
  std::string text = fmt::format("model: {}\n{}", result.model, data_line(result.data));
  if (!result.rows.empty()) {
    text += fmt::format("steps: {}, global batch {} (on {})\n", format_count(result.rows.front().num_steps),
                        format_count(result.rows.front().global_batch_size), name_of(result.rows.front()));
  }
  text += "\n" + table_head();
  for (const Forecast& row : result.rows) text += table_line(row);
  text += variants_table(result) + saves_line(result, disk_gb_s);
  text +=
      "\nMemory is what the run would plan for itself; the least is what it would need with one row at a time, full "
      "recomputation and no layer kept decoded.\n"
      "Times come from the counted work and the rates of the GPU, assumed (configs/gpus.json) or measured (bench "
      "--measure-rates). They assume 85%\nof the speed that these rates allow; the brackets assume 97% and 65% (78% "
      "with measured rates). With --calibrate, past runs scale the times,\nand the brackets show their spread. Loading "
      "is not included.\nPrices are examples: pass your own with --gpus FILE.\n";
  const bool fits = std::ranges::any_of(result.rows, &Forecast::fits);
  if (!fits && !has_limits(limits))
    text += fmt::format("\nVerdict: the run fits on none of these GPUs; {}.\n", what_would_fit(result));
  if (fits && !has_limits(limits)) text += short_verdict(result);
  if (has_limits(limits)) text += fmt::format("\nVerdict: {}\n", judge(result, limits).text);
  return text;
}

std::string plan_json(const ForecastResult& result, const PlanLimits& limits) {
  std::string lines;
  for (const Forecast& row : result.rows) lines += to_line(row_json(row)) + "\n";
  if (!has_limits(limits)) return lines;
  const PlanVerdict verdict = judge(result, limits);
  Json last = {{"verdict", verdict.text}, {"met", verdict.is_met}};
  const Json row = verdict.row != nullptr ? row_json(*verdict.row) : Json::object();
  for (const char* key : {"gpu", "num_gpus", "hours", "cost_usd"}) last[key] = row.value(key, Json());
  return fmt::format("{}{}\n", lines, to_line(last));
}

int run_plan(const std::vector<std::string>& arguments) {
  keep_stop_requests();
  CommandParser parser(
      "plan",
      "Estimates what a run would need on each type of GPU: memory, tokens per second, hours and dollars. Needs "
      "config.json, a tokenizer and data, or --shape and --documents; needs no weights and no GPU.");
  const ProfileFlags flags(parser, {kModelFlag, kTrainDataFlag, kEvalDataFlag});
  bench::ForecastRequest request;
  std::vector<std::string> gpu_names, counts, past_runs;
  std::string gpu_file;
  PlanLimits limits;
  double disk_gb_s = 1;
  parser.add_list(
      "--gpu", gpu_names, "NAME",
      "a GPU in the table, such as \"A100\" (both sizes), \"4090\" or \"H100-80GB\" (default: all), or cpu for "
      "this machine; repeatable");
  parser.add_list("--count", counts, "N", "number of GPUs (default: 1, 2, 4 and 8); repeatable");
  parser.add("--gpus", gpu_file, "FILE", "your own GPUs and prices, as in configs/gpus.json");
  parser.add("--shape", request.shape, "NAME", "a published model instead of a folder: " + join(model::known_shapes()));
  parser.add_integer("--documents", request.num_documents, 1, kMostDocuments,
                     "assume N documents instead of reading data");
  parser.add_integer("--tokens-per-document", request.tokens_per_document, 1, kLongestDocument,
                     "tokens per document (default: 500, or max_seq_len if that is less)");
  parser.add_list("--calibrate", past_runs, "DIR",
                  "scale the times by the measured speed of this run, or of the runs in this folder; repeatable");
  const auto read_deadline = [&](const std::string& text) {
    limits.deadline_s = parse_duration(text);
    return limits.deadline_s.value_or(0) > 0;
  };
  const auto is_positive = [](double number) { return number > 0; };
  parser.add_parsed("--deadline", "TIME", read_deadline, "a time such as 6h",
                    "name the cheapest option that finishes within this time");
  parser.add_number("--budget", limits.budget_usd, "DOLLARS", is_positive, "dollars above 0",
                    "name the fastest option within this budget");
  parser.add_number("--disk", disk_gb_s, "GB/S", is_positive, "GB/s above 0",
                    "GB/s at which checkpoints are written (default 1; lora-train doctor measures it)");
  if (!parser.parse(arguments)) return 0;
  request.counts = parse_counts(parser, counts);
  if (request.num_documents == 0 && (request.tokens_per_document > 0 || !request.shape.empty()))
    parser.refuse("--documents", "missing; expected a number, since there is no data to count.");
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
    log_info("--documents: assuming {} tokens each; set another length with --tokens-per-document",
             request.tokens_per_document);
  }
  request.profile = loaded.profile;
  const DataSection& data = loaded.profile.data;
  const bool has_cpu = std::ranges::any_of(request.gpus, &device::GpuFacts::is_cpu);  // the price is the CPU's
  if (loaded.profile.is_given("gpu_price_per_hour") && !has_cpu)
    log_info("gpu_price_per_hour is not used here: prices come from the GPU table; pass your own with --gpus FILE");
  if (request.num_documents > 0 && (!data.eval_datasets.empty() || data.val_set_size > 0))
    log_info("evaluations are not counted with --documents");
  request.past_runs = read_past_runs(past_runs);
  const bench::ForecastResult result = load_engine().forecast(request);
  for (const std::string& note : result.notes) log_info(note);
  print_text(parser.common().json ? plan_json(result, limits) : plan_table(result, limits, disk_gb_s));
  return 0;
}

}  // namespace lora_train::cli
