#include "lora_train/evaluate/loss_evaluation.h"

#include <ATen/ops/tensor.h>

#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/data/plan/micro_batch.h"

namespace lora_train::evaluate {
namespace {

void add(const model::LossSums& from, model::LossSums& to) {
  to.loss += from.loss;
  to.num_tokens += from.num_tokens;
  to.num_correct += from.num_correct;
  to.bins.resize(from.bins.size());
  for (std::size_t i = 0; i < from.bins.size(); ++i) {
    to.bins[i].count += from.bins[i].count;
    to.bins[i].confidence += from.bins[i].confidence;
    to.bins[i].correct += from.bins[i].correct;
  }
}

std::vector<report::CalibrationBin> bins_of(const model::LossSums& sums) {
  std::vector<report::CalibrationBin> bins;
  for (const auto& bin : sums.bins) bins.push_back({bin.count, bin.confidence, bin.correct});
  return bins;
}

/// A micro-batch whose values are on their way to the host.
struct Enqueued {
  std::size_t index = 0;  ///< in the plan
  data::MicroBatch micro_batch;
  plan::HostCopy values;
};

Enqueued enqueue(const EvalContext& context, std::size_t index, const data::MicroBatch& micro_batch) {
  const model::Batch batch = context.feed.put_evaluation(micro_batch);
  model::decoder_forward(context.decoder, batch, context.activations);
  const at::Tensor hidden = context.activations.final_hidden.narrow(0, 0, batch.num_tokens());
  return {index, micro_batch, plan::HostCopy(context.loss_head.evaluate(hidden, batch))};
}

/// Adds the losses of a micro-batch's tokens to its documents' losses.
void add_by_document(const std::vector<double>& token_losses, const data::MicroBatch& micro_batch,
                     const std::vector<std::uint32_t>& documents, std::vector<double>& document_losses) {
  auto next = token_losses.begin();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const auto begin = static_cast<std::size_t>(micro_batch.cu_seqlens[i]);
    const auto labels =
        micro_batch.labels.subspan(begin, static_cast<std::size_t>(micro_batch.cu_seqlens[i + 1]) - begin);
    for (const std::int32_t label : labels) {
      if (label != data::kIgnoredLabel) document_losses[documents[i]] += *next++;
    }
  }
}

/// Sums over all ranks, in fp64: exact for counts, and for documents, each of which is on one rank.
void add_ranks(ranks::Communicator& ranks, model::LossSums& sums, double& weight_sum,
               std::vector<double>& document_losses) {
  if (ranks.world_size() == 1) return;
  sums.bins.resize(model::kCalibrationBins);
  std::vector<double> own = {sums.loss, weight_sum, static_cast<double>(sums.num_tokens),
                             static_cast<double>(sums.num_correct)};
  for (const auto& bin : sums.bins) {
    own.insert(own.end(), {static_cast<double>(bin.count), bin.confidence, static_cast<double>(bin.correct)});
  }
  own.insert(own.end(), document_losses.begin(), document_losses.end());
  const at::Tensor values = at::tensor(own, at::kDouble);
  ranks.all_reduce(std::array{values});
  const auto* next = values.const_data_ptr<double>();
  sums.loss = *next++;
  weight_sum = *next++;
  sums.num_tokens = static_cast<std::int64_t>(*next++);
  sums.num_correct = static_cast<std::int64_t>(*next++);
  for (auto& bin : sums.bins) {
    bin.count = static_cast<std::int64_t>(*next++);
    bin.confidence = *next++;
    bin.correct = static_cast<std::int64_t>(*next++);
  }
  for (double& loss : document_losses) loss = *next++;
}

void check_finite(double loss, const data::NamedStore& data, const data::MicroBatchPlan& plan) {
  if (std::isfinite(loss)) return;
  throw NumericError("evaluation on " + data.name,
                     "loss {}: not finite. Examples of this micro-batch: {}. Look at these examples, at the base "
                     "weights and at the loss of the last training steps",
                     loss, data::name_examples(data.store, plan.documents));
}

}  // namespace

EvalResult evaluate(const EvalContext& context, const data::NamedStore& data,
                    const std::vector<data::MicroBatchPlan>& plan) {
  model::LossSums sums;
  double weight_sum = 0;
  EvalResult result;
  result.name = data.name;
  result.document_losses.resize(data.store.size());
  const auto stride = static_cast<std::size_t>(context.ranks.world_size());
  const auto read = [&](Enqueued& done) {
    const data::MicroBatchPlan& micro_plan = plan[done.index];
    const model::LossSums part = model::loss_sums(done.values.wait(), done.micro_batch.num_supervised);
    check_finite(part.loss, data, micro_plan);
    add(part, sums);
    add_by_document(part.losses, done.micro_batch, micro_plan.documents, result.document_losses);
    weight_sum += done.micro_batch.weight_sum;
    if (context.on_micro_batch) context.on_micro_batch(std::min(done.index + stride, plan.size()), plan.size());
  };
  // Reads a micro-batch once the next one is enqueued, so that a GPU never waits for the host.
  std::array<data::HostBuffer, 2> buffers;
  std::optional<Enqueued> last;
  for (auto i = static_cast<std::size_t>(context.ranks.rank()); i < plan.size(); i += stride) {
    throw_if_stop_requested();
    Enqueued next = enqueue(context, i, data::build_micro_batch(data.store, plan[i], buffers[i / stride % 2]));
    if (last) read(*last);
    last = std::move(next);
  }
  if (last) read(*last);
  add_ranks(context.ranks, sums, weight_sum, result.document_losses);
  const auto num_tokens = static_cast<double>(sums.num_tokens);
  result.num_tokens = sums.num_tokens;
  result.weight_sum = weight_sum;
  result.loss = sums.loss / weight_sum;
  result.perplexity = std::exp(*result.loss);
  result.token_accuracy = static_cast<double>(sums.num_correct) / num_tokens;
  result.bins = bins_of(sums);
  result.ece = report::calibration_error(result.bins);
  return result;
}

report::DocumentLosses no_losses_yet(const data::NamedStore& data) {
  report::DocumentLosses losses{.name = data.name, .documents = data::documents_hash(data.store)};
  for (std::size_t i = 0; i < data.store.size(); ++i) losses.weights.push_back(data.store.weight_sum(i));
  return losses;
}

}  // namespace lora_train::evaluate
