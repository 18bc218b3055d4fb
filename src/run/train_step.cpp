#include "lora_train/run/train_step.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "lora_train/optim/adamw.h"

// N tokens, D hidden, M supervised tokens.

namespace lora_train::run {

StepGraphs::StepGraphs(StepContext& context, const std::map<int, model::Batch>& batches) {
  const auto enqueue_loss_chunk = objective_for(context.objective.loss_type).enqueue_loss_chunk;
  // Loads the kernels of a chunk, because a step without graphs does not call this function.
  if (!batches.empty()) enqueue_loss_chunk(context, batches.begin()->second);
  for (const auto& [class_index, batch] : batches) {
    Body& body = bodies_[class_index];
    body.batch = batch;
    // Each pass starts without attention's prepared data, because temporary memory of one pass is gone in the next.
    const auto record = [&](void (*enqueue)(StepContext&, const model::Batch&)) {
      body.batch.layouts.clear();
      return kernels::capture([&] { enqueue(context, body.batch); });
    };
    body.forward = record(&enqueue_forward);
    if (losses_ == nullptr) losses_ = record(enqueue_loss_chunk);
    body.backward = record(&enqueue_backward);
  }
  update_ = kernels::capture([&] { enqueue_update(context); });
}

void StepGraphs::replay(int class_index, std::int64_t num_chunks) {
  Body& body = bodies_.at(class_index);
  body.forward->replay();
  for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) losses_->replay();
  body.backward->replay();
}

void StepGraphs::update() { update_->replay(); }

namespace {

/// This rank's rows in a step.
std::string name_examples(const StepContext& context, const data::StepPlan& plan) {
  std::vector<std::uint32_t> documents;
  for (const auto& micro : plan.micro_batches) {
    documents.insert(documents.end(), micro.documents.begin(), micro.documents.end());
  }
  return data::name_examples(context.documents, documents);
}

/// Computes the step again, each rank by itself, to find the ranks whose own gradients are not finite. They name their
/// rows; if there are none, only the sum has overflowed.
std::string name_examples_of_ranks(StepContext& context, const data::StepPlan& plan) {
  ranks::OneRank alone;
  ranks::Communicator& ranks = *std::exchange(context.ranks, &alone);
  const std::shared_ptr<void> back(nullptr, [&](void*) { context.ranks = &ranks; });
  context.scalars.drop_ended();  // later steps that a GPU had begun
  train_step(context, plan, build_in_place(context.documents, plan), Update::kSkip);
  const auto scalars = context.scalars.wait();
  const bool is_finite = std::isfinite(scalars[optim::kLossSum]) && std::isfinite(scalars[optim::kGradNorm]);
  std::string text;
  const std::vector<std::string> all = ranks.all_gather(is_finite ? "" : name_examples(context, plan));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) text += fmt::format("{}{}: {}", text.empty() ? "on rank " : "; on rank ", rank, all[rank]);
  }
  return text.empty() ? "finite on each rank, but the sum over the ranks is not" : text;
}

[[noreturn]] void refuse_non_finite(StepContext& context, const data::StepPlan& plan, const StepResult& result) {
  const std::string examples =
      context.ranks->world_size() > 1 ? name_examples_of_ranks(context, plan) : name_examples(context, plan);
  const std::string advice =
      plan.step == 1 ? "No step came before it: check these examples and the base weights"
                     : fmt::format(
                           "Lower learning_rate first (here {:.3g}), or raise warmup_ratio; then check these "
                           "examples and the base weights",
                           result.learning_rate);
  throw NumericError(fmt::format("step {}", plan.step),
                     "loss {}, gradient norm {}: not finite. Nothing was updated. {}. Examples of this step: {}",
                     result.loss, result.grad_norm, advice, examples);
}

std::vector<PhiloxKey> dropout_keys(const StepContext& context, std::int64_t step) {
  std::vector<PhiloxKey> keys;
  for (const std::string& path : context.dropout_paths) {
    keys.push_back(philox_key(context.seed, RandomPurpose::kLoraDropout, path, static_cast<std::uint64_t>(step)));
  }
  return keys;
}

