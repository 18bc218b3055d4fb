// Evaluates the base or an adapter: loss, and the other tasks of the request.

#include "lora_train/evaluate/evaluation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/data/prepare.h"
#include "lora_train/evaluate/loss_evaluation.h"
#include "lora_train/evaluate/task_evaluation.h"
#include "lora_train/plan/setup/batch_feed.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/setup/setup.h"
#include "lora_train/ranks/communicator.h"
#include "lora_train/ranks/connect.h"
#include "questions.h"

namespace lora_train::evaluate {
namespace {

/// The datasets of an evaluation. With --choices, their examples are the right choices.
struct EvalData {
  std::vector<data::NamedStore> stores;
  std::vector<data::ChoiceSet> choices;          ///< for each store; empty without --choices
  std::vector<std::vector<Question>> questions;  ///< for each store; empty without --exact-match
  std::int64_t max_seq_len = 0;                  ///< for the stores
  std::int64_t longest = 0;                      ///< including generated tokens
};

EvalData load_choices(const DataSection& section, const lora::ModelFiles& files) {
  if (section.eval_datasets.empty()) {
    throw ConfigError("eval_datasets",
                      "is empty; --choices needs examples with choices, not held-out training examples");
  }
  if (files.tokenizer == nullptr) throw FormatError("--choices", "needs a tokenizer, and the model folder has none");
  EvalData data;
  data.choices =
      data::read_choice_sets(section, {files.tokenizer.get(), files.chat_template.get(), false, {}, section.thinking},
                             files.config.context_length());
  for (auto& set : data.choices) {
    data.max_seq_len = std::max(data.max_seq_len, set.right.store.longest());
    for (const auto& example : set.examples) {
      for (const auto& choice : example.choices)
        data.longest = std::max(data.longest, static_cast<std::int64_t>(choice.ids.size()));
    }
    data.stores.push_back(set.right);
  }
  return data;
}

EvalData load_examples(const Profile& profile, const lora::ModelFiles& files) {
  EvalData data;
  const bool has_sets = !profile.data.eval_datasets.empty() || profile.data.val_set_size > 0;
  if (!has_sets && !profile.tasks.eval_tasks.empty()) return data;
  data::PreparedData prepared = data::prepare_data(profile.data, plan::data_context(profile, files), false);
  data.stores = std::move(prepared.evals);
  data.max_seq_len = data.longest = prepared.max_seq_len;
  return data;
}

class Evaluator {
 public:
  Evaluator(const EvalRequest& request, const std::shared_ptr<ranks::Communicator>& ranks)
      : request_(request), profile_(request.profile), ranks_(ranks), quiet_(request.quiet || ranks->rank() > 0) {
    profile_.adapter.lora_dropout = 0;
  }

  Evaluation run() {
    files_ = lora::open_model_and_weights(profile_.model, request_.adapter, lora::TemplateOf::kAdapter);
    plan::AdapterSetup adapters;
    if (!request_.adapter.empty()) {
      adapters = plan::adapters_of_folder(request_.adapter, files_);
      profile_.adapter.init_adapter = request_.adapter.string();
    }
    model_.device = plan::start_device(profile_, files_.config, request_.world, ranks_);
    const TaskEvaluation tasks(profile_, files_);
    load_data_and_questions();
    require_equal_examples(tasks);
    data_.longest = std::max({data_.longest, tasks.longest(), std::int64_t{1}});
    load_without_plan(profile_, model_.device, files_, adapters, {.max_seq_len = data_.longest}, model_.model);
    Evaluation evaluation{evaluate_losses(), {}};
    if (request_.flags.choices || request_.flags.exact_match) add_answers(evaluation.sets);
    std::vector<std::size_t> all;
    while (all.size() < profile_.tasks.eval_tasks.size()) all.push_back(all.size());
    tasks.evaluate({model_.device, model_.model, profile_.run}, all, {request_.with_answers ? SIZE_MAX : 0, quiet_},
                   [&](TaskResult&& result) { evaluation.tasks.push_back(std::move(result)); });
    return evaluation;
  }

