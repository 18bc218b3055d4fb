// Computes loss, token accuracy and calibration of a model on a set of documents.
#pragma once

#include <functional>

#include "lora_train/data/plan/plan.h"
#include "lora_train/data/prepare.h"
#include "lora_train/evaluate/evaluation.h"
#include "lora_train/model/activations.h"
#include "lora_train/model/decoder.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/plan/setup/batch_feed.h"
#include "lora_train/ranks/communicator.h"
#include "lora_train/report/eval_files.h"

namespace lora_train::evaluate {

/// Called after each micro-batch of this rank, with the number done and the number in the plan.
using OnMicroBatch = std::function<void(std::size_t num_done, std::size_t num_micro_batches)>;

/// The parts of a run that an evaluation uses.
struct EvalContext {
  model::Decoder& decoder;
  model::Activations& activations;
  model::LossHead& loss_head;
  plan::BatchFeed& feed;
  ranks::Communicator& ranks;
  OnMicroBatch on_micro_batch = {};
};

/// Evaluates all documents once: rank r takes micro-batches r, r + W, ... of the plan. One all-reduce. Every rank gets
/// the result for all documents. The loss is the weighted mean over the supervised tokens; accuracy and calibration
/// count each token once. ece: 15 equal-width bins over the confidence of the most likely token. Throws StopError
/// between micro-batches, and NumericError, naming examples of the micro-batch, if its loss is not finite.
EvalResult evaluate(const EvalContext& context, const data::NamedStore& data,
                    const std::vector<data::MicroBatchPlan>& plan);

/// The fields of eval_losses.jsonl that are the same in every evaluation of a dataset: all but step and losses. Looks
/// at every document.
report::DocumentLosses no_losses_yet(const data::NamedStore& data);

}  // namespace lora_train::evaluate
