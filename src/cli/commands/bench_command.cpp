// lora-train bench: a step of a known shape, counted and measured. No files needed.

#include <cmath>
#include <string>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/profile_flags.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/bench/bench.h"
#include "lora_train/model/families/model_config.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

using bench::BenchResult;
using bench::BenchWork;
using Json = nlohmann::ordered_json;

Json work_json(const BenchWork& work) {
  return {{"name", work.name},
          {"calls", work.calls},
          {"launches", work.launches},
          {"bytes_read", work.bytes_read},
          {"bytes_written", work.bytes_written},
          {"planned_bytes", or_null(work.planned_bytes)},
          {"flops", work.flops},
          {"bound_ms", or_null(work.bound_ms)},
          {"ms", or_null(work.ms)}};
}

Json pass_json(const bench::BenchPass& pass) {
  return {{"kernel", pass.kernel}, {"operand", pass.operand},       {"buffer", pass.buffer},
          {"times", pass.times},   {"bytes_read", pass.bytes_read}, {"bytes_written", pass.bytes_written}};
}

Json rates_json(const bench::BenchRates& rates) {
  return {{"source", rates.source},
          {"gpu", rates.gpu},
          {"shape", or_null(rates.shape)},
          {"precision", or_null(rates.precision)},
          {"date", or_null(rates.date)},
          {"gemm_flops_per_s", rates.gemm_flops_per_s},
          {"copy_bytes_per_s", rates.copy_bytes_per_s},
          {"attention_forward_flops_per_s", rates.attention_forward_flops_per_s},
          {"attention_backward_flops_per_s", rates.attention_backward_flops_per_s}};
}

Json speed_json(const bench::BenchSpeed& speed) {
  return {{"step_ms", speed.step_ms},
          {"step_ms_p10", speed.step_ms_p10},
          {"step_ms_p90", speed.step_ms_p90},
          {"tokens_per_s", speed.tokens_per_s},
          {"tokens_per_s_p10", speed.tokens_per_s_p10},
          {"tokens_per_s_p90", speed.tokens_per_s_p90},
          {"peak_memory_gib", speed.peak_memory_gib},
          {"startup_peak_memory_gib", speed.startup_peak_memory_gib},
          {"peak_host_memory_gib", speed.peak_host_memory_gib},
          {"idle_share", or_null(speed.idle_share)},
          {"gemm_flops_per_s", or_null(speed.gemm_flops_per_s)},
          {"gemm_share", or_null(speed.gemm_share)},
          {"linears_share", or_null(speed.linears_share)},
          {"first_loss", speed.first_loss},
          {"last_loss", speed.last_loss}};
}

std::int64_t num_launches(const BenchResult& result) {
  std::int64_t sum = 0;
  for (const auto& work : result.classes) sum += work.launches;
  return sum;
}

constexpr double kMega = 1e6, kGiga = 1e9, kTera = 1e12;

/// "12,345"
std::string whole(double value) { return format_count(std::llround(value)); }

/// Two decimals, or two significant digits for smaller values: test shapes give small figures.
std::string figure(double value) {
  return value == 0 || value >= 0.1 ? fmt::format("{:.2f}", value) : fmt::format("{:.2g}", value);
}

/// If true, launches, GPU memory and the bound are omitted.
bool is_measured_on_a_cpu(const BenchResult& r) { return r.speed && r.device == "cpu"; }

void print_sizes(const BenchResult& r, std::string& text) {
  text += fmt::format("shape {}, {}, {}, recompute {}, row pitch {}\n", r.shape, r.device, r.precision, r.recompute,
                      r.row_pitch);
  text += fmt::format(
      "rows of {} tokens, {} a micro-batch, {} a step; counted: a step of {} tokens in {} documents, {} trained\n",
      format_count(r.max_seq_len), format_count(r.micro_batch_size), format_count(r.global_batch_size),
      format_count(r.tokens), format_count(r.documents), format_count(r.supervised_tokens));
}

