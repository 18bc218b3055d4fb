#include "lora_train/bench/forecast/forecast.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <tuple>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
#include "lora_train/data/prepare.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/plan/run_spec.h"
#include "lora_train/plan/setup/setup.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/storage/model_weights.h"
#include "measured_rates.h"

namespace lora_train::bench {
namespace {

/// The number of steps, a step's average size over all ranks, and the size on the busiest rank.
struct Steps {
  std::int64_t count = 0;
  double of_epoch = 0, tokens = 0, most_rows = 0, most_tokens = 0;
};

constexpr std::int64_t kSurveyedSteps = 1000;

constexpr double kPackedShare = 0.98;  // share of a row filled by documents of stated lengths

bool has_weights(const std::filesystem::path& folder) {
  const auto is_weights = [](const auto& entry) { return entry.path().extension() == ".safetensors"; };
  return std::any_of(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator(), is_weights);
}

/// The data of a run, read or stated.
class DataLoad {
 public:
  DataLoad(const ForecastRequest& request, const lora::ModelFiles& files) {
    facts_.are_stated = request.num_documents > 0;
    if (facts_.are_stated) {
      state(request);
    } else {
      read(request.profile, files);
    }
  }

  const DataFacts& facts() const { return facts_; }

  /// plan::RunFacts::rows_of_rank.
  std::int64_t rows_of_rank(const Profile& profile, std::int64_t num_ranks) const {
    if (!profile.packs_documents()) return 0;
    const data::BatchSizes sizes =
        data::resolve_batch_sizes(profile.schedule, facts_.max_seq_len, data::kAutoMicroBatchTokens, num_ranks);
    if (!facts_.are_stated) return plan_of(profile, sizes, num_ranks).most_rows_of_rank();
    return std::llround(std::ceil(rows_of(profile, static_cast<double>(ceil_div(sizes.global, num_ranks)))));
  }

  Steps steps_of(const Profile& profile, const data::BatchSizes& sizes, std::int64_t num_ranks) const {
    const bool has_documents = profile.packs_documents();
    Steps steps;
    double rows = 0, documents = 0;  // per step
    if (facts_.are_stated) {
      const auto all = static_cast<double>(facts_.num_documents);
      const double units = has_documents ? all : rows_of(profile, all);
      const double of_epoch = steps.of_epoch = std::ceil(units / static_cast<double>(sizes.global));
      const double epochs = profile.schedule.num_epochs.value_or(std::numeric_limits<double>::infinity());
      const std::int64_t most = profile.schedule.max_steps.value_or(std::numeric_limits<std::int64_t>::max());
      steps.count = std::llround(std::min(std::ceil(epochs * of_epoch), static_cast<double>(most)));
      steps.tokens = static_cast<double>(facts_.num_tokens) / of_epoch;
      documents = all / of_epoch;
      rows = rows_of(profile, documents);
    } else {
      const data::RunPlan& plan = plan_of(profile, sizes, num_ranks);
      steps.count = plan.total_steps();
      steps.of_epoch = static_cast<double>(plan.steps_of_first_epoch());
      steps.tokens = plan.tokens_per_step();
      documents = plan.documents_per_step();
      rows = plan.rows_per_step();
    }
    const auto ranks = static_cast<double>(num_ranks);
    const double units = has_documents ? documents : rows;  // units that are distributed to the ranks
    const double most_units = std::ceil(units / ranks - 1e-9);
    steps.most_tokens = steps.tokens * std::min(1.0, most_units / units);
    steps.most_rows = !has_documents      ? most_units
                      : facts_.are_stated ? rows_of(profile, most_units)
                                          : std::ceil(rows / ranks);
    return steps;
  }

