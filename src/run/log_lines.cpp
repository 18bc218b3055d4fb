#include "log_lines.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/data/first_examples.h"
#include "lora_train/device/host.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/plan/run_spec.h"
#include "lora_train/storage/run_names.h"
#include "rank_agreement.h"

namespace lora_train::run {
namespace {

constexpr std::int64_t kFewSteps = 100;

std::string describe_base(const Run& run) {
  const std::int64_t num_layers = run.files.config.num_layers, decoded = std::min(run.spec.decoded_layers, num_layers);
  const std::string text = fmt::format("base: {}; ", model::describe(run.files.base));
  if (decoded == num_layers) return text + "decoded once, because memory allows it";
  return fmt::format("{}{} of {} layers decoded once, the others whenever they are used", text, decoded, num_layers);
}

std::string describe_offload(const Run& run) {
  const model::ActivationPlan& plan = run.activations->plan();
  const std::int64_t bytes = plan.host_bytes(plan::compute_bytes(run.profile().model.precision));
  return fmt::format("activation_offload: the inputs of {} of {} layers are kept in {} of host memory",
                     plan.num_offloaded, plan.layers.size(), format_bytes(bytes));
}

std::string describe_tiles(const Run& run) {
  model::ActivationOptions whole = run.activations->plan().options;
  const std::string tokens = std::to_string(std::exchange(whole.mlp_tile_tokens, 0));
  const auto without = model::plan_activations(run.model.decoder->shape, whole, run.spec.recompute)
                           .bytes(plan::compute_bytes(run.profile().model.precision));
  return fmt::format("mlp_tile_tokens: MLPs run on {} tokens at a time; activations take {} instead of {}", tokens,
                     format_bytes(run.activations->bytes()), format_bytes(without));
}

/// The same batch has the same learning rate on any number of ranks; the batch grows only with
/// gradient_accumulation_steps.
std::string describe_lr_scaling(const Run& run) {
  const ScheduleSection& schedule = run.profile().schedule;
  const double given = run.profile().optimizer.learning_rate;
  const auto peak = [&](std::int64_t batch) {
    return optim::make_lr_schedule(given, schedule, batch, run.plan->total_steps()).peak;
  };
  const std::int64_t batch = run.spec.global_batch_size;
  const std::string line = fmt::format("learning_rate: {:.4g} x {}({} / {}) = {:.4g} (lr_scaling: {})", given,
                                       schedule.lr_scaling == LrScaling::kSqrt ? "sqrt" : "", batch,
                                       *schedule.lr_base_batch, peak(batch), to_string(schedule.lr_scaling));
  if (schedule.global_batch_size || !schedule.gradient_accumulation_steps) {
    return fmt::format("{}, the same on 1, 2, 4 or 8 GPUs, because global_batch_size stays {}", line, batch);
  }
  const std::int64_t of_rank = batch / run.ranks().world_size();
  std::vector<std::string> parts;
  for (const std::int64_t num_gpus : {1, 2, 4, 8}) {
    parts.push_back(
        fmt::format("{}: batch {}, {:.4g}", count_of(num_gpus, "GPU"), num_gpus * of_rank, peak(num_gpus * of_rank)));
  }
  return line + "; " + join(parts);
}

/// The effect of packing on the number of updates; empty if it is small.
std::string describe_packed_steps(const Run& run) {
  if (run.profile().schedule.batch_unit == BatchUnit::kDocuments) return {};
  const data::RunPlan& plan = *run.plan;
  const double documents_per_row = plan.documents_per_step() / plan.rows_per_step();
  if (documents_per_row <= 2) return {};
  const std::int64_t rows = plan.rows_per_epoch(), batch = run.spec.global_batch_size;
  const std::int64_t documents = std::llround(documents_per_row * static_cast<double>(rows));
  return fmt::format(
      "packing puts about {:.1f} documents in a row, so an epoch has {} steps of {} rows; a trainer that counts "
      "documents takes {}. To count documents, set batch_unit: documents",
      documents_per_row, ceil_div(rows, batch), batch, ceil_div(documents, batch));
}

/// True if the driver's name means this kind of GPU: "NVIDIA H100 PCIe" is an H100, "NVIDIA L40S" is not an L4.
bool is_such_gpu(const std::string& device_name, const device::GpuFacts& gpu) {
  const std::string name = fmt::format(" {} ", lower_case(device_name));
  return lower_case(device_name) == lower_case(gpu.device_name) ||
         name.find(fmt::format(" {} ", lower_case(gpu.name))) != std::string::npos;
}

/// "new tokens: 5, with the ids 2048 to 2052; embedding enlarged from 2048 to 2112 rows (...)"
std::string describe_new_tokens(const Run& run) {
  const auto& rows = run.files.new_rows;
  const model::ModelConfig& config = run.files.config;
  std::string line = fmt::format("new tokens: {}, with the ids {} to {}", rows.size(), rows.front().id, rows.back().id);
  if (config.added_rows == 0) return line + ", which are spare rows of the embedding";
  return fmt::format(
      "{}; the embedding is enlarged from {} to {} rows (in transformers: model.resize_token_embeddings({}) before "
      "PEFT loads the adapter)",
      line, config.stored_rows(), config.vocab_size, config.vocab_size);
}

/// "LoRA, r 16, alpha 32, on 28 linears; 155,648 of 1,050,752 parameters are trained (14.8%)"
std::string describe_trained(const Run& run) {
  const std::int64_t all = model::num_parameters(run.files.config), trained = run.model.parameters->size();
  if (run.adapters.specs.empty()) return fmt::format("full fine-tuning of {} parameters", format_count(trained));
  const lora::AdapterConfig& options = run.adapters.config;
  return fmt::format("adapter: {}, r {}, alpha {:g}, on {} linears; {} of {} parameters are trained ({:.2g}%)",
                     options.use_rslora ? "rsLoRA" : "LoRA", options.lora_r, options.lora_alpha,
                     run.adapters.specs.size(), format_count(trained), format_count(all),
                     100.0 * static_cast<double>(trained) / static_cast<double>(all));
}

/// Flags of `generate` for a first try of the result: a short held-out prompt, else one from the training data.
std::vector<std::string> prompt_for_result(const DataSection& section, const std::filesystem::path& result) {
  std::optional<data::ShortPrompt> prompt;
  if (!section.eval_datasets.empty())
    prompt = data::first_short_prompt(section.eval_datasets.front(), data::DatasetUse::kEvaluation);
  if (!prompt && !section.datasets.empty())
    prompt = data::first_short_prompt(section.datasets.front(), data::DatasetUse::kTraining);
  if (!prompt) return {"--prompt", "Hello!"};
  const bool is_default = prompt->is_raw == lora::read_trained_with(result).is_raw();
  if (is_default) return {"--prompt", prompt->text};
  return {prompt->is_raw ? "--raw" : "--raw=false", "--prompt", prompt->text};
}

constexpr std::int64_t kMaxSamples = 4096;
constexpr std::int64_t kFewestSpareRows = 8;  // fewer prove nothing

at::Tensor norms_of(const at::Tensor& rows) { return at::norm(rows.to(at::kFloat), 2, {1}); }

}  // namespace

void log_device_and_model(const OpenedRun& run) {
  const std::string precision = ", precision " + to_string(run.profile().model.precision);
  if (run.device.is_cuda()) {
    log_info("device: {}{}", run.device.name, precision);
  } else {
    const std::string cpu = device::describe_host().cpu_model;
    log_info("device: cpu{}, {}{}", cpu.empty() ? "" : fmt::format(" ({})", cpu),
             count_of(at::get_num_threads(), "thread"), precision);
  }
  log_info("model: {}, {}, {} parameters", run.profile().model.path, run.files.config.architecture,
           format_count(model::num_parameters(run.files.config)));
}

bool has_steps_left(const Run& run) { return run.state.step < run.plan->total_steps(); }

void log_changes(const Run& run, const std::vector<std::string>& changes) {
  const std::string from = has_steps_left(run) ? fmt::format(" from step {}", run.state.step + 1)
                                               : ": no step is left to use it, so profile.yaml stays unchanged";
  for (const std::string& change : changes) log_info(change + from);
}

void warn_of_target_gpu(const Run& run) {
  const std::optional<device::GpuFacts>& target = run.request.target_gpu;
  if (!target) return;
  const std::string misfit = plan::misfit(run.facts, *target);
  if (!misfit.empty()) log_warning("target_gpu: {}: {}", target->name, misfit);
  if (!run.device.is_cuda() || is_such_gpu(run.device.name, *target)) return;  // on a CPU, the log has said so
  log_warning("target_gpu: the profile is meant for {}, but this run is on {}", target->name, run.device.name);
}

void log_start(const Run& run) {
  const auto& plan = *run.plan;
  const bool has_documents = run.profile().schedule.batch_unit == BatchUnit::kDocuments;
  log_info(
      "steps: {} in total, {} in the first epoch; a step has {} {}, about {:.1f} {} and {:.0f} tokens (micro-batches "
      "of {} rows, max_seq_len {}, {:.1f}% of it used)",
      plan.total_steps(), plan.steps_of_first_epoch(), run.spec.global_batch_size, has_documents ? "documents" : "rows",
      has_documents ? plan.rows_per_step() : plan.documents_per_step(), has_documents ? "rows" : "documents",
      plan.tokens_per_step(), run.spec.micro_batch_size, run.data.max_seq_len, 100.0 * plan.packing_efficiency());
  if (const auto& most = run.profile().schedule.max_steps; most && *most > plan.total_steps()) {
    log_info("num_epochs ends the run before max_steps ({}); set num_epochs: null to let max_steps decide", *most);
  }
  if (run.ranks().world_size() > 1) {
    log_info(ranks_in_words(run));
  } else if (run.device.num_gpus > 1) {
    log_info("using one of {} GPUs; --nproc {} uses all of them", run.device.num_gpus, run.device.num_gpus);
  }
  if (run.profile().schedule.lr_scaling != LrScaling::kNone) log_info(describe_lr_scaling(run));
  log_info(describe_trained(run));
  log_debug("activations: at most " + format_bytes(run.activations->bytes()));
  if (!run.files.new_rows.empty()) log_info(describe_new_tokens(run));
  if (!run.files.base.empty()) log_info(describe_base(run));
  if (const std::string ignored = plan::ignored_double_quant(run.profile(), run.files); !ignored.empty()) {
    log_warning(ignored);
  }
  if (run.profile().optimizer.kind == OptimizerKind::kAdamw8bit) {
    const optim::Optimizer& fp32 = optim::optimizer_for(OptimizerKind::kAdamwTorch);
    const std::int64_t needed = run.optimizer->bytes();
    const std::int64_t saved = fp32.state_bytes(run.model.parameters->blocks()) - needed;
    log_info("optimizer state: {}, {}", format_bytes(needed),
             saved > 0 ? format_bytes(saved) + " less than with fp32 moments"
                       : "no less than with fp32 moments: all tensors are small, and small tensors keep them");
  }
  if (run.spec.mlp_tile_tokens > 0) log_info(describe_tiles(run));
  if (run.activations->offload() != nullptr) log_info(describe_offload(run));
  const std::string packed = describe_packed_steps(run);
  // Users who ask for packing know what it does.
  if (!packed.empty()) run.profile().is_given("packing") ? log_info(packed) : log_warning(packed);
  if (const auto& price = run.clock->price()) log_info("price: " + price->in_words());
  if (plan.total_steps() < kFewSteps) {
    log_warning(
        "only {} in total, which may be too few to learn much. Raise max_steps or num_epochs for more, or lower "
        "global_batch_size",
        count_of(plan.total_steps(), "step"));
  }
  log_info("output: " + run.profile().run.output_dir);
}

void log_end(const report::RunSummary& summary, const Profile& profile) {
  const std::filesystem::path output_dir = profile.run.output_dir, report = output_dir / storage::kPageFile;
  log_info(report::times_in_words(summary));
  if (std::filesystem::exists(report)) log_info("report: " + report.string());
  if (summary.status == "done") {
    for (const auto& command :
         report::next_commands(summary, output_dir.string(), prompt_for_result(profile.data, summary.adapter)))
      log_info("next: " + command);
  }
  log_info(report::in_words(summary));
}

std::optional<std::string> looks_untrained(const at::Tensor& embedding, std::int64_t id, std::int64_t num_tokens) {
  const std::int64_t step = std::max<std::int64_t>(1, num_tokens / kMaxSamples);
  const at::Tensor sorted = std::get<0>(norms_of(embedding.slice(0, 0, num_tokens, step)).sort());
  const double usual = sorted[sorted.numel() / 20].item<double>();
  const double norm = norms_of(embedding.slice(0, id, id + 1)).item<double>();
  const std::int64_t num_spare = embedding.size(0) - num_tokens;
  if (num_spare >= kFewestSpareRows) {
    const double longest_spare = norms_of(embedding.slice(0, num_tokens)).max().item<double>();
    if (longest_spare < usual && norm <= longest_spare) {
      return fmt::format(
          "length {:.3g}, like the {} rows that no token uses (at most {:.3g}; 95% of the tokens exceed {:.3g})", norm,
          num_spare, longest_spare, usual);
    }
  }
  if (norm >= usual / 2) return std::nullopt;
  return fmt::format("length {:.3g}, while 95% of the tokens exceed {:.3g}", norm, usual);
}

}  // namespace lora_train::run