/// "651.2 TFLOP/s of plain products of these shapes; ..."
std::string gemm_rate_in_words(const bench::BenchSpeed& speed) {
  if (!speed.gemm_flops_per_s || !speed.gemm_share) return "unknown";
  const bool is_fast = *speed.gemm_flops_per_s >= kTera;
  std::string text = fmt::format(
      "{:.1f} {} of plain products of these shapes; the step's required FLOPs run at {:.1f}% of it",
      *speed.gemm_flops_per_s / (is_fast ? kTera : kGiga), is_fast ? "TFLOP/s" : "GFLOP/s", 100 * *speed.gemm_share);
  if (speed.linears_share) text += fmt::format(", its products at {:.1f}%", 100 * *speed.linears_share);
  return text;
}

void print_speed(const bench::BenchSpeed& speed, bool is_cpu, std::string& text) {
  text += fmt::format("\ntokens/s     {} (p10 {}, p90 {}); step {:.2f} ms (p10 {:.2f}, p90 {:.2f})\n",
                      whole(speed.tokens_per_s), whole(speed.tokens_per_s_p10), whole(speed.tokens_per_s_p90),
                      speed.step_ms, speed.step_ms_p10, speed.step_ms_p90);
  if (is_cpu) {
    text += fmt::format("memory       {:.2f} GiB peak\n", speed.peak_host_memory_gib);
  } else {
    text += fmt::format("memory       {:.2f} GiB peak on the GPU ({:.2f} before the steps), {:.2f} GiB on the host\n",
                        speed.peak_memory_gib, speed.startup_peak_memory_gib, speed.peak_host_memory_gib);
  }
  if (speed.idle_share) text += fmt::format("GPU idle     {:.1f}% of the step\n", 100 * *speed.idle_share);
  text += fmt::format("GEMM rate    {}\n", gemm_rate_in_words(speed));
  text += fmt::format("loss         {:.4f} to {:.4f}\n", speed.first_loss, speed.last_loss);
}

void print_capture(const report::StepCapture& capture, std::string& text) {
  text += std::string("CUDA graphs  ") + (capture.recorded ? "replayed" : "none");
  if (!capture.reason.empty()) text += (capture.recorded ? "; " : ": ") + capture.reason;
  text += "\n";
}

void print_work(const char* title, const std::vector<BenchWork>& list, const BenchResult& r, std::string& text) {
  const auto tokens = static_cast<double>(r.tokens);
  text += fmt::format("\n{:<32} {:>7} {:>8} {:>10} {:>10} {:>12} {:>10} {:>10}\n", title, "calls", "launches",
                      "MB/token", "planned", "GFLOP/token", "bound, ms", "ms/step");
  for (const auto& work : list) {
    const auto planned = work.planned_bytes ? fmt::format("{:.3f}", *work.planned_bytes / tokens / kMega) : "-";
    const auto ms = work.ms ? fmt::format("{:.3f}", *work.ms) : "-";
    const bool has_bound = work.bound_ms && !is_measured_on_a_cpu(r);
    const auto bound = has_bound ? fmt::format("{:.3f}", *work.bound_ms) : "-";
    text += fmt::format("{:<32} {:>7} {:>8} {:10.3f} {:>10} {:12.4f} {:>10} {:>10}\n", work.name,
                        format_count(work.calls), is_measured_on_a_cpu(r) ? "-" : format_count(work.launches),
                        static_cast<double>(work.bytes_read + work.bytes_written) / tokens / kMega, planned,
                        static_cast<double>(work.flops) / tokens / kGiga, bound, ms);
  }
}

/// "assumed, of an NVIDIA H200, not measured: products 790.0 TFLOP/s, ..."
std::string rates_in_words(const bench::BenchRates& rates) {
  const std::string origin =
      rates.is_assumed() ? fmt::format("assumed for an {}, not measured", rates.gpu)
                         : fmt::format("measured on {}, {}, {} ({})", rates.gpu, rates.shape, rates.date, rates.source);
  return fmt::format("{}: products {:.1f} TFLOP/s, attention {:.1f} and {:.1f}, memory {:.2f} TB/s", origin,
                     rates.gemm_flops_per_s / kTera, rates.attention_forward_flops_per_s / kTera,
                     rates.attention_backward_flops_per_s / kTera, rates.copy_bytes_per_s / kTera);
}