  /// The largest in the first thousand steps of one rank and in full evaluation batches.
  plan::TouchedTokens largest_micro_batch(const Profile& profile, const plan::RunSpec& spec) const {
    if (facts_.are_stated) return {spec.max_tokens, spec.max_tokens};
    plan::TouchedTokens most;
    const auto add = [&](std::int64_t tokens, std::int64_t supervised) {
      most = {std::max(most.tokens, tokens), std::max(most.supervised, supervised)};
    };
    const data::RunPlan plan = data::plan_run(profile, prepared_, spec.sizes(), {0, 1});
    for (std::int64_t step = 1; step <= std::min(kSurveyedSteps, plan.total_steps()); ++step) {
      for (const auto& micro : plan.step(step).micro_batches) {
        std::int64_t tokens = 0, supervised = 0;
        for (const std::uint32_t document : micro.documents) {
          tokens += prepared_.train.num_tokens(document);
          supervised += prepared_.train.num_supervised(document);
        }
        add(tokens, supervised);
      }
    }
    for (const auto& eval : prepared_.evals) {
      const double share = static_cast<double>(eval.store.total_supervised()) /
                           static_cast<double>(std::max<std::int64_t>(1, eval.store.total_tokens()));
      const std::int64_t tokens = std::min(spec.eval_micro_batch_size * facts_.max_seq_len, eval.store.total_tokens());
      add(tokens, std::llround(share * static_cast<double>(tokens)));
    }
    return most;
  }

 private:
  /// The plan shared by all GPUs: they differ in micro-batches, which do not change its figures.
  const data::RunPlan& plan_of(const Profile& profile, const data::BatchSizes& sizes, std::int64_t num_ranks) const {
    const auto key = std::tuple(profile.data.packing, sizes.global, num_ranks);
    auto found = plans_.find(key);
    if (found == plans_.end())
      found = plans_.emplace(key, data::plan_run(profile, prepared_, sizes, {0, num_ranks})).first;
    return found->second;
  }

  void state(const ForecastRequest& request) {
    const std::int64_t length = request.tokens_per_document;
    facts_.num_documents = request.num_documents;
    facts_.num_tokens = facts_.num_supervised = request.num_documents * length;
    facts_.max_seq_len = request.profile.data.max_seq_len.value_or(ceil_div(length, std::int64_t{64}) * 64);
    if (length > facts_.max_seq_len)
      throw ConfigError("--tokens-per-document", "is {}, more than max_seq_len: {}", length, facts_.max_seq_len);
    facts_.keys_per_query = (static_cast<double>(length) + 1) / 2;
  }

  void read(const Profile& profile, const lora::ModelFiles& files) {
    prepared_ = data::prepare_data(profile.data, plan::data_context(profile, files), true);
    const data::DocumentStore& store = prepared_.train;
    facts_.num_documents = static_cast<std::int64_t>(store.size());
    facts_.num_tokens = store.total_tokens();
    facts_.num_supervised = store.total_supervised();
    facts_.max_seq_len = prepared_.max_seq_len;
    double keys = 0;
    for (std::size_t i = 0; i < store.size(); ++i) {
      const auto length = static_cast<double>(store.num_tokens(i));
      keys += length * (length + 1) / 2;
    }
    facts_.keys_per_query = keys / static_cast<double>(std::max<std::int64_t>(1, facts_.num_tokens));
    for (const auto& eval : prepared_.evals) facts_.num_eval_tokens += eval.store.total_tokens();
  }

  /// Rows for documents of the stated lengths.
  double rows_of(const Profile& profile, double documents) const {
    if (!profile.data.packing) return documents;
    const double tokens =
        static_cast<double>(facts_.num_tokens) / static_cast<double>(facts_.num_documents) * documents;
    const double length = static_cast<double>(facts_.max_seq_len);
    const double fitting =
        std::floor(length * static_cast<double>(facts_.num_documents) / static_cast<double>(facts_.num_tokens));
    return std::max({1.0, documents / std::max(1.0, fitting), tokens / (kPackedShare * length)});
  }

