#include "data_load.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::bench {
namespace {

constexpr std::int64_t kSurveyedSteps = 1000;
constexpr double kPackedShare = 0.98;  // of a row, with documents of stated lengths

bool has_weights(const std::filesystem::path& folder) {
  const auto is_weights = [](const auto& entry) { return entry.path().extension() == ".safetensors"; };
  return std::any_of(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator(), is_weights);
}

}  // namespace

DataLoad::DataLoad(const ForecastRequest& request, const plan::ModelFiles& files) {
  facts_.are_stated = request.num_documents > 0;
  if (facts_.are_stated) {
    state(request);
  } else {
    read(request.profile, files);
  }
}

std::int64_t DataLoad::rows_of_rank(const Profile& profile, std::int64_t num_ranks) const {
  if (!profile.packs_documents()) return 0;
  const data::BatchSizes sizes =
      data::resolve_batch_sizes(profile.schedule, facts_.max_seq_len, data::kAutoMicroBatchTokens, num_ranks);
  if (!facts_.are_stated) return plan_of(profile, sizes, num_ranks).most_rows_of_rank();
  return std::llround(std::ceil(rows_of(profile, static_cast<double>(ceil_div(sizes.global, num_ranks)))));
}

Steps DataLoad::steps_of(const Profile& profile, const data::BatchSizes& sizes, std::int64_t num_ranks) const {
  const bool has_documents = profile.packs_documents();
  Steps steps;
  double rows = 0, documents = 0;  // of a step
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
  const double units = has_documents ? documents : rows;  // what is dealt to the ranks
  const double most_units = std::ceil(units / ranks - 1e-9);
  steps.most_tokens = steps.tokens * std::min(1.0, most_units / units);
  steps.most_rows = !has_documents      ? most_units
                    : facts_.are_stated ? rows_of(profile, most_units)
                                        : std::ceil(rows / ranks);
  return steps;
}

plan::TouchedTokens DataLoad::largest_micro_batch(const Profile& profile, const plan::RunSpec& spec) const {
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

const data::RunPlan& DataLoad::plan_of(const Profile& profile, const data::BatchSizes& sizes,
                                       std::int64_t num_ranks) const {
  const auto key = std::tuple(profile.data.packing, sizes.global, num_ranks);
  auto found = plans_.find(key);
  if (found == plans_.end())
    found = plans_.emplace(key, data::plan_run(profile, prepared_, sizes, {0, num_ranks})).first;
  return found->second;
}

void DataLoad::state(const ForecastRequest& request) {
  const std::int64_t length = request.tokens_per_document;
  facts_.num_documents = request.num_documents;
  facts_.num_tokens = facts_.num_supervised = request.num_documents * length;
  facts_.max_seq_len = request.profile.data.max_seq_len.value_or(ceil_div(length, std::int64_t{64}) * 64);
  if (length > facts_.max_seq_len)
    throw ConfigError("--tokens-per-document", "is " + std::to_string(length) +
                                                   ", more than max_seq_len: " + std::to_string(facts_.max_seq_len));
  facts_.keys_per_query = (static_cast<double>(length) + 1) / 2;
}

void DataLoad::read(const Profile& profile, const plan::ModelFiles& files) {
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

double DataLoad::rows_of(const Profile& profile, double documents) const {
  if (!profile.data.packing) return documents;
  const double tokens = static_cast<double>(facts_.num_tokens) / static_cast<double>(facts_.num_documents) * documents;
  const double length = static_cast<double>(facts_.max_seq_len);
  const double fitting =
      std::floor(length * static_cast<double>(facts_.num_documents) / static_cast<double>(facts_.num_tokens));
  return std::max({1.0, documents / std::max(1.0, fitting), tokens / (kPackedShare * length)});
}

plan::ModelFiles open_model_files(const Profile& profile) {
  const ModelSection& section = profile.model;
  plan::ModelFiles files = plan::open_model_without_weights(section, profile.adapter.init_adapter);
  const auto& folder = files.resolved.folder;
  if (has_weights(folder)) {
    files.base = plan::base_storage(section, files.config, storage::open_model_weights(folder));
  } else if (files.config.quantization.method == model::QuantMethod::kNone) {
    files.base = plan::base_storage(section, files.config);
  } else {
    throw FormatError(folder.string(), "is quantised (" + files.config.quantization.description +
                                           "), and which of its linears are, only its weights say; they are not there");
  }
  return files;
}

}  // namespace lora_train::bench