void print_limits(const BenchResult& r, std::string& text) {
  const auto tokens = static_cast<double>(r.tokens);
  text += "\n";
  const auto gflop = [&](double flops) { return figure(flops / tokens / kGiga); };
  const auto mega = [&](double value) { return figure(value / tokens * kMega); };
  if (!is_measured_on_a_cpu(r)) text += fmt::format("launches     {} a step\n", format_count(num_launches(r)));
  text += fmt::format(
      "FLOPs        {} GFLOP/token required (linears {}, head {}, attention {}, LoRA {}), {} in products executed\n",
      gflop(r.required.total()), gflop(r.required.linears), gflop(r.required.head), gflop(r.required.attention),
      gflop(r.required.lora), gflop(r.executed_flops));
  text += fmt::format("memory moved {} MB/token outside products and attention, {} planned\n",
                      figure(r.counted_bytes / tokens / kMega), figure(r.planned_bytes / tokens / kMega));
  if (is_measured_on_a_cpu(r)) return;
  text += fmt::format("rates        {}\n", rates_in_words(r.rates));
  text += fmt::format(
      "bound        {} tokens/s if nothing overlaps, at {} rates: products {}, attention {}, memory {} us/token\n",
      whole(tokens / r.bound.total_s()), r.rates.is_assumed() ? "assumed" : "measured", mega(r.bound.gemm_s),
      mega(r.bound.attention_s), mega(r.bound.memory_s));
}

void print_passes(const BenchResult& r, std::string& text) {
  text += fmt::format("\n{:<28} {:<24} {:<20} {:>6} {:>10} {:>10}\n", "passes over activations", "operand", "buffer",
                      "times", "MB/t read", "written");
  for (const auto& pass : r.passes) {
    text += fmt::format("{:<28} {:<24} {:<20} {:6} {:10.4f} {:10.4f}\n", pass.kernel, pass.operand, pass.buffer,
                        pass.times, static_cast<double>(pass.bytes_read) / static_cast<double>(r.tokens) / kMega,
                        static_cast<double>(pass.bytes_written) / static_cast<double>(r.tokens) / kMega);
  }
}

/// One JSON object on one line.
std::string bench_json(const BenchResult& r) {
  const Json line = {{"shape", r.shape},
                     {"device", r.device},
                     {"precision", r.precision},
                     {"recompute", r.recompute},
                     {"row_pitch", r.row_pitch},
                     {"max_seq_len", r.max_seq_len},
                     {"micro_batch_size", r.micro_batch_size},
                     {"global_batch_size", r.global_batch_size},
                     {"tokens", r.tokens},
                     {"supervised_tokens", r.supervised_tokens},
                     {"documents", r.documents},
                     {"launches", num_launches(r)},
                     {"required_flops",
                      {{"linears", r.required.linears},
                       {"head", r.required.head},
                       {"attention", r.required.attention},
                       {"lora", r.required.lora},
                       {"total", r.required.total()}}},
                     {"executed_flops", r.executed_flops},
                     {"bytes", {{"counted", r.counted_bytes}, {"planned", r.planned_bytes}}},
                     {"rates", rates_json(r.rates)},
                     {"bound",
                      {{"gemm_s", r.bound.gemm_s},
                       {"attention_s", r.bound.attention_s},
                       {"memory_s", r.bound.memory_s},
                       {"total_ms", 1e3 * r.bound.total_s()},
                       {"tokens_per_s", static_cast<double>(r.tokens) / r.bound.total_s()}}},
                     {"cuda_graphs", Json::parse(report::to_json(r.cuda_graphs))},
                     {"speed", r.speed ? speed_json(*r.speed) : Json()},
                     {"classes", json_list(r.classes, work_json)},
                     {"kernels", json_list(r.kernels, work_json)},
                     {"passes", json_list(r.passes, pass_json)}};
  return to_line(line);
}

/// Tables: sizes, speed, kernel classes against what a step has to move, limits; with `details`, also each kernel and
/// every pass over activations.
std::string bench_table(const BenchResult& result, bool details) {
  std::string text;
  print_sizes(result, text);
  if (result.speed) print_speed(*result.speed, is_measured_on_a_cpu(result), text);
  if (result.speed && !is_measured_on_a_cpu(result)) print_capture(result.cuda_graphs, text);
  print_limits(result, text);
  print_work("class", result.classes, result, text);
  if (details) {
    print_work("kernel", result.kernels, result, text);
    print_passes(result, text);
  }
  return text;
}