  data::PreparedData prepared_;
  mutable std::map<std::tuple<bool, std::int64_t, std::int64_t>, data::RunPlan> plans_;  ///< each holds an epoch
  DataFacts facts_;
};

/// Reads the headers of weights if there are any. Throws FormatError for a quantised folder without weights: only they
/// say which linears are quantised.
lora::ModelFiles open_model_files(const Profile& profile) {
  const ModelSection& section = profile.model;
  lora::ModelFiles files = lora::open_model(section, profile.adapter.init_adapter);
  const auto& folder = files.resolved.folder;
  if (has_weights(folder)) {
    files.base = plan::base_storage(section, files.config, storage::open_model_weights(folder));
  } else if (files.config.quantization.format == model::LinearFormat::kPlain) {
    files.base = plan::base_storage(section, files.config);
  } else {
    throw FormatError(folder.string(), "is quantised (" + files.config.quantization.description +
                                           "), and only its weights, which are missing, say which linears are");
  }
  return files;
}

constexpr double kUsualShare = 0.85;  // of the limit that a step is expected to reach
constexpr double kMostShare = 0.97, kLeastShare = 0.65, kLeastMeasuredShare = 0.78;
constexpr std::int64_t kTokenizerBytes = 310;  // per token of the vocabulary: 46 MiB for Qwen2.5

/// The model, from a folder that may lack weights, or from a known shape.
lora::ModelFiles open_files(const ForecastRequest& request) {
  if (request.shape.empty()) return open_model_files(request.profile);
  lora::ModelFiles files;
  files.config = model::known_shape(request.shape);
  files.base = plan::base_storage(request.profile.model, files.config);
  return files;
}

/// "full", or "full, then off" if the last layers keep more than the first.
std::string in_words(const std::vector<model::Recompute>& modes) {
  std::string text;
  for (std::size_t i = 0; i < modes.size(); ++i) {
    if (i > 0 && modes[i] == modes[i - 1]) continue;
    text += std::string(text.empty() ? "" : ", then ") + model::to_string(modes[i]);
  }
  return text;
}

/// The number of evaluations in a run.
double num_evaluations(const Profile& profile, const Steps& planned) {
  const Cadence& cadence = profile.run.eval_steps;
  const double period =
      cadence.kind == Cadence::Kind::kEpoch ? planned.of_epoch : static_cast<double>(cadence.period(planned.count));
  const double count = period > 0 ? std::ceil(static_cast<double>(planned.count) / period) : 1;  // after the last step
  return count + (profile.run.eval_on_start ? 1 : 0);
}

/// Seconds to sum `num_parameters` fp32 gradients over a ring of GPUs. 0 for one GPU.
double all_reduce_s(const device::GpuFacts& gpu, int num_gpus, std::int64_t num_parameters) {
  if (num_gpus == 1) return 0;
  const double moved = 2.0 * (num_gpus - 1) / num_gpus * static_cast<double>(num_parameters) * sizeof(float);
  return moved / (gpu.link_gb_s * 1e9);
}

/// The least seconds for an evaluation of `load`.
double least_evaluation_s(const plan::RunFacts& facts, const BenchRates& rates, const plan::StepLoad& load) {
  const plan::RequiredFlops flops = plan::required_flops(facts.config, facts.adapters, load);
  return (flops.linears + flops.head + flops.lora) / 2 / rates.gemm_flops_per_s +
         plan::kForwardOfAttention * flops.attention / rates.attention_forward_flops_per_s;
}

/// The forecast of a run on given GPUs.
class GpuForecast {
 public:
  GpuForecast(const Profile& profile, const lora::ModelFiles& files, const model::BaseStorage& base,
              const DataLoad& load, const PastRatios& past)
      : profile_(profile),
        files_(files),
        base_(base),
        load_(load),
        past_(past),
        adapters_(plan::choose_adapters(profile, files)) {}

  Forecast on(const device::GpuFacts& gpu, int num_gpus) const {
    if (gpu.is_cpu) return on_this_cpu(gpu);
    const plan::RunFacts facts = plan::facts_on(facts_for(num_gpus), gpu);
    Forecast result{.gpu = gpu.name, .num_gpus = num_gpus, .memory_limit = facts.memory_bytes};
    result.least_memory = plan::least_bytes(facts);
    const auto spec = plan::decide_if_fits(facts);
    result.fits = spec.has_value();
    if (!spec) result.ways_to_fit = plan::ways_to_fit(facts);
    fill(facts, spec ? *spec : plan::decide_smallest(facts), gpu, result);
    return result;
  }

