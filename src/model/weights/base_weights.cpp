// D hidden, O outputs, C adapter columns, V vocabulary.
#include "lora_train/model/base_weights.h"

#include <ATen/ATen.h>

#include <functional>
#include <map>

#include "weight_reader.h"

namespace lora_train::model {
namespace {

/// The tensors of an adapter on one of the projection's linears.
std::vector<Parameter> tensors_of(const AdapterPlace& place, const ProjectionShape& projection) {
  const LinearShape& linear = projection.linears[static_cast<std::size_t>(place.linear)];
  return adapter_tensors(place.spec, projection.in_features, linear.out_features);
}

std::vector<Parameter> adapter_parameters(const ModelShape& shape) {
  std::map<std::int64_t, std::vector<Parameter>> by_index;
  shape.for_each_projection([&](const ProjectionShape& projection) {
    for (const AdapterPlace& place : projection.adapters) by_index[place.index] = tensors_of(place, projection);
  });
  std::vector<Parameter> list;
  for (const auto& [index, tensors] : by_index) list.insert(list.end(), tensors.begin(), tensors.end());
  return list;
}

std::vector<Parameter> weight_parameters(const ModelConfig& config) {
  std::vector<Parameter> list;
  for (const auto& spec : expected_tensors(config)) {
    const bool decayed = spec.kind != WeightKind::kNorm && spec.kind != WeightKind::kBias;
    list.push_back({spec.name, spec.shape, decayed});
  }
  return list;
}

std::vector<Parameter> trained_list(const ModelConfig& config, const ModelShape& shape, TrainedWeights trained) {
  return trained == TrainedWeights::kAll ? weight_parameters(config) : adapter_parameters(shape);
}

/// The names of a projection's tensors (ending in ".weight" or ".bias"), in the order of its rows.
std::vector<std::string> tensor_names(const ProjectionShape& projection, int64_t layer, const char* suffix) {
  std::vector<std::string> names;
  for (const LinearShape& linear : projection.linears) names.push_back(linear_path(layer, linear.name) + suffix);
  return names;
}

/// Calls visit(shape, weights) for the projections of a layer.
template <class Visit>
void for_each_projection(const LayerShape& shape, LayerWeights& weights, const Visit& visit) {
  for (std::size_t b = 0; b < shape.blocks.size(); ++b) {
    for (std::size_t p = 0; p < shape.blocks[b].projections.size(); ++p) {
      visit(shape.blocks[b].projections[p], weights[b].projections[p]);
    }
  }
}

/// The same for the norms that the model has.
template <class Visit>
void for_each_norm(const LayerShape& shape, LayerWeights& weights, const Visit& visit) {
  for (std::size_t b = 0; b < shape.blocks.size(); ++b) {
    for (std::size_t n = 0; n < shape.blocks[b].norms.size(); ++n) {
      if (shape.blocks[b].norms[n].size > 0) visit(shape.blocks[b].norms[n], weights[b].norms[n]);
    }
  }
}

std::string norm_name(const NormShape& norm, int64_t layer) { return layer_prefix(layer) + norm.name + ".weight"; }

}  // namespace

Trainables make_trainables(const ModelConfig& config, const ModelShape& shape, TrainedWeights trained,
                           at::Device device) {
  return Trainables(trained_list(config, shape, trained), device);
}

std::int64_t num_trained(const ModelConfig& config, const ModelShape& shape, TrainedWeights trained) {
  std::int64_t count = 0;
  for (const Parameter& parameter : trained_list(config, shape, trained)) count += parameter.numel();
  return count;
}

std::int64_t weight_bytes(const ModelConfig& config, const ModelShape& shape, std::int64_t element_bytes) {
  std::int64_t elements = num_parameters(config);
  shape.for_each_projection([&](const ProjectionShape& p) {
    elements += (p.out_features + p.num_columns) * p.input_pitch() - p.out_features * p.in_features;
  });
  return elements * element_bytes;
}

ComputeWeights::ComputeWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                               const WeightOptions& options)
    : config_(config), shape_(shape), parameters_(parameters), options_(options) {
  for (int64_t layer = 0; layer < std::ssize(shape_.layers); ++layer) {
    LayerWeights& weights = layers_.emplace_back();
    const LayerShape& layer_shape = shape_.layers[static_cast<std::size_t>(layer)];
    for (const BlockShape& block : layer_shape.blocks) {
      weights.push_back({std::vector<Projection>(block.projections.begin(), block.projections.end()),
                         std::vector<NormWeight>(block.norms.size())});
    }
    for_each_projection(layer_shape, weights, [&](const ProjectionShape& projection_shape, Projection& projection) {
      bind_adapters(projection_shape, layer, projection);
    });
  }
}

