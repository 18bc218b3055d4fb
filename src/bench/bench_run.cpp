#include "bench_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>

#include "lora_train/base/error.h"
#include "lora_train/data/prepare.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/weights/init_model.h"
#include "lora_train/run/build_run.h"
#include "lora_train/run/rehearsal.h"

namespace lora_train::bench {
namespace {

constexpr std::int64_t kSequence = 2048, kGpuTokens = 16384, kStepsOfData = 4;
constexpr double kWeightStd = 0.02;
constexpr std::uint64_t kSeed = 7;

// Lengths as in fine-tuning data: log-normal with mean 500 and sum(len^2) / sum(len) of about 950.
constexpr double kMeanLength = 500, kLengthSigma = 0.8;
constexpr std::int64_t kShortest = 16;

std::vector<std::int64_t> document_lengths(const BenchRequest& request, std::int64_t max_seq_len,
                                           std::int64_t num_rows) {
  if (!request.mix) return std::vector<std::int64_t>(static_cast<std::size_t>(num_rows), max_seq_len);
  std::mt19937_64 random(kSeed);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  std::vector<std::int64_t> lengths;
  for (std::int64_t tokens = 0; tokens < num_rows * max_seq_len; tokens += lengths.back()) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
    const double length = kMeanLength * std::exp(kLengthSigma * normal - kLengthSigma * kLengthSigma / 2);
    lengths.push_back(std::clamp(static_cast<std::int64_t>(length), std::min(kShortest, max_seq_len), max_seq_len));
  }
  return lengths;
}

/// Each token depends on the previous one. Full rows are trained on all tokens, documents of the mix only on their
/// second half.
data::DocumentStore make_documents(const BenchRequest& request, std::int64_t max_seq_len, std::int64_t num_rows,
                                   std::int64_t vocab_size) {
  data::TokenTableWriter writer({}, "bench");
  std::vector<std::int32_t> ids, labels;
  std::int64_t line = 0, id = 1;
  for (const std::int64_t length : document_lengths(request, max_seq_len, num_rows)) {
    ids.clear();
    for (id = (id + 17 * ++line) % vocab_size; std::ssize(ids) < length; id = (31 * id + 7) % vocab_size) {
      ids.push_back(static_cast<std::int32_t>(id));
    }
    labels = ids;
    if (request.mix) std::fill_n(labels.begin(), length / 2, data::kIgnoredLabel);
    writer.append(ids, labels, 0, static_cast<std::uint64_t>(line));
  }
  data::DocumentStore store;
  store.add(writer.finish("{}"), {"bench"});
  return store;
}

Profile bench_profile(const BenchRequest& request) {
  Profile profile = request.profile;
  if (!profile.is_given("global_batch_size") && !profile.schedule.gradient_accumulation_steps) {
    profile.schedule.gradient_accumulation_steps = 1;
    profile.schedule.global_batch_size.reset();
  }
  profile.data.max_seq_len = profile.data.max_seq_len.value_or(kSequence);
  profile.schedule.max_steps = request.num_warm_up + request.num_steps + kProfiledSteps;
  profile.schedule.num_epochs.reset();
  return profile;
}

void fill_with_random_numbers(plan::LoadedModel& model, const model::ModelConfig& config) {
  at::manual_seed(kSeed);
  const model::ModelShape shape = model::model_shape(config);
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const model::AcquiredLayer layer(*model.weights, i, model::Pass::kForward);
    const auto& blocks = shape.layers[static_cast<std::size_t>(i)].blocks;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      model::BlockWeights& block = (*layer)[b];
      for (model::Projection& projection : block.projections) {
        projection.base_weight().normal_(0, kWeightStd);
        if (projection.bias.defined()) projection.bias.zero_();
      }
      for (std::size_t s = 0; s < block.small.size(); ++s) {
        at::Tensor& weight = block.small[s].weight;
        const auto constant = model::constant_start(blocks[b].small[s].kind, config);
        if (weight.defined()) constant ? weight.fill_(*constant) : weight.normal_(0, kWeightStd);
      }
    }
  }
  model::OuterWeights& outer = model.weights->acquire_outer(model::Pass::kForward);
  outer.embedding.normal_(0, kWeightStd);
  if (!outer.is_tied) outer.head.normal_(0, kWeightStd);
  outer.final_norm.weight.fill_(1 - config.norm_weight_offset);
  model.parameters->values.normal_(0, kWeightStd);  // B too, so that gradients of A are not zero
}

