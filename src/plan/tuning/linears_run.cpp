#include "linears_run.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/plan/tuning/tuning_cases.h"

namespace lora_train::plan {
namespace {

using model::ProjectionShape;

constexpr double kWeightStd = 0.02;

std::int64_t padded_width(std::int64_t width) {
  return (width + model::kPitchStep - 1) / model::kPitchStep * model::kPitchStep;
}

at::Tensor rows_of(const at::Tensor& memory, std::int64_t rows, std::int64_t width, std::int64_t pitch) {
  return memory.as_strided({rows, width}, {pitch, 1});
}

void add_adapters(const ProjectionShape& shape, const at::TensorOptions& options, model::Projection& projection) {
  for (const model::AdapterPlace& place : shape.adapters) {
    const model::LinearShape& linear = shape.linears[static_cast<std::size_t>(place.linear)];
    model::LoraAdapter& adapter = projection.adapters.emplace_back();
    adapter.path = linear.name;
    adapter.out_begin = linear.out_begin;
    adapter.out_end = linear.out_begin + linear.out_features;
    adapter.column = place.column;
    adapter.rank = place.spec.rank;
    adapter.scale = place.spec.scale;
    adapter.masters = {at::empty({adapter.rank, shape.in_features}, options).normal_(0, kWeightStd),
                       at::empty({linear.out_features, adapter.rank}, options).normal_(0, kWeightStd)};
    for (const at::Tensor& master : adapter.masters) adapter.grads.push_back(at::zeros_like(master));
  }
}

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

LinearsMemory::LinearsMemory(const model::LayerShape& layer, std::int64_t tokens, at::ScalarType dtype,
                             at::Device device)
    : num_tokens(tokens) {
  std::int64_t most_weights = 0, widest_input = 0, widest_output = 0;
  for (const ProjectionShape& p : projections_of(layer)) {
    const std::int64_t input_width = padded_width(p.input_width()), output_width = p.out_features + p.num_columns;
    most_weights = std::max(most_weights, output_width * input_width);
    widest_input = std::max(widest_input, input_width);
    widest_output = std::max(widest_output, padded_width(output_width));
  }
  const auto options = at::TensorOptions(dtype).device(device);
  const auto normal = [&](std::int64_t size, double std) { return at::empty({size}, options).normal_(0, std); };
  weight = normal(most_weights, kWeightStd);
  input = normal(num_tokens * widest_input, 1);
  output = normal(num_tokens * widest_output, 1);
  residual = normal(num_tokens * widest_input, 1);
  d_input = normal(num_tokens * widest_input, 1);
}

const model::LayerShape& first_adapted_layer(const model::ModelShape& shape) {
  for (const model::LayerShape& layer : shape.layers) {
    const auto shapes = projections_of(layer);
    if (std::any_of(shapes.begin(), shapes.end(), [](const auto& p) { return p.num_columns > 0; })) return layer;
  }
  return shape.layers.front();
}

std::string short_name(const ProjectionShape& projection) {
  std::string name;
  for (const model::LinearShape& linear : projection.linears) {
    const std::string last = linear.name.substr(linear.name.rfind('.') + 1);
    name += (name.empty() ? "" : "|") + last.substr(0, last.rfind("_proj"));
  }
  return name;
}

std::vector<ProjectionShape> projections_of(const model::LayerShape& layer) {
  std::vector<ProjectionShape> shapes;
  for (const model::BlockShape& block : layer.blocks) {
    shapes.insert(shapes.end(), block.projections.begin(), block.projections.end());
  }
  return shapes;
}

LinearsRun::LinearsRun(const std::vector<ProjectionShape>& shapes, const LinearsMemory& memory) {
  const std::int64_t N = memory.num_tokens;
  for (const ProjectionShape& shape : shapes) {
    Linear& linear = linears_.emplace_back(Linear{model::Projection(shape), {}, {}, {}, {}, {}});
    model::Projection& p = linear.projection;
    const std::int64_t O = p.out_features;
    p.weight = rows_of(memory.weight, O + p.num_columns, p.input_width(), p.input_pitch());
    if (shape.has_bias) p.bias = memory.weight.narrow(0, 0, O);
    add_adapters(shape, memory.weight.options().dtype(at::kFloat), p);
    linear.input = rows_of(memory.input, N, p.input_width(), p.input_pitch());
    linear.d_output = rows_of(memory.output, N, p.d_output_width(), p.d_output_pitch());
    const bool is_in_place = shape.linears.front().name == "mlp.gate_proj";  // SwiGLU's gradient replaces gate|up
    linear.output = is_in_place ? linear.d_output.narrow(1, 0, O) : rows_of(memory.output, N, O, O);
    linear.d_input = rows_of(memory.d_input, N, p.d_input_width(), p.d_input_pitch());
    const bool ends_block = shape.linears.size() == 1;  // o and down
    if (ends_block) linear.residual = rows_of(memory.residual, N, O, O);
  }
}

void LinearsRun::forward(std::size_t index) {
  Linear& linear = linears_[index];
  model::fill_adapter_columns(linear.projection, linear.input, {});
  model::projection_forward(linear.projection, linear.input, linear.residual, linear.output, {});
}

void LinearsRun::backward(std::size_t index) {
  Linear& linear = linears_[index];
  model::projection_backward(linear.projection, linear.input, linear.d_output, linear.d_input, true, {});
}

void LinearsRun::run_all() {
  for (std::size_t i = 0; i < linears_.size(); ++i) {
    forward(i);
    backward(i);
  }
}

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
