#include <ATen/ATen.h>

#include "linears_run.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/gemm/gemm_tuning.h"
#include "lora_train/plan/tuning/tuning_cases.h"

namespace lora_train::plan {
namespace {

using model::RowPitch;

constexpr const char *kExact = "exact", *kPadded = "padded";

/// Everything that the choice depends on but the number of tokens.
std::string key_of_run(const std::vector<model::ProjectionShape>& shapes, at::ScalarType dtype) {
  std::string key = std::string("row_pitch ") + (dtype == at::kBFloat16 ? "bf16" : "fp32");
  for (const model::ProjectionShape& p : shapes) {
    key += " " + short_name(p) + " " + std::to_string(p.in_features) + "+" + std::to_string(p.num_columns) + " to " +
           std::to_string(p.out_features);
  }
  return key + " ";
}

bool has_room_to_pad(const std::vector<model::ProjectionShape>& padded) {
  for (const model::ProjectionShape& p : padded) {
    if (p.input_pitch() > p.input_width() || p.d_output_pitch() > p.d_output_width()) return true;
  }
  return false;
}

std::vector<kernels::TuningCandidate> candidates(kernels::Tuner& tuner, const model::LayerShape& exact,
                                                 const model::LayerShape& padded, std::int64_t num_tokens,
                                                 at::ScalarType dtype, at::Device device) {
  const LinearsMemory memory(padded, num_tokens, dtype, device);
  const auto tuned_products = std::make_shared<kernels::GemmTuning>(tuner);  // lives as long as the candidates
  std::vector<kernels::TuningCandidate> found;
  for (const auto& [name, layer] : {std::pair(kExact, &exact), std::pair(kPadded, &padded)}) {
    const auto linears = std::make_shared<LinearsRun>(projections_of(*layer), memory);
    found.push_back({name, [linears, tuned_products] { linears->run_all(); }});
  }
  return found;
}

}  // namespace

RowPitch tune_row_pitch(kernels::Tuner& tuner, const model::ModelConfig& config,
                        const std::vector<model::AdapterSpec>& adapters, std::int64_t num_tokens, at::ScalarType dtype,
                        at::Device device) {
  const model::ModelShape exact_shape = model::model_shape(config, adapters),
                          padded_shape = model::model_shape(config, adapters, {.row_pitch = RowPitch::kPadded});
  const model::LayerShape &exact = first_adapted_layer(exact_shape), &padded = first_adapted_layer(padded_shape);
  const std::vector<model::ProjectionShape> shapes = projections_of(padded);
  if (!has_room_to_pad(shapes)) return RowPitch::kExact;
  const std::string of_run = key_of_run(shapes, dtype);
  const auto chosen =
      tuner.choose({of_run + "tokens" + std::to_string(kernels::gemm_class(num_tokens)),
                    [](const std::string& choice) { return choice == kExact || choice == kPadded; },
                    [&] { return candidates(tuner, exact, padded, num_tokens, dtype, device); }, of_run});
  return chosen == kPadded ? RowPitch::kPadded : RowPitch::kExact;
}

}  // namespace lora_train::plan
