#include <algorithm>
#include <iterator>

#include "architecture.h"
#include "encode.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/export/export.h"
#include "lora_train/lora/merge.h"
#include "row_writer.h"
#include "vocabulary.h"

namespace lora_train::gguf {
namespace {

using storage::DType;

std::uint32_t file_type(TensorType type) {  // llama.h: llama_ftype
  switch (type) {
    case TensorType::kF32: return 0;
    case TensorType::kF16: return 1;
    case TensorType::kQ8_0: return 7;
    case TensorType::kBF16: return 32;
  }
  return 0;
}

/// The type in which the matrices of the model are stored.
TensorType stored_type(const lora::MergedWeights& merged) {
  const auto* entry = merged.weights().find("model.layers.0.self_attn.q_proj.weight");
  const DType dtype = merged.dtype_of(*entry, std::nullopt);
  return dtype == DType::kF32 ? TensorType::kF32 : dtype == DType::kF16 ? TensorType::kF16 : TensorType::kBF16;
}

/// The tensors of a model, each computed as it is written.
class ModelTensors {
 public:
  ModelTensors(const ExportRequest& request, lora::MergedWeights& merged, ExportResult& result)
      : request_(request), merged_(merged), result_(result) {}

  std::vector<Tensor> list() {
    std::vector<Tensor> tensors;
    for (const auto& expected : model::expected_tensors(merged_.config())) {
      const bool is_matrix = expected.shape.size() > 1;
      Tensor tensor{gguf_name(merged_.config(), expected.name),
                    type_of(expected.shape),
                    merged_.shape_of(*merged_.weights().find(expected.name)),
                    {}};
      if (is_matrix && tensor.type != result_.type) ++result_.num_other_type;
      tensor.produce = [this, expected, type = tensor.type](const Tensor::Write& write) {
        produce(expected, type, write);
      };
      tensors.push_back(std::move(tensor));
    }
    if (const std::vector<float> factors = rope_factors(merged_.config()); !factors.empty()) {
      tensors.push_back(
          {"rope_freqs.weight", TensorType::kF32, {std::ssize(factors)}, [factors](const Tensor::Write& write) {
             write({reinterpret_cast<const char*>(factors.data()), factors.size() * sizeof(float)});
           }});
    }
    result_.num_tensors = std::ssize(tensors);
    return tensors;
  }

 private:
  TensorType type_of(const std::vector<std::int64_t>& shape) const {
    if (shape.size() < 2) return TensorType::kF32;
    return result_.type == TensorType::kQ8_0 && shape.back() % kBlock != 0 ? TensorType::kF16 : result_.type;
  }

  void produce(const model::TensorSpec& expected, TensorType type, const Tensor::Write& write) {
    throw_if_stop_requested();
    if (request_.progress) request_.progress(num_done_, result_.num_tensors, expected.name);
    ++num_done_;
    const storage::TensorEntry& entry = *merged_.weights().find(expected.name);
    const DType dtype = merged_.is_computed(entry) ? DType::kF32 : entry.dtype;
    const auto shape = merged_.shape_of(entry);
    // A vector is one column, so that its elements can be reordered like rows.
    Rows rows{merged_.bytes(entry, dtype), dtype, shape[0], shape.size() > 1 ? shape[1] : 1};
    rows.reordered_heads = reordered_heads(merged_.config(), expected.name);
    if (expected.kind == model::WeightKind::kNorm)
      rows.offset = static_cast<float>(merged_.config().norm_weight_offset);
    write_rows(rows, expected.name, type, write);
  }

  const ExportRequest& request_;
  lora::MergedWeights& merged_;
  ExportResult& result_;
  std::int64_t num_done_ = 0;
};

}  // namespace

ExportResult export_model(const ExportRequest& request) {
  lora::MergedWeights merged(request.model, request.adapter, request.decode);
  check_architecture(merged.config());
  ExportResult result;
  result.type = request.type.value_or(stored_type(merged));
  result.num_merged = merged.num_merged();
  std::vector<KeyValue> metadata = {{"general.architecture", architecture_name(merged.config())},
                                    {"general.type", std::string("model")},
                                    {"general.name", request.name},
                                    {"general.file_type", file_type(result.type)},
                                    {"general.quantization_version", std::uint32_t{2}}};
  std::ranges::move(architecture_metadata(merged.config()), std::back_inserter(metadata));
  const auto tokenizer =
      request.adapter.empty() ? request.model : lora::merged_tokenizer_folder(request.model, request.adapter);
  const auto generation = std::filesystem::exists(tokenizer / "generation_config.json") ? tokenizer : request.model;
  std::ranges::move(vocabulary_metadata(tokenizer, generation, merged.config().vocab_size),
                    std::back_inserter(metadata));
  ModelTensors tensors(request, merged, result);
  result.num_bytes = write_gguf(request.file, metadata, tensors.list());
  return result;
}

}  // namespace lora_train::gguf
