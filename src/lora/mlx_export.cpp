// R rank; PEFT stores A [R, in] and B [out, R], mlx-lm their transposes.
#include "lora_train/lora/mlx_export.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lora_train/base/stop_request.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/run_names.h"
#include "merge_math.h"

namespace lora_train::lora {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMlxTensorFile = "adapters.safetensors";

/// "self_attn.q_proj" for each linear if all of the last `num_layers` layers have the same ones; else all linear paths.
std::vector<std::string> mlx_keys(const std::vector<model::AdapterSpec>& specs, std::int64_t num_layers) {
  std::map<std::int64_t, std::set<std::string>> by_layer;
  std::vector<std::string> paths;
  for (const auto& spec : specs) {
    by_layer[spec.layer].insert(spec.linear);
    paths.push_back(model::linear_path(spec));
  }
  const std::set<std::string>& first = by_layer.begin()->second;
  bool is_uniform = std::ssize(by_layer) == num_layers;
  for (const auto& [layer, linears] : by_layer) is_uniform = is_uniform && linears == first;
  return is_uniform ? std::vector<std::string>(first.begin(), first.end()) : paths;
}

std::string mlx_config(const MlxRequest& request, const AdapterConfig& adapter, const MlxResult& result,
                       const std::vector<std::string>& keys) {
  const Json config = {
      {"model", request.model_name},
      {"fine_tune_type", "lora"},
      {"num_layers", result.num_layers},
      {"lora_parameters",
       {{"rank", result.rank}, {"scale", result.scale}, {"dropout", adapter.options.lora_dropout}, {"keys", keys}}}};
  return config.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

MlxResult export_mlx(const MlxRequest& request) {
  const model::ModelConfig model = model::read_model_config(request.model);
  const AdapterSource source = open_adapter_source(request.adapter, model,
                                                   "an MLX adapter cannot hold trained token rows; merge the adapter "
                                                   "into the model (lora-train merge) and use that "
                                                   "folder in mlx-lm");
  const std::vector<model::AdapterSpec> specs = plan_adapters(source.config.options, model);
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kAdapter, {request.adapter, request.model},
                               request.overwrite);
  const UniformScale uniform = uniform_scale(source, [](std::int64_t, double) { return true; });
  MlxResult result{.folder = output.path(),
                   .num_linears = std::ssize(specs),
                   .num_layers = model.num_layers - first_adapted_layer(specs),
                   .num_padded = uniform.num_padded,
                   .num_rescaled = uniform.num_rescaled,
                   .rank = uniform.rank,
                   .scale = uniform.scale};
  std::vector<UniformPair> pairs;
  std::vector<storage::TensorToWrite> tensors;
  for (std::size_t i = 0; i < source.paths.size(); ++i) {
    throw_if_stop_requested();
    const auto [a, b] = uniform_pair(source, i, uniform);
    pairs.push_back({a.transposed(), b.transposed()});
    tensors.push_back(pairs[i].a.to_write(source.paths[i] + ".lora_a"));
    tensors.push_back(pairs[i].b.to_write(source.paths[i] + ".lora_b"));
  }
  output.write(
      {{kMlxTensorFile, "", std::move(tensors)},
       {storage::kAdapterConfigFile, mlx_config(request, source.config, result, mlx_keys(specs, result.num_layers))}});
  output.commit();
  return result;
}

}  // namespace lora_train::lora