void enqueue_micro_batch(StepContext& context, const model::Batch& batch, int class_index) {
  if (context.graphs != nullptr && context.graphs->has(class_index)) {
    return context.graphs->replay(class_index, context.loss_head.num_chunks(batch));
  }
  objective_for(context.objective.loss_type).enqueue_gradients(context, batch);
}

}  // namespace

void enqueue_forward(StepContext& context, const model::Batch& batch) {
  model::decoder_forward(context.decoder, batch, context.activations);
  at::Tensor d_hidden = context.activations.d_hidden.narrow(0, 0, batch.num_tokens());
  context.loss_head.begin(d_hidden);
}

void enqueue_backward(StepContext& context, const model::Batch& batch) {
  model::decoder_backward(context.decoder, batch, context.activations);
}

void enqueue_update(StepContext& context) {
  model::Trainables& parameters = context.parameters;
  optim::measure_gradients(parameters.grads, context.max_grad_norm, context.scalars.device());
  context.optimizer.update(parameters.values, parameters.grads, context.adamw, parameters.blocks(),
                           context.scalars.device());
  context.weights.refresh();
}

NextMicroBatch build_in_place(const data::DocumentStore& store, const data::StepPlan& plan) {
  struct Place {
    data::HostBuffer buffer;
    data::MicroBatch batch;
    std::size_t next = 0;
  };
  return [&store, &plan, place = std::make_shared<Place>()] {
    place->batch = data::build_micro_batch(store, plan.micro_batches[place->next++], place->buffer);
    return std::shared_ptr<const data::MicroBatch>(place, &place->batch);
  };
}

double train_step(StepContext& context, const data::StepPlan& plan, const NextMicroBatch& next, Update update,
                  RankFigures figures) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const auto step_start = std::chrono::steady_clock::now();
  at::Tensor& scalars = context.scalars.device();
  context.scalars.begin(plan.step, plan.weight_sum, context.schedule, context.adamw, dropout_keys(context, plan.step));
  context.parameters.grads.zero_();
  double& data_wait_ms = figures.data_wait_ms;
  for (std::size_t i = 0; i < plan.micro_batches.size(); ++i) {
    throw_if_stop_requested();
    const auto start = std::chrono::steady_clock::now();
    const std::shared_ptr<const data::MicroBatch> micro_batch = next();
    if (plan.micro_batches[i].documents.empty()) continue;  // fewer rows than ranks
    const int class_index = context.feed.class_of(*micro_batch);
    model::Batch batch = context.feed.put(*micro_batch, class_index);
    batch.dropout.keys = context.scalars.dropout_keys();
    data_wait_ms += Milliseconds(std::chrono::steady_clock::now() - start).count();
    enqueue_micro_batch(context, batch, class_index);
  }
  if (context.ranks->world_size() > 1) {
    figures.compute_ms = Milliseconds(std::chrono::steady_clock::now() - step_start).count() - data_wait_ms;
    context.scalars.put_figures(context.ranks->rank(), figures);
    context.ranks->all_reduce(
        std::array{context.parameters.grads, scalars[optim::kLossSum], context.scalars.figures()});
  }
  if (update == Update::kSkip) {
    optim::measure_gradients(context.parameters.grads, context.max_grad_norm, scalars);
  } else {
    context.is_updating = true;
    context.graphs != nullptr ? context.graphs->update() : enqueue_update(context);
    context.is_updating = false;
  }
  context.scalars.end();
  return data_wait_ms;
}

StepResult wait_for_step(StepContext& context, const data::StepPlan& plan) {
  const auto scalars = context.scalars.wait();
  StepResult result;
  result.loss = scalars[optim::kLossSum] / plan.weight_sum;
  result.grad_norm = scalars[optim::kGradNorm];
  result.learning_rate = scalars[optim::kLearningRate];
  result.zeroed_moments = scalars[optim::kZeroedMoments];
  result.ranks = context.scalars.figures_of_ranks();
  if (scalars[optim::kNonFinite] != 0) {  // a reduction that was broken off sets it too
    context.is_updating = true;           // it may have come before or after this step's update
    context.ranks->throw_if_failed();
    context.is_updating = false;
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) refuse_non_finite(context, plan, result);
  return result;
}

