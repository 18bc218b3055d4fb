#include "plan_report.h"

#include <algorithm>

#include "lora_train/base/text.h"
#include "lora_train/report/run_times.h"
#include "standard_output.h"

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

std::string name_of(const Forecast& row) { return std::to_string(row.num_gpus) + " x " + row.gpu; }

std::string in_words(const Forecast& row) {
  return name_of(row) + ": " + format_duration(row.hours * 3600) + " (" + format_duration(row.hours_low * 3600) +
         " to " + format_duration(row.hours_high * 3600) + "), " + dollars(row.cost_usd);
}

/// The least by `figure` of the rows that fit and pass `filter`; null if there is none.
template <typename Figure, typename Filter>
const Forecast* least(const ForecastResult& result, const Figure& figure, const Filter& filter) {
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
  const bench::MemoryParts& memory = row.memory;
  Json object = {{"gpu", row.gpu},
                 {"num_gpus", row.num_gpus},
                 {"fits", row.fits},
                 {"memory_gib",
                  {{"weights", gib(memory.weights)},
                   {"quantization", gib(memory.quantization)},
                   {"adapter", gib(memory.adapter)},
                   {"optimizer", gib(memory.optimizer)},
                   {"activations", gib(memory.activations)},
                   {"workspace", gib(memory.workspace)},
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
                 {"cost_usd", row.cost_usd ? Json(*row.cost_usd) : Json(nullptr)},
                 {"rates", row.is_measured ? "measured" : "assumed"},
                 {"past_runs", row.num_past_runs},
                 {"checkpoint_bytes", row.checkpoint_bytes}};
  if (memory.program > 0) object["memory_gib"]["program"] = gib(memory.program);
  return object;
}

std::string table_head() {
  return string_printf("%-14s %4s  %-16s %6s %6s  %-20s %9s  %-27s %9s  %s\n", "GPU", "GPUs", "memory (GiB)", "least",
                       "rows", "recomputation", "tok/s", "time", "cost", "from");
}

/// What the time of a row is based on.
std::string basis_of(const Forecast& row) {
  if (row.num_past_runs > 0) return count_of(row.num_past_runs, "run");
  return row.is_measured ? "measured rates" : "assumed rates";
}

std::string table_line(const Forecast& row) {
  const std::string memory =
      string_printf("%.1f of %.1f", gib(row.memory.total()), gib(row.memory_limit)) + (row.fits ? "" : " NO");
  const std::string time = format_duration(row.hours * 3600) + " (" + format_duration(row.hours_low * 3600) + "-" +
                           format_duration(row.hours_high * 3600) + ")";
  return string_printf("%-14s %4d  %-16s %6.1f %6lld  %-20s %9s  %-27s %9s  %s\n", row.gpu.c_str(), row.num_gpus,
                       memory.c_str(), gib(row.least_memory), static_cast<long long>(row.micro_batch_size),
                       row.recompute.c_str(), format_count(static_cast<long long>(row.tokens_per_s)).c_str(),
                       time.c_str(), dollars(row.cost_usd).c_str(), basis_of(row).c_str());
}

std::string data_line(const bench::DataFacts& data) {
  return string_printf("data: %s documents of %.0f tokens on average%s, rows of %lld\n",
                       format_count(data.num_documents).c_str(),
                       static_cast<double>(data.num_tokens) / static_cast<double>(data.num_documents),
                       data.are_stated ? " (as stated)" : "", static_cast<long long>(data.max_seq_len));
}

std::string variants_table(const ForecastResult& result) {
  const auto first =
      std::find_if(result.variants.begin(), result.variants.end(), [](const auto& v) { return v.forecast; });
  if (first == result.variants.end()) return "";
  std::string text = "\nOn one " + first->forecast->gpu + ", one setting changed:\n";
  for (const auto& variant : result.variants) {
    if (!variant.forecast) continue;
    const Forecast& row = *variant.forecast;
    text += string_printf("  %-32s %6.1f GiB%-4s least %6.1f %9s tok/s  %-12s %9s\n", variant.setting.c_str(),
                          gib(row.memory.total()), row.fits ? "" : " NO", gib(row.least_memory),
                          format_count(static_cast<long long>(row.tokens_per_s)).c_str(),
                          format_duration(row.hours * 3600).c_str(), dollars(row.cost_usd).c_str());
  }
  return text;
}

/// Of the GPU with most memory, where the least change is needed.
std::string what_would_fit(const ForecastResult& result) {
  const auto largest = std::ranges::max_element(result.rows, {}, &Forecast::memory_limit);
  if (largest == result.rows.end() || largest->ways_to_fit.empty())
    return "use a smaller model, or a GPU with more memory";
  return "on " + name_of(*largest) + " it would with " + join(largest->ways_to_fit, ", or with ");
}

/// Of the first row that fits, or the first.
std::string saves_line(const ForecastResult& result, double disk_gb_s) {
  if (result.rows.empty()) return "";
  const auto fitting = std::ranges::find_if(result.rows, &Forecast::fits);
  const Forecast& row = fitting == result.rows.end() ? result.rows.front() : *fitting;
  const bench::SaveCost cost = bench::save_cost(row, disk_gb_s);
  return string_printf(
      "\nA checkpoint has %s: on %s a pause of about %.2f s, then %.1f s of writing beside the steps at %.1f GB/s "
      "(--disk).\n"
      "save_steps: 100 costs %.2f%% of the steps' time, 500 %.2f%%.\n",
      format_bytes(static_cast<double>(row.checkpoint_bytes)).c_str(), name_of(row).c_str(), cost.pause_s, cost.write_s,
      disk_gb_s, 100 * cost.share_of(row, 100), 100 * cost.share_of(row, 500));
}

/// The rows that matter most to who sets no limit; empty where none fits.
std::string short_verdict(const ForecastResult& result) {
  const auto any = [](const Forecast&) { return true; };
  const Forecast* const cheapest = least(result, cost_of, any);
  const Forecast* const fastest = least(result, hours_of, any);
  if (fastest == nullptr) return {};
  const auto count = std::ranges::count_if(result.rows, &Forecast::fits);
  return "\nVerdict: fits " + std::to_string(count) + " of " + std::to_string(result.rows.size()) +
         (cheapest == nullptr ? "" : "; the cheapest is " + in_words(*cheapest)) + "; the fastest is " +
         in_words(*fastest) + "\n";
}

bool has_limits(const PlanLimits& limits) { return limits.deadline_s || limits.budget_usd; }

}  // namespace

PlanVerdict judge(const ForecastResult& result, const PlanLimits& limits) {
  const auto is_in_time = [&](const Forecast& row) {
    return !limits.deadline_s || row.hours * 3600 <= *limits.deadline_s;
  };
  const auto is_paid = [&](const Forecast& row) { return !limits.budget_usd || cost_of(row) <= *limits.budget_usd; };
  const auto is_good = [&](const Forecast& row) { return is_in_time(row) && is_paid(row); };
  const auto any = [](const Forecast&) { return true; };
  const Forecast* const met = limits.deadline_s ? least(result, cost_of, is_good) : least(result, hours_of, is_good);
  if (met != nullptr) {
    const char* const kind = limits.deadline_s   ? "the cheapest within the deadline"
                             : limits.budget_usd ? "the fastest within the budget"
                                                 : "the fastest";
    return {met, true, std::string(kind) + " is " + in_words(*met)};
  }
  const Forecast* const nearest = limits.deadline_s ? least(result, hours_of, any) : least(result, cost_of, any);
  if (nearest == nullptr) return {nullptr, false, "the run fits on none of these GPUs; " + what_would_fit(result)};
  return {nearest, false, "nothing meets the limits; the closest is " + in_words(*nearest)};
}

std::string plan_table(const ForecastResult& result, const PlanLimits& limits, double disk_gb_s) {
  std::string text = "model: " + result.model + "\n" + data_line(result.data);
  if (!result.rows.empty()) {
    text += "steps: " + format_count(result.rows.front().num_steps) + ", global batch " +
            format_count(result.rows.front().global_batch_size) + " (on " + name_of(result.rows.front()) + ")\n";
  }
  text += "\n" + table_head();
  for (const Forecast& row : result.rows) text += table_line(row);
  text += variants_table(result) + saves_line(result, disk_gb_s);
  text +=
      "\nMemory is what the run would plan itself; the least is what it would need with one row at a time, full "
      "recomputation and no layer kept decoded.\n"
      "Times are derived: counted work at the rates of the GPU, assumed (configs/gpus.json) or measured (bench "
      "--measure-rates), at 85% of the limit;\nin brackets, at 97% and 65% (78% with measured rates). With past runs "
      "(--calibrate) they are scaled by those, and the brackets show how far those\nlie apart. Loading is not in "
      "them.\n"
      "Prices are examples: --gpus FILE has yours.\n";
  const bool fits = std::ranges::any_of(result.rows, &Forecast::fits);
  if (!fits && !has_limits(limits))
    text += "\nVerdict: fits none: the run fits on none of these GPUs; " + what_would_fit(result) + ".\n";
  if (fits && !has_limits(limits)) text += short_verdict(result);
  if (has_limits(limits)) text += "\nVerdict: " + judge(result, limits).text + "\n";
  return text;
}

std::string plan_json(const ForecastResult& result, const PlanLimits& limits) {
  std::string lines;
  for (const Forecast& row : result.rows) lines += to_line(row_json(row)) + "\n";
  if (!has_limits(limits)) return lines;
  const PlanVerdict verdict = judge(result, limits);
  Json last = {{"verdict", verdict.text}, {"met", verdict.is_met}};
  if (verdict.row != nullptr) {
    last.update(Json{{"gpu", verdict.row->gpu},
                     {"num_gpus", verdict.row->num_gpus},
                     {"hours", verdict.row->hours},
                     {"cost_usd", verdict.row->cost_usd ? Json(*verdict.row->cost_usd) : Json(nullptr)}});
  } else {
    last.update(Json{{"gpu", nullptr}, {"num_gpus", nullptr}, {"hours", nullptr}, {"cost_usd", nullptr}});
  }
  return lines + to_line(last) + "\n";
}

}  // namespace lora_train::cli