void ComputeWeights::bind_adapters(const ProjectionShape& shape, int64_t layer, Projection& projection) {
  for (const AdapterPlace& place : shape.adapters) {
    const LinearShape& linear = shape.linears[static_cast<std::size_t>(place.linear)];
    LoraAdapter& adapter = projection.adapters.emplace_back();
    adapter.path = linear_path(layer, linear.name);
    adapter.out_begin = linear.out_begin;
    adapter.out_end = linear.out_begin + linear.out_features;
    adapter.column = place.column;
    adapter.rank = place.spec.rank;
    adapter.scale = place.spec.scale;
    adapter.dropout = place.spec.dropout;
    adapter.index = place.index;
    for (const Parameter& tensor : tensors_of(place, shape)) {
      adapter.masters.push_back(parameters_.value(tensor.name));
      adapter.grads.push_back(parameters_.grad(tensor.name));
    }
  }
}

void ComputeWeights::fill_layer(int64_t layer, const Load& load) {
  const auto options = at::TensorOptions(options_.dtype).device(options_.device);
  const LayerShape& shape = shape_.layers[static_cast<std::size_t>(layer)];
  LayerWeights& weights = layers_[static_cast<std::size_t>(layer)];
  for_each_projection(shape, weights, [&](const ProjectionShape& projection_shape, Projection& p) {
    p.weight = at::zeros({p.out_features + p.num_columns, p.input_pitch()}, options).narrow(1, 0, p.input_width());
    if (projection_shape.has_bias) p.bias = at::empty({p.out_features}, options);
    for (const LinearShape& linear : projection_shape.linears) {
      const std::string name = linear_path(layer, linear.name);
      load(name + ".weight", p.base_weight().narrow(0, linear.out_begin, linear.out_features));
      if (p.bias.defined()) load(name + ".bias", p.bias.narrow(0, linear.out_begin, linear.out_features));
    }
  });
  for_each_norm(shape, weights, [&](const NormShape& norm_shape, NormWeight& norm) {
    norm.weight = at::empty({norm_shape.size}, options);
    load(norm_name(norm_shape, layer), norm.weight);
  });
}

void ComputeWeights::fill_outer(const Load& load) {
  const auto options = at::TensorOptions(options_.dtype).device(options_.device);
  outer_.is_tied = config_.tie_word_embeddings;
  outer_.embedding = at::empty({config_.vocab_size, config_.hidden_size}, options);
  load("model.embed_tokens.weight", outer_.embedding);
  outer_.head = outer_.is_tied ? outer_.embedding : at::empty_like(outer_.embedding);
  if (!outer_.is_tied) load("lm_head.weight", outer_.head);
  outer_.final_norm.weight = at::empty({config_.hidden_size}, options);
  load("model.norm.weight", outer_.final_norm.weight);
}