namespace {

/// Input and outputs of the loss head for a micro-batch.
struct HeadPass {
  HeadPass(StepContext& context, const model::Batch& batch)
      : hidden(context.activations.final_hidden.narrow(0, 0, batch.num_tokens())),
        d_hidden(context.activations.d_hidden.narrow(0, 0, batch.num_tokens())),
        loss_sum(context.scalars.device()[optim::kLossSum]),
        denominator(context.scalars.device()[optim::kLossDenominator]) {}

  at::Tensor hidden, d_hidden;  ///< [N, D]
  at::Tensor loss_sum, denominator;
};

void enqueue_nll(StepContext& context, const model::Batch& batch) {
  model::decoder_forward(context.decoder, batch, context.activations);
  HeadPass head(context, batch);
  context.loss_head.train(head.hidden, batch, head.denominator, head.loss_sum, head.d_hidden);
  model::decoder_backward(context.decoder, batch, context.activations);
}

void enqueue_nll_chunk(StepContext& context, const model::Batch& batch) {
  at::Tensor loss_sum = context.scalars.device()[optim::kLossSum];
  context.loss_head.train_next(context.activations.final_hidden, batch,
                               context.scalars.device()[optim::kLossDenominator], loss_sum,
                               context.activations.d_hidden);
}

/// Dynamic Fine-Tuning (arXiv 2508.05629; TRL's loss_type: dft): the sum of -weight * p * log p, with p held constant.
/// Its gradient is that of cross entropy with token weights weight * p.
void enqueue_dft(StepContext& context, const model::Batch& batch) {
  model::decoder_forward(context.decoder, batch, context.activations);
  HeadPass head(context, batch);
  const std::int64_t M = batch.num_trained_tokens();
  at::Tensor log_probs = context.token_buffers[0].narrow(0, 0, M), weights = context.token_buffers[1].narrow(0, 0, M);
  context.loss_head.log_probs(head.hidden, batch, log_probs);
  at::exp_out(weights, log_probs);
  if (batch.weights.defined()) weights.mul_(batch.weights.narrow(0, 0, M));
  kernels::add_losses(log_probs.neg_(), weights, head.loss_sum);
  context.loss_head.backward(head.hidden, batch, weights, head.denominator, head.d_hidden);
  model::decoder_backward(context.decoder, batch, context.activations);
}

/// The divergence from a teacher, mixed with cross entropy.
void enqueue_kl(StepContext& context, const model::Batch& batch) {
  if (!batch.soft.ids.defined()) return enqueue_nll(context, batch);
  model::decoder_forward(context.decoder, batch, context.activations);
  HeadPass head(context, batch);
  const kernels::SoftTargetOptions options{context.objective.kd_temperature, context.objective.kd_alpha};
  context.loss_head.train_soft(head.hidden, batch, options, head.denominator, head.loss_sum, head.d_hidden);
  model::decoder_backward(context.decoder, batch, context.activations);
}

constexpr Objective kObjectives[] = {
    {LossType::kNll, enqueue_nll, enqueue_nll_chunk},
    {LossType::kDft, enqueue_dft, nullptr, /*num_token_buffers=*/2},
    {LossType::kKl, enqueue_kl, nullptr, /*num_token_buffers=*/0},
};

}  // namespace

const Objective& objective_for(LossType type) {
  return *std::find_if(std::begin(kObjectives), std::end(kObjectives),
                       [type](const Objective& objective) { return objective.type == type; });
}

std::vector<at::Tensor> make_token_buffers(const Objective& objective, std::int64_t max_tokens, at::Device device) {
  std::vector<at::Tensor> buffers;
  for (int i = 0; i < objective.num_token_buffers; ++i) {
    buffers.push_back(at::empty({max_tokens}, at::TensorOptions(at::kFloat).device(device)));
  }
  return buffers;
}

}  // namespace lora_train::run