constexpr std::int64_t kMaxSteps = 1000000;

/// Refuses keys that name files or make no sense for a measurement.
void refuse_keys(const CommandParser& parser, const Profile& profile) {
  for (const char* key : {"model", "datasets", "eval_datasets", "val_set_size", "init_adapter", "num_epochs",
                          "max_steps", "batch_unit"}) {
    if (!profile.is_given(key)) continue;
    parser.refuse("--set", std::string(key) +
                               " has no meaning here: weights and documents are synthetic, and --steps sets the number "
                               "of steps.");
  }
}

}  // namespace

int run_bench(const std::vector<std::string>& arguments) {
  keep_stop_requests();
  CommandParser parser(
      "bench",
      "Measures speed and memory of a training step for a known shape, with random weights and synthetic documents. "
      "Profile keys set the rest: max_seq_len (2048), micro_batch_size (as large as fits), global_batch_size (one "
      "micro-batch), precision, lora_r, gradient_checkpointing, ...");
  const ProfileFlags flags(parser, {});
  bench::BenchRequest request;
  std::string trace, rates;
  bool details = false;
  parser.add("--shape", request.shape, "NAME|DIR/",
             "model folder, or published model to measure: " + join(model::known_shapes()));
  const CLI::Option* const steps =
      parser.add_integer("--steps", request.num_steps, 1, kMaxSteps, "measured steps (default 20)");
  parser.add_integer("--warm-up", request.num_warm_up, 0, kMaxSteps, "warm-up steps before them (default 5)");
  parser.add_flag(
      "--mix", request.mix,
      "packed documents as in fine-tuning, 500 tokens on average, half of them trained; without it, full rows");
  parser.add_flag("--count", request.count_only,
                  "compute nothing; count launches, FLOPs and bytes of a step, and the bound they set; needs no GPU");
  parser.add_flag("--only-steps", request.only_steps,
                  "measure only the steps and their memory, not idle time, kernel classes or GEMM rate");
  parser.add_flag("--measure-rates", request.measure_rates,
                  "measure the rates of GEMMs, attention and memory on this device, write them to a file and use "
                  "them for the bound; with --steps, measure the steps first");
  parser.add("--rates", rates, "FILE",
             "file of measured rates for the bound (default: the one in the user's cache folder, else assumed)");
  using enum model::RowPitch;
  parser.add_choice("--row-pitch", request.row_pitch, {{"exact", kExact}, {"padded", kPadded}},
                    "layout of rows with adapter columns: exact, or padded to 64 elements; default: as in training");
  parser.add("--profile-trace", trace, "FILE", "write a Chrome trace of a step (chrome://tracing, ui.perfetto.dev)");
  parser.add_flag("--details", details, "also list each kernel and every pass over activations");
  if (!parser.parse(arguments)) return 0;
  if (request.shape.empty()) parser.refuse("--shape", "missing; expected one of " + join(model::known_shapes()) + ".");
  model::known_shape(request.shape);
  if (request.count_only && request.only_steps)
    parser.refuse("--only-steps", "cannot be combined with --count, which computes no steps.");
  if (request.measure_rates && steps->count() == 0 && !request.only_steps) request.count_only = true;
  if (!trace.empty() && (request.count_only || request.only_steps))
    parser.refuse("--profile-trace", "cannot be combined with --count or --only-steps, which leave nothing to trace.");
  parser.refuse_special_file("--profile-trace", trace);
  if (request.measure_rates) parser.refuse_special_file("--rates", rates);

  ProfileSources sources = flags.sources();
  sources.needs_model = sources.needs_datasets = false;
  const LoadedProfile loaded = load_and_log(sources);
  refuse_keys(parser, loaded.profile);
  request.profile = loaded.profile;
  request.trace = trace;
  request.rates = rates;
  const bench::BenchResult result = load_engine().bench(request);
  if (parser.common().json) {
    print_line(bench_json(result));
  } else {
    print_text(bench_table(result, details));
  }
  return 0;
}

}  // namespace lora_train::cli
