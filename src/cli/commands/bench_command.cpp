// lora-train bench: a step of a known shape, counted and measured. No files needed.
#include "command_line.h"
#include "engine/engine_loader.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "lora_train/model/families/known_shapes.h"
#include "output/bench_report.h"
#include "output/standard_output.h"
#include "profile_flags.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

constexpr std::int64_t kMaxSteps = 1000000;

/// Keys that name files or what a measurement has none of.
void refuse_keys(const CommandParser& parser, const Profile& profile) {
  for (const char* key : {"model", "datasets", "eval_datasets", "val_set_size", "init_adapter", "num_epochs",
                          "max_steps", "batch_unit"}) {
    if (!profile.is_given(key)) continue;
    parser.refuse("--set", std::string(key) +
                               " has no meaning here: weights and documents are synthetic, and --steps sets "
                               "the number of steps.");
  }
}

}  // namespace

int run_bench(const std::vector<std::string>& arguments) {
  [[maybe_unused]] static const auto* const stop_requests = new StopRequests;
  CommandParser parser(
      "bench",
      "Measures speed and memory of a training step for a known shape, with random weights and synthetic "
      "documents. Profile keys set the rest: max_seq_len (2048), micro_batch_size (as large as fits), "
      "global_batch_size (one micro-batch), precision, lora_r, gradient_checkpointing, ...");
  const ProfileFlags flags(parser, {});
  bench::BenchRequest request;
  std::string trace, rates, row_pitch;
  bool details = false;
  parser.app().add_option("--shape", request.shape, join(model::known_shapes()))->type_name("NAME");
  const CLI::Option* const steps =
      parser.add_integer("--steps", request.num_steps, 1, kMaxSteps, "measured steps (default 20)");
  parser.add_integer("--warm-up", request.num_warm_up, 0, kMaxSteps, "warm-up steps before them (default 5)");
  parser.app().add_flag(
      "--mix", request.mix,
      "packed documents as in fine-tuning, 500 tokens on average, half of them trained; without it, full rows");
  parser.app().add_flag(
      "--count", request.count_only,
      "compute nothing; count launches, FLOPs and bytes of a step, and the bound they set; needs no GPU");
  parser.app().add_flag("--only-steps", request.only_steps,
                        "measure the steps and their memory alone: no idle time, classes of kernels or GEMM rate");
  parser.app().add_flag("--measure-rates", request.measure_rates,
                        "measure the rates of GEMMs, attention and memory on this device, write them to a file, and "
                        "count with them; steps only with --steps, before the rates");
  parser.app()
      .add_option("--rates", rates,
                  "file of measured rates for the bound (default: the one in the user's cache folder, else assumed)")
      ->type_name("FILE");
  parser.app()
      .add_option("--row-pitch", row_pitch,
                  "layout of rows with adapter columns: exact, or padded to 64 elements; default: as in training")
      ->type_name("exact|padded");
  parser.app()
      .add_option("--profile-trace", trace, "write a Chrome trace of a step (chrome://tracing, ui.perfetto.dev)")
      ->type_name("FILE");
  parser.app().add_flag("--details", details, "also list each kernel and every pass over activations");
  if (!parser.parse(arguments)) return 0;
  if (request.shape.empty()) parser.refuse("--shape", "missing; expected one of " + join(model::known_shapes()) + ".");
  model::known_shape(request.shape);
  if (!row_pitch.empty() && row_pitch != "exact" && row_pitch != "padded")
    parser.refuse("--row-pitch", "is " + row_pitch + "; expected exact or padded.");
  if (!row_pitch.empty())
    request.row_pitch = row_pitch == "padded" ? model::RowPitch::kPadded : model::RowPitch::kExact;
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
  refuse_unbuilt_features(loaded);
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
