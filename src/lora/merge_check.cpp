// N tokens in all rows, D hidden, V vocabulary, m rows of a chunk.

#include <algorithm>
#include <cmath>
#include <memory>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/adapter_file.h"
#include "lora_train/lora/merge.h"
#include "lora_train/model/decoder.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunk = 256;  // positions

model::Batch make_batch(const std::vector<std::vector<std::int32_t>>& rows) {
  model::Batch batch;
  std::vector<std::int32_t> ids, positions;
  batch.cu_seqlens.push_back(0);
  for (const auto& row : rows) {
    ids.insert(ids.end(), row.begin(), row.end());
    for (std::size_t i = 0; i < row.size(); ++i) positions.push_back(static_cast<std::int32_t>(i));
    batch.cu_seqlens.push_back(static_cast<std::int64_t>(ids.size()));
    batch.max_document_tokens = std::max(batch.max_document_tokens, std::ssize(row));
  }
  batch.ids = at::tensor(ids, at::kInt);
  batch.positions = at::tensor(positions, at::kInt);
  return batch;
}

/// A model after a forward pass: the output of its last layer, and its weights.
struct Passed {
  model::ModelConfig config;
  storage::WeightFiles files;
  std::unique_ptr<model::Trainables> adapters;
  std::unique_ptr<model::StreamedWeights> weights;
  at::Tensor hidden;  ///< [N, D]
};

/// `adapter` may be empty.
std::unique_ptr<Passed> run_model(const fs::path& folder, const fs::path& adapter, const ModelSection& base,
                                  const model::Batch& batch) {
  auto passed = std::make_unique<Passed>(
      Passed{model::read_model_config(folder), storage::open_model_weights(folder), nullptr, nullptr, {}});
  const model::ModelConfig& config = passed->config;
  const model::BaseStorage storage = model::base_storage(base, config, passed->files);  // checks the weights
  model::check_rope_supported(config, batch.max_document_tokens);
  std::vector<model::AdapterSpec> specs;
  model::TokenRows rows;
  if (!adapter.empty()) {
    AdapterConfig read = read_adapter_config(adapter);
    read.lora_dropout = 0;
    specs = plan_adapters(read, config);
    rows = token_rows_of(read, adapter, passed->config);
  }
  const model::ModelShape shape = model::model_shape(config, specs, {}, rows);
  passed->adapters =
      std::make_unique<model::Trainables>(model::make_trainables(config, shape, model::TrainedWeights::kNone));
  passed->weights =
      std::make_unique<model::StreamedWeights>(config, shape, *passed->adapters, at::kFloat, passed->files, storage);
  if (!specs.empty()) load_adapter(adapter, *passed->adapters);
  model::Activations activations(shape, {.max_tokens = batch.num_tokens(), .needs_backward = false}, {}, at::kFloat,
                                 at::kCPU);
  model::Decoder decoder =
      model::make_decoder(config, shape, *passed->weights, at::kFloat, batch.max_document_tokens, {});
  model::decoder_forward(decoder, batch, activations);
  passed->hidden = activations.final_hidden.clone();
  return passed;
}

/// Logits [m, V] of positions [begin, begin + m).
at::Tensor logits_of(const Passed& model, std::int64_t begin, std::int64_t m) {
  const model::LmHead head = model::lm_head_of(model.config, model.weights->acquire_outer(model::Pass::kForward));
  return model::lm_head_logits(head, model.hidden.narrow(0, begin, m), /*use_adapter=*/true, model::Product::kGemm);
}

void compare(const at::Tensor& unmerged, const at::Tensor& merged, std::int64_t begin, const model::Batch& batch,
             MergeCheck& check) {
  const at::Tensor differences = (unmerged - merged).abs().amax(1);
  const auto [largest, where] = differences.max(0);  // NaN counts as largest
  const double difference = largest.item<float>();
  const std::int64_t slot = begin + where.item<std::int64_t>();
  const auto end = std::upper_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), slot);
  const auto row = static_cast<std::size_t>(end - batch.cu_seqlens.begin()) - 1;
  const auto position = static_cast<std::size_t>(slot - batch.cu_seqlens[row]);
  if (!std::isfinite(difference)) {
    throw NumericError(fmt::format("row {}, token {}", row + 1, position + 1),
                       "the logits are not finite, so the merged model cannot be compared; check the base weights and "
                       "the run that trained the adapter");
  }
  if (difference > check.max_difference) {
    check.max_difference = difference;
    check.row = row;
    check.position = position;
  }
  check.max_logit = std::max<double>(check.max_logit, unmerged.abs().max().item<float>());
  check.num_argmax_changed += (unmerged.argmax(1) != merged.argmax(1)).sum().item<std::int64_t>();
  check.num_positions += unmerged.size(0);
}

}  // namespace

std::vector<MergeCheck> check_merge(const MergeCheckRequest& request) {
  const model::Batch batch = make_batch(request.rows);
  const std::int64_t N = batch.num_tokens();
  std::vector<at::Tensor> merged;
  {
    const auto model = run_model(request.merged, {}, {}, batch);
    for (std::int64_t begin = 0; begin < N; begin += kChunk) {
      merged.push_back(logits_of(*model, begin, std::min(kChunk, N - begin)));
    }
  }
  std::vector<MergeCheck> checks;
  for (const ModelSection& base : request.bases) {
    const auto model = run_model(request.model, request.adapter, base, batch);
    MergeCheck& check = checks.emplace_back();
    for (std::size_t i = 0; i < merged.size(); ++i) {
      const std::int64_t begin = static_cast<std::int64_t>(i) * kChunk;
      compare(logits_of(*model, begin, merged[i].size(0)), merged[i], begin, batch, check);
    }
  }
  return checks;
}

}  // namespace lora_train::lora