 private:
  Forecast on_this_cpu(const device::GpuFacts& cpu) const {
    plan::RunFacts facts = facts_for(1);
    const std::int64_t available = report::available_host_memory();
    facts.host_bytes = facts.memory_bytes = available / 2;  // as the run does
    Forecast result{.gpu = cpu.name, .memory_limit = available};
    plan::RunSpec spec = plan::decide(facts);
    spec.memory = host_plan(facts, spec);
    fill(facts, spec, cpu, result);
    result.fits = result.memory.total() <= available;
    const Profile smallest = plan::with_least_memory(profile_);
    const plan::RunFacts least = plan::with_profile(facts, smallest);
    result.least_memory = std::min(result.memory.total(), host_plan(least, plan::decide(least)).total());
    return result;
  }

  plan::MemoryPlan host_plan(const plan::RunFacts& facts, const plan::RunSpec& spec) const {
    plan::MemoryPlan memory = plan::plan_host(facts, spec, load_.largest_micro_batch(facts.profile, spec));
    if (files_.tokenizer) memory.program += files_.tokenizer->vocab_size() * kTokenizerBytes;
    return memory;
  }

  plan::RunFacts facts_for(int num_gpus) const {
    plan::RunFacts facts{profile_, files_.config, adapters_.specs, load_.facts().max_seq_len,
                         load_.facts().num_eval_tokens > 0};
    facts.rows_of_rank = load_.rows_of_rank(profile_, num_gpus);
    facts.num_ranks = num_gpus;
    facts.base = base_;
    facts.token_rows = adapters_.config.token_rows;
    return facts;
  }

  void fill(const plan::RunFacts& facts, const plan::RunSpec& spec, const device::GpuFacts& gpu,
            Forecast& result) const {
    const auto num_ranks = static_cast<double>(result.num_gpus);
    const Steps steps = load_.steps_of(facts.profile, spec.sizes(), result.num_gpus);
    const DataFacts& data = load_.facts();
    const double supervised_share = static_cast<double>(data.num_supervised) / static_cast<double>(data.num_tokens);
    const plan::StepLoad load{std::round(steps.most_tokens), std::round(steps.most_tokens * supervised_share),
                              data.keys_per_query,
                              std::llround(std::ceil(steps.most_rows / static_cast<double>(spec.micro_batch_size)))};
    plan::StepLoad evaluation = load;
    evaluation.tokens = evaluation.supervised = std::round(static_cast<double>(data.num_eval_tokens) / num_ranks);
    const BenchRates rates = rates_of(gpu, profile_);
    const std::int64_t num_parameters = spec.memory.adapter / model::Trainables::bytes(1);
    const double step_s = plan::least_step_s(facts, spec, rates, load);
    const double sum_s = all_reduce_s(gpu, result.num_gpus, num_parameters);
    const double least_s =
        static_cast<double>(steps.count) * step_s +
        (data.num_eval_tokens > 0 ? num_evaluations(profile_, steps) * least_evaluation_s(facts, rates, evaluation)
                                  : 0);
    const double sums_s = static_cast<double>(steps.count) * sum_s;
    result.is_measured = !rates.is_assumed();
    result.checkpoint_bytes = num_parameters * static_cast<std::int64_t>(sizeof(float)) + spec.memory.optimizer;
    result.memory = spec.memory;
    result.micro_batch_size = spec.micro_batch_size;
    result.global_batch_size = spec.global_batch_size;
    result.num_steps = steps.count;
    result.recompute = in_words(spec.recompute);
    const double usual_s = least_s / kUsualShare + sums_s;
    const std::optional<Calibration> calibration = calibration_of(past_, gpu.name, profile_.model.precision);
    const double factor = calibration ? calibration->factor : 1;
    result.num_past_runs = calibration ? calibration->num_runs : 0;
    result.step_s = factor * (step_s / kUsualShare + sum_s);
    result.tokens_per_s = steps.tokens / result.step_s;
    result.hours = factor * usual_s / 3600;
    if (calibration) {
      result.hours_low = calibration->low * usual_s / 3600;
      result.hours_high = calibration->high * usual_s / 3600;
    } else {
      const double least_share = result.is_measured ? kLeastMeasuredShare : kLeastShare;
      result.hours_low = (least_s / kMostShare + sums_s) / 3600;
      result.hours_high = (least_s / least_share + sums_s) / 3600;
    }
    const auto price = gpu.is_cpu ? profile_.run.gpu_price_per_hour : std::optional(gpu.price_per_hour);
    if (price) result.cost_usd = result.hours * *price * num_ranks;
  }