void ComputeWeights::bind_trained_weights() {
  const auto bind = [this](const std::vector<std::string>& names, const at::Tensor& compute, double scale = 1) {
    copies_.add(parameters_.joined(parameters_.values, names), scale, compute);
    return parameters_.joined(parameters_.grads, names);
  };
  for (int64_t layer = 0; layer < std::ssize(layers_); ++layer) {
    const LayerShape& shape = shape_.layers[static_cast<std::size_t>(layer)];
    LayerWeights& weights = layers_[static_cast<std::size_t>(layer)];
    for_each_projection(shape, weights, [&](const ProjectionShape& projection_shape, Projection& projection) {
      projection.grad_weight = bind(tensor_names(projection_shape, layer, ".weight"), projection.weight);
      if (!projection_shape.has_bias) return;
      projection.grad_bias =
          bind(tensor_names(projection_shape, layer, ".bias"), projection.bias, projection.output_scale);
    });
    for_each_norm(shape, weights, [&](const NormShape& norm_shape, NormWeight& norm) {
      norm.grad = bind({norm_name(norm_shape, layer)}, norm.weight);
    });
  }
  outer_.grad_embedding = bind({"model.embed_tokens.weight"}, outer_.embedding);
  outer_.grad_head = outer_.is_tied ? outer_.grad_embedding : bind({"lm_head.weight"}, outer_.head);
  outer_.final_norm.grad = bind({"model.norm.weight"}, outer_.final_norm.weight);
}

void ComputeWeights::add_columns(int64_t layer, kernels::ScaledCopies& copies) const {
  for (const BlockWeights& block : layers_[static_cast<std::size_t>(layer)]) {
    for (const Projection& projection : block.projections) add_adapter_copies(projection, copies);
  }
}

void ComputeWeights::scale_biases(LayerWeights& layer) {
  for (BlockWeights& block : layer) {
    for (Projection& p : block.projections) {
      if (p.bias.defined() && p.output_scale != 1) p.bias.mul_(p.output_scale);
    }
  }
}

void ComputeWeights::drop_layer(int64_t layer) {
  for (BlockWeights& block : layers_[static_cast<std::size_t>(layer)]) {
    for (Projection& projection : block.projections) projection.weight = projection.bias = at::Tensor();
  }
}

ResidentWeights::ResidentWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                                 const WeightOptions& options, const storage::WeightFiles* files)
    : ComputeWeights(config, shape, parameters, options) {
  if (files == nullptr) {
    fill([](const std::string&, const at::Tensor&) {});
    return;
  }
  WeightReader reader(*files, options.device);
  fill([&](const std::string& name, const at::Tensor& target) { reader.add(name, target); });
  reader.read();
  for (LayerWeights& layer : layers_) scale_biases(layer);
}

void ResidentWeights::fill(const Load& load) {
  for (int64_t layer = 0; layer < std::ssize(layers_); ++layer) fill_layer(layer, load);
  fill_outer(load);
  for (int64_t layer = 0; layer < std::ssize(layers_); ++layer) add_columns(layer, copies_);
  if (options_.trained == TrainedWeights::kNone) return;
  for (const auto& parameter : parameters_.list()) load(parameter.name, parameters_.value(parameter.name));
  bind_trained_weights();
}

StreamedWeights::StreamedWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                                 at::ScalarType dtype, const storage::WeightFiles& files)
    : ComputeWeights(config, shape, parameters, {dtype, at::kCPU, TrainedWeights::kNone}), files_(files) {
  WeightReader reader(files_, at::kCPU);
  fill_outer([&](const std::string& name, const at::Tensor& target) { reader.add(name, target); });
  reader.read();
}

LayerWeights& StreamedWeights::acquire(int64_t layer, Pass pass) {
  WeightReader reader(files_, at::kCPU);
  fill_layer(layer, [&](const std::string& name, const at::Tensor& target) { reader.add(name, target); });
  reader.read();
  scale_biases(layers_[static_cast<std::size_t>(layer)]);
  kernels::ScaledCopies columns;
  add_columns(layer, columns);
  columns.run();
  return ComputeWeights::acquire(layer, pass);
}

}  // namespace lora_train::model