void load_random_model(run::Run& run, const plan::RunDevice& device) {
  run.adapters.columns = run.spec.columns;
  plan::assemble_model(run.profile(), device, run.files, run.adapters, run::load_options(run), nullptr, run.model);
  if (!device.device.is_meta()) {
    fill_with_random_numbers(run.model, run.files.config);
  }
  run.model.weights->refresh();
}

void plan_data(run::Run& run, const BenchRequest& request) {
  run.data.train = make_documents(request, run.data.max_seq_len, kStepsOfData * run.spec.global_batch_size,
                                  run.files.config.vocab_size);
  run.plan = std::make_unique<data::RunPlan>(data::plan_run(run.profile(), run.data, run.spec.sizes()));
}

run::OpenedRun open(const run::TrainRequest& train, const BenchRequest& request, bool starts_device) {
  run::OpenedRun run(train);
  run.files.config = model::known_shape(request.shape);
  run.files.base = plan::base_storage(run.profile().model, run.files.config);
  run.data.max_seq_len = *run.profile().data.max_seq_len;
  model::check_rope_supported(run.files.config, run.data.max_seq_len);
  run.adapters = plan::choose_adapters(run.profile(), run.files);
  if (starts_device) run.device = plan::start_device(run.profile(), run.files.config);
  run.max_steps_in_flight = run.device.is_cuda() ? run::kMaxStepsInFlight : 0;
  return run;
}

/// Goes from run.facts to buffers, with random documents and weights.
void build(run::Run& run, const BenchRequest& request) {
  run::decide_spec(run, request.row_pitch);
  plan_data(run, request);
  load_random_model(run, run.device);
  run::tune_spec(run);
  run::allocate(run);
}

void build_meta(run::Run& run, const BenchRequest& request, const BenchRun* like) {
  if (like != nullptr) {
    run.spec = like->run.spec;
    run.adapters.columns = run.spec.columns;
  } else {  // as on a GPU if everything fits
    run.facts.auto_tokens = kGpuTokens;
    run.facts.memory_bytes = std::numeric_limits<std::int64_t>::max();
    run.facts.gate_up = plan::gate_up_on_gpu(run.facts);
    run::decide_spec(run, request.row_pitch);
  }
  plan_data(run, request);
  load_random_model(run, {at::kMeta});
  run::allocate(run);
}

}  // namespace

BenchRun::BenchRun(const BenchRequest& requested, bool starts_device, const std::function<void(run::Run&)>& build)
    : request{bench_profile(requested), {}, {}}, run(open(request, requested, starts_device), build) {}

std::unique_ptr<BenchRun> build_bench_run(const BenchRequest& request) {
  const auto build_again = [&](run::Run& run) { build(run, request); };
  auto bench = std::make_unique<BenchRun>(request, /*starts_device=*/true, build_again);
  run::prepare_steps(bench->run, [&] { build_again(bench->run); });
  return bench;
}

std::unique_ptr<BenchRun> build_meta_run(const BenchRequest& request, const BenchRun* like) {
  return std::make_unique<BenchRun>(request, /*starts_device=*/false,
                                    [&](run::Run& run) { build_meta(run, request, like); });
}

plan::StepLoad sizes_of(const run::Run& run, const data::StepPlan& plan) {
  plan::StepLoad sizes;
  double keys = 0;
  for (const auto& micro : plan.micro_batches) {
    for (const std::uint32_t document : micro.documents) {
      const auto length = static_cast<double>(run.data.train.num_tokens(document));
      sizes.tokens += length;
      sizes.supervised += static_cast<double>(run.data.train.num_supervised(document));
      keys += length * (length + 1) / 2;
    }
  }
  sizes.keys_per_query = keys / std::max(1.0, sizes.tokens);
  return sizes;
}

}  // namespace lora_train::bench