 private:
  void load_data_and_questions() {
    const EvalFlags& flags = request_.flags;
    if (flags.exact_match)
      format_.emplace(answer_format(files_, flags.answer_regex, "--exact-match", flags.max_new_tokens));
    data_ = flags.choices ? load_choices(profile_.data, files_) : load_examples(profile_, files_);
    if (!flags.exact_match) return;
    for (const auto& store : data_.stores) {
      data_.questions.push_back(make_questions(store, *format_));
      for (const auto& question : data_.questions.back())
        data_.longest = std::max(data_.longest, question.prompt.length());
    }
  }

  /// Frees its buffers before answers are generated.
  std::vector<EvalResult> evaluate_losses() {
    if (data_.stores.empty()) return {};
    const data::BatchSizes sizes = data::resolve_batch_sizes(profile_.schedule, data_.max_seq_len);
    const std::int64_t rows = profile_.schedule.eval_micro_batch_size.value_or(sizes.micro);
    model::Decoder& decoder = *model_.model.decoder;
    const std::int64_t max_tokens = rows * data_.max_seq_len;
    model::Activations activations(decoder.shape, {.max_tokens = max_tokens, .needs_backward = false}, {},
                                   decoder.dtype, model_.device.device);
    const auto loss_head = plan::plan_loss_head(decoder, max_tokens, false);
    plan::BatchFeedOptions options{max_tokens, profile_.data.dataloader_pin_memory};
    options.lists_chunks = decoder.config.is_hybrid();
    std::vector<std::vector<data::MicroBatchPlan>> plans;
    for (const auto& store : data_.stores) {
      options.has_weights = options.has_weights || store.store.has_weights();
      plans.push_back(data::plan_evaluation(store.store, data_.max_seq_len, profile_.data.packing, rows));
    }
    if (model_.device.is_cuda())
      options.eval_classes = data::choose_batch_classes(data::batch_shapes(data_.stores, plans), max_tokens);
    plan::BatchFeed feed(model_.device, options);
    std::vector<EvalResult> results;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const data::NamedStore& store = data_.stores[i];
      const OnMicroBatch log_progress = [&, pace = std::make_shared<LinePace>()](std::size_t num_done,
                                                                                 std::size_t num) {
        if (pace->is_due()) log_info("{}: {}% evaluated", store.name, 100 * num_done / num);
      };
      results.push_back(
          evaluate({decoder, activations, *loss_head, feed, *model_.device.ranks, log_progress}, store, plans[i]));
      results.back().num_cut = store.ledger.count(data::LedgerReason::kTruncated);
      results.back().num_lost = store.ledger.lost();
    }
    return results;
  }

  /// Must hold on all ranks, or the sums are meaningless.
  void require_equal_examples(const TaskEvaluation& tasks) const {
    if (ranks_->world_size() == 1) return;
    std::map<std::string, std::string> own = {{"examples of eval_tasks", tasks.fingerprint()}};
    for (const auto& store : data_.stores) own["dataset " + store.name] = data::documents_hash(store.store);
    plan::require_equal(*ranks_, own);
  }

  void add_answers(std::vector<EvalResult>& results) {
    const auto generator = make_generator(model_.device, model_.model, profile_.run);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (request_.flags.choices) {
        const std::vector<data::ChoiceExample>& examples = data_.choices[i].examples;
        const auto own = choose(of_rank(*ranks_, std::span(examples)), *generator, quiet_);
        results[i].choices = choice_figures(gather_results(*ranks_, own, examples.size()));
      }
      if (request_.flags.exact_match) {
        const std::vector<Question>& questions = data_.questions[i];
        const auto own = ask(of_rank(*ranks_, std::span(questions)), *format_, *generator, quiet_);
        const std::vector<Match> matches(own.begin(), own.end());
        results[i].exact_match = match_figures(gather_results(*ranks_, matches, questions.size()));
      }
    }
  }

  const EvalRequest& request_;
  Profile profile_;
  std::shared_ptr<ranks::Communicator> ranks_;
  bool quiet_;
  std::optional<AnswerFormat> format_;  ///< for --exact-match
  lora::ModelFiles files_;
  InferenceModel model_;
  EvalData data_;
};

}  // namespace

Evaluation run_evaluation(const EvalRequest& request) {
  const std::shared_ptr<ranks::Communicator> ranks = ranks::connect(request.world, {});
  Evaluation evaluation;
  plan::work_as_rank(*ranks, [&] {
    if (request.failure) std::rethrow_exception(request.failure);
    evaluation = Evaluator(request, ranks).run();
    return 0;
  });
  return evaluation;
}

}  // namespace lora_train::evaluate
