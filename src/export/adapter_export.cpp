// R rank of a linear; A [R, in], B [out, R].
#include <cmath>

#include "architecture.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/export/export.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/adapter_tensors.h"
#include "row_writer.h"

namespace lora_train::gguf {
namespace {

void check_request(const ExportRequest& request, const lora::AdapterConfig& adapter) {
  if (request.type && *request.type != TensorType::kF32 && *request.type != TensorType::kF16) {
    throw ConfigError("--type", "an adapter is exported as f32 or f16; for " + std::string(type_name(*request.type)) +
                                    " merge it into the model with --merge");
  }
  if (adapter.token_rows.empty()) return;
  throw FormatError(
      (request.adapter / "adapter_config.json").string() + ": trainable_token_indices",
      "a GGUF adapter cannot hold trained token rows; export the model with the adapter merged in: --merge");
}

/// llama.cpp scales a linear by alpha / R. 0 would mean a scale of 1 there.
double alpha_of(const model::AdapterSpec& spec) { return spec.scale * static_cast<double>(spec.rank); }

double common_alpha(const std::vector<model::AdapterSpec>& specs) {
  for (const auto& spec : specs) {
    if (alpha_of(spec) != 0) return alpha_of(spec);
  }
  return 1;
}

/// What B is multiplied by so that alpha / R gives the scale of this linear; exactly 1 where they agree.
float factor_of(const model::AdapterSpec& spec, double alpha) {
  const double factor = alpha_of(spec) / alpha;
  return std::abs(factor - 1) < 1e-12 ? 1 : static_cast<float>(factor);
}

/// A and B of every linear.
std::vector<Tensor> adapter_tensors_of(const std::vector<model::AdapterSpec>& specs, const model::ModelConfig& config,
                                       const storage::SafetensorsFile& file, double alpha,
                                       const ExportRequest& request) {
  std::vector<Tensor> tensors;
  for (const auto& spec : specs) {
    const std::string path = model::linear_path(spec), weight = path + ".weight";
    for (const char* side : {"A", "B"}) {
      const storage::TensorEntry& entry = *file.find("base_model.model." + path + ".lora_" + side + ".weight");
      const bool is_b = *side == 'B';
      Rows rows{{}, entry.dtype, entry.shape[0], entry.shape[1]};
      if (is_b) rows.reordered_heads = reordered_heads(config, weight);
      if (is_b) rows.factor = factor_of(spec, alpha);
      const TensorType type = request.type.value_or(TensorType::kF32);
      tensors.push_back({gguf_name(config, weight) + (is_b ? ".lora_b" : ".lora_a"), type, entry.shape,
                         [&file, &entry, rows, type](const Tensor::Write& write) {
                           throw_if_stop_requested();
                           Rows now = rows;
                           now.bytes = file.bytes(entry);
                           write_rows(now, file.path().string() + ": " + entry.name, type, write);
                           file.release(entry);
                         }});
    }
  }
  return tensors;
}

}  // namespace

ExportResult export_adapter(const ExportRequest& request) {
  const model::ModelConfig config = model::read_model_config(request.model);
  const lora::AdapterConfig adapter = lora::read_adapter_config(request.adapter);
  check_request(request, adapter);
  check_architecture(config);
  lora::check_patterns(adapter.options, config);
  const std::vector<model::AdapterSpec> specs = lora::plan_adapters(adapter.options, config);
  const storage::SafetensorsFile file =
      lora::open_adapter_tensors(request.adapter, lora::adapter_parameters(specs, config));
  const double alpha = common_alpha(specs);
  ExportResult result;
  result.type = request.type.value_or(TensorType::kF32);
  const std::vector<KeyValue> metadata = {{"general.architecture", architecture_name(config)},
                                          {"general.type", std::string("adapter")},
                                          {"general.name", request.name},
                                          {"adapter.type", std::string("lora")},
                                          {"adapter.lora.alpha", static_cast<float>(alpha)}};
  const std::vector<Tensor> tensors = adapter_tensors_of(specs, config, file, alpha, request);
  result.num_tensors = std::ssize(tensors);
  result.num_bytes = write_gguf(request.file, metadata, tensors);
  return result;
}

}  // namespace lora_train::gguf