  const Profile& profile_;
  const lora::ModelFiles& files_;
  const model::BaseStorage& base_;
  const DataLoad& load_;
  const PastRatios& past_;
  plan::AdapterSetup adapters_;
};

/// Compares past runs on the requested GPUs with their plans.
PastRatios compare_past_runs(const ForecastRequest& request, std::vector<std::string>& notes) {
  PastRatios past;
  for (const PastRun& run : request.past_runs) {
    throw_if_stop_requested();
    const auto gpu = std::ranges::find_if(request.gpus, [&](const device::GpuFacts& known) {
      return run.gpu.empty() ? known.is_cpu : known.device_name == run.gpu;
    });
    if (gpu == request.gpus.end()) {
      notes.push_back(fmt::format("{}: not used: it ran on {}", run.folder, run.gpu.empty() ? "a CPU" : run.gpu));
      continue;
    }
    try {
      const lora::ModelFiles files = open_model_files(run.profile);
      const DataLoad load({.profile = run.profile}, files);
      const Forecast planned = GpuForecast(run.profile, files, files.base, load, {}).on(*gpu, run.num_gpus);
      const double ratio = planned.tokens_per_s / run.tokens_per_s;
      past[{gpu->name, run.profile.model.precision}].push_back(ratio);
      notes.push_back(fmt::format("{}: took {:.2f} times as long as planned for {} x {} without past runs", run.folder,
                                  ratio, run.num_gpus, gpu->name));
    } catch (const Error& error) {
      notes.push_back(fmt::format("{}: not used: {}", run.folder, error.what()));
    }
  }
  return past;
}

/// Variants that people ask for, one setting at a time.
std::vector<std::pair<std::string, Profile>> variants_of(const Profile& profile) {
  std::vector<std::pair<std::string, Profile>> variants = {{"as the profile says", profile}};
  const auto add = [&](const std::string& setting, auto&& change) {
    Profile changed = profile;
    change(changed);
    const bool is_refused = changed.model.mixes_precisions() ||
                            (changed.adapter.kind == AdapterKind::kNone && changed.model.is_quantised());
    if (profile_hash(changed) != profile_hash(profile) && !is_refused) variants.emplace_back(setting, changed);
  };
  for (const auto precision : {BasePrecision::kBf16, BasePrecision::kInt8, BasePrecision::kNf4}) {
    add("base_precision: " + to_string(precision), [&](Profile& p) { p.model.base_precision = precision; });
  }
  add("nf4 with decoded_layers: 0", [&](Profile& p) {  // if all layers fit decoded, nf4 alone saves no memory
    p.model.base_precision = BasePrecision::kNf4;
    p.model.decoded_layers = 0;
  });
  for (const auto mode : {GradientCheckpointing::kOff, GradientCheckpointing::kFull}) {
    add("gradient_checkpointing: " + to_string(mode), [&](Profile& p) { p.run.gradient_checkpointing = mode; });
  }
  add("packing: " + std::string(profile.data.packing ? "false" : "true"),
      [&](Profile& p) { p.data.packing = !p.data.packing; });
  add("optim: adamw_8bit", [&](Profile& p) { p.optimizer.kind = OptimizerKind::kAdamw8bit; });
  return variants;
}

/// The GPU to compare variants on.
const device::GpuFacts* choose_gpu(const ForecastRequest& request, const std::vector<Forecast>& rows) {
  const Forecast* best = nullptr;
  for (const Forecast& row : rows) {
    if (row.num_gpus != 1 || !row.fits) continue;
    constexpr double kUnknown = std::numeric_limits<double>::infinity();
    if (best == nullptr || row.cost_usd.value_or(kUnknown) < best->cost_usd.value_or(kUnknown)) best = &row;
  }
  const device::GpuFacts* chosen = nullptr;
  for (const auto& gpu : request.gpus) {
    if (best != nullptr ? gpu.name == best->gpu : chosen == nullptr || gpu.memory_gib > chosen->memory_gib)
      chosen = &gpu;
  }
  return chosen;
}

/// Reports errors that do not depend on the data before reading it, which may take long.
void check_without_data(const ForecastRequest& request, const lora::ModelFiles& files) {
  const Profile& profile = request.profile;
  const plan::AdapterSetup adapters = plan::choose_adapters(profile, files);
  model::model_shape(files.config, adapters.specs, {}, adapters.config.token_rows);
  if (profile.data.max_seq_len) model::check_rope_supported(files.config, *profile.data.max_seq_len);
  for (const device::GpuFacts& gpu : request.gpus) rates_of(gpu, profile);
}

constexpr std::uintmax_t kSmallData = std::uintmax_t{16} << 20;

bool are_small(const std::vector<DatasetSpec>& datasets) {
  std::uintmax_t bytes = 0;
  for (const DatasetSpec& dataset : datasets) {
    std::error_code code;  // folders and globs have no size
    const std::uintmax_t size = std::filesystem::file_size(dataset.path, code);
    if (code) return false;
    bytes += size;
  }
  return !datasets.empty() && bytes <= kSmallData;
}

std::optional<std::int64_t> length_of_rows(const Profile& profile, const lora::ModelFiles& files) {
  if (profile.data.max_seq_len) return profile.data.max_seq_len;
  if (!are_small(profile.data.datasets)) return std::nullopt;
  return data::prepare_data(profile.data, plan::data_context(profile, files), true).max_seq_len;
}

}  // namespace

ForecastResult make_forecast(const ForecastRequest& request) {
  const lora::ModelFiles files = open_files(request);
  check_without_data(request, files);
  const DataLoad load(request, files);
  model::check_rope_supported(files.config, load.facts().max_seq_len);
  ForecastResult result{
      .model = fmt::format("{} parameters, {} layers", format_count(model::num_parameters(files.config)),
                           files.config.num_layers),
      .data = load.facts()};
  const PastRatios past = compare_past_runs(request, result.notes);
  const GpuForecast given(request.profile, files, files.base, load, past);
  for (const device::GpuFacts& gpu : request.gpus) {
    for (const int count : gpu.is_cpu ? std::vector{1} : request.counts) {
      throw_if_stop_requested();
      result.rows.push_back(given.on(gpu, count));
    }
  }
  const device::GpuFacts* const gpu = choose_gpu(request, result.rows);
  for (const auto& [setting, profile] : variants_of(request.profile)) {
    throw_if_stop_requested();
    Variant variant{setting, std::nullopt};
    try {
      const bool keeps_base = profile.model.base_precision == request.profile.model.base_precision;
      if (!keeps_base && files.config.quantization.format != model::LinearFormat::kPlain)
        continue;  // the folder decides
      const model::BaseStorage base = keeps_base ? files.base : plan::base_storage(profile.model, files.config);
      variant.forecast = GpuForecast(profile, files, base, load, past).on(*gpu, 1);
    } catch (const ConfigError&) {  // such as a batch_unit without a number
    }
    result.variants.push_back(std::move(variant));
  }
  return result;
}

std::string check_fit(const Profile& profile, const device::GpuFacts& gpu) {
  try {
    const lora::ModelFiles files = open_model_files(profile);
    const auto max_seq_len = length_of_rows(profile, files);
    if (!max_seq_len) return {};
    const auto adapters = plan::choose_adapters(profile, files);
    const bool has_evaluation = !profile.data.eval_datasets.empty() || profile.data.val_set_size > 0;
    plan::RunFacts facts{profile, files.config, adapters.specs, *max_seq_len, has_evaluation};
    facts.base = files.base;
    facts.token_rows = adapters.config.token_rows;
    return plan::misfit(facts, gpu);
  } catch (const Error&) {  // other checks report errors in the files
    return {};
  }
}

}  // namespace lora_train::bench
