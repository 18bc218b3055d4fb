// D hidden, O outputs, C adapter columns, V vocabulary.
#include "lora_train/model/weights/base_weights.h"

#include <fmt/core.h>

#include <set>

#include "lora_train/kernels/aten.h"
#include "weight_reader.h"

namespace lora_train::model {
namespace {

/// Fills weights from the tensors of files.
class FileLoader : public WeightLoader {
 public:
  FileLoader(const ModelConfig& config, const storage::WeightFiles& files, at::Device device)
      : config_(config), files_(files), device_(device), reader_(files, device) {}

  void load(const std::string& tensor, const at::Tensor& target) override { reader_.add(tensor, target); }
  void load(QuantizedLayer::Linear& linear) override {
    const LinearStorage& storage = linear.storage;
    const TensorSpec spec{linear.name + ".weight", {storage.out_features, storage.in_features}, WeightKind::kLinear};
    const StoredLinear stored = stored_linear(config_, spec, files_);
    if (stored.format != LinearFormat::kPlain) return read_quantized(files_, stored, device_, reader_, linear.weight);
    read_and_quantize(files_, *stored.weight, storage, device_, reader_, linear.weight);
  }
  void finish() override { reader_.read(); }

 private:
  const ModelConfig& config_;
  const storage::WeightFiles& files_;
  at::Device device_;
  WeightReader reader_;
};

/// Leaves plain weights uninitialised.
class NoFiles : public WeightLoader {
 public:
  NoFiles(double std, at::Device device) : std_(std), device_(device) {}
  void load(const std::string&, const at::Tensor&) override {}
  void load(QuantizedLayer::Linear& linear) override {
    linear.weight = empty_quantized_weight(linear.storage, device_);
    fill_at_random(linear.weight, std_);
  }
  void finish() override {}

 private:
  double std_;
  at::Device device_;
};

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

/// The same for the other weights that the model has.
template <class Visit>
void for_each_small(const LayerShape& shape, LayerWeights& weights, const Visit& visit) {
  for (std::size_t b = 0; b < shape.blocks.size(); ++b) {
    for (std::size_t i = 0; i < shape.blocks[b].small.size(); ++i) {
      if (shape.blocks[b].small[i].exists()) visit(shape.blocks[b].small[i], weights[b].small[i]);
    }
  }
}

bool has_quantized_linears(const ProjectionShape& projection, int64_t layer, const BaseStorage& storage) {
  return std::ranges::any_of(
      projection.linears, [&](const LinearShape& linear) { return storage.contains(linear_path(layer, linear.name)); });
}

/// Projections of one layout may share a buffer: each writes all its elements except those that are zero in all of
/// them.
std::string layout_of(const ProjectionShape& projection) {
  std::string layout = fmt::format("{} {} {} {}", projection.linears.front().name, projection.out_features,
                                   projection.in_features, projection.input_pitch());
  for (const AdapterPlace& place : projection.adapters) {
    layout += fmt::format(" {}:{}+{}", place.linear, place.column, place.spec.rank);
  }
  return layout;
}

std::int64_t matrix_elements(const ProjectionShape& projection) {
  return (projection.out_features + projection.num_columns) * projection.input_pitch();
}

at::Tensor make_matrix(const ProjectionShape& projection, const at::TensorOptions& options) {
  return at::zeros({projection.out_features + projection.num_columns, projection.input_pitch()}, options);
}

bool keeps_bf16(const ModelConfig& config, const WeightOptions& options, const storage::WeightFiles* files) {
  const bool is_asked = options.keeps_bf16 && options.dtype == at::kFloat && options.device.is_cpu();
  const bool changes = options.trained == TrainedWeights::kAll || !options.storage.empty() || config.added_rows > 0;
  return is_asked && !changes && (files == nullptr || has_bf16_matrices(config, *files));
}

/// The returned function uses `copies`.
template <class Copies>
AddCopy adding_to(Copies& copies) {
  return [&copies](const at::Tensor& from, double scale, const at::Tensor& to) { copies.add(from, scale, to); };
}

}  // namespace

Trainables make_trainables(const ModelConfig& config, const ModelShape& shape, TrainedWeights trained,
                           at::Device device) {
  if (trained != TrainedWeights::kAll) return Trainables(adapter_parameters(shape), device);
  std::vector<Parameter> list;
  for (const auto& spec : expected_tensors(config)) {
    list.push_back({.name = spec.name,
                    .shape = spec.shape,
                    .decays = !is_norm(spec.kind) && !is_bias(spec.kind),
                    .is_embedding = spec.kind == WeightKind::kEmbedding});
  }
  return Trainables(std::move(list), device);
}

std::int64_t weight_bytes(const ModelConfig& config, const ModelShape& shape, std::int64_t element_bytes,
                          const BaseStorage& storage, std::int64_t decoded_layers) {
  std::int64_t elements = num_parameters(config), quantized_bytes = 0, widened = 0;
  elements += (config.tie_word_embeddings ? 1 : 2) * config.added_rows * config.hidden_size;
  std::set<std::string> buffers;
  for (std::int64_t layer = 0; layer < std::ssize(shape.layers); ++layer) {
    for (const BlockShape& block : shape.layers[static_cast<std::size_t>(layer)].blocks) {
      for (const SmallWeightShape& small : block.small) {
        if (keeps_fp32(small.kind))
          widened += small.shape[0] * (static_cast<std::int64_t>(sizeof(float)) - element_bytes);
      }
      for (const ProjectionShape& p : block.projections) {
        elements -= p.out_features * p.in_features;
        const bool is_decoded_on_acquire = layer >= decoded_layers && has_quantized_linears(p, layer, storage);
        if (!is_decoded_on_acquire || buffers.insert(layout_of(p)).second) elements += matrix_elements(p);
        if (!is_decoded_on_acquire) continue;
        for (const LinearShape& linear : p.linears) {
          const auto found = storage.find(linear_path(layer, linear.name));
          found == storage.end() ? elements += linear.out_features* p.in_features
                                 : quantized_bytes += found->second.bytes(element_bytes);
        }
      }
    }
  }
  return elements * element_bytes + widened + quantized_bytes;
}

std::int64_t choose_decoded_layers(const ModelConfig& config, const ModelShape& shape, std::int64_t element_bytes,
                                   const BaseStorage& storage, std::int64_t budget_bytes) {
  if (storage.empty()) return kAllLayers;
  std::int64_t layers = std::ssize(shape.layers);
  while (layers > 0 && weight_bytes(config, shape, element_bytes, storage, layers) > budget_bytes) --layers;
  return layers;
}

ComputeWeights::ComputeWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                               const WeightOptions& options, const storage::WeightFiles* files)
    : config_(config),
      shape_(shape),
      parameters_(parameters),
      options_(options),
      matrix_dtype_(keeps_bf16(config, options, files) ? at::kBFloat16 : options.dtype) {
  for (int64_t layer = 0; layer < std::ssize(shape_.layers); ++layer) {
    LayerWeights& weights = layers_.emplace_back();
    const LayerShape& layer_shape = shape_.layers[static_cast<std::size_t>(layer)];
    for (const BlockShape& block : layer_shape.blocks) {
      weights.push_back({std::vector<Projection>(block.projections.begin(), block.projections.end()),
                         std::vector<SmallWeight>(block.small.size())});
    }
    for_each_projection(layer_shape, weights, [&](const ProjectionShape& projection_shape, Projection& projection) {
      bind_adapters(projection_shape, layer, projection);
    });
  }
  bind_token_rows();
}

void ComputeWeights::bind_adapters(const ProjectionShape& shape, int64_t layer, Projection& projection) {
  for (const AdapterPlace& place : shape.adapters) {
    const LinearShape& linear = shape.linears[static_cast<std::size_t>(place.linear)];
    LoraAdapter& adapter = projection.adapters.emplace_back(LoraAdapter{linear_path(layer, linear.name),
                                                                        linear.out_begin,
                                                                        linear.out_begin + linear.out_features,
                                                                        place.column,
                                                                        place.spec.rank,
                                                                        place.spec.scale,
                                                                        place.spec.dropout,
                                                                        {},
                                                                        {},
                                                                        place.index});
    for (const Parameter& tensor : adapter_tensors(place.spec, shape.in_features, linear.out_features)) {
      adapter.masters.push_back(parameters_.value(tensor.name));
      adapter.grads.push_back(parameters_.grad(tensor.name));
    }
  }
  const bool has_owners = !shape.adapters.empty() && !shape.adapters.front().spec.owner_name.empty();
  if (!has_owners) return;
  projection.column_owners = at::full({shape.num_columns}, kNoOwner, at::kLong);
  for (const AdapterPlace& place : shape.adapters) {
    projection.column_owners.narrow(0, place.column, place.spec.rank).fill_(place.spec.owner);
  }
  projection.column_owners = projection.column_owners.to(options_.device);
}

void ComputeWeights::fill_layer(int64_t layer, WeightLoader& loader, QuantizedLayer& quantized,
                                const Allocate& allocate) {
  const auto options = at::TensorOptions(options_.dtype).device(options_.device);
  const LayerShape& shape = shape_.layers[static_cast<std::size_t>(layer)];
  LayerWeights& weights = layers_[static_cast<std::size_t>(layer)];
  for_each_projection(shape, weights, [&](const ProjectionShape& projection_shape, Projection& p) {
    const bool is_elsewhere = allocate && has_quantized_linears(projection_shape, layer, options_.storage);
    allocate_projection(projection_shape, p, is_elsewhere ? allocate(projection_shape) : at::Tensor());
    if (projection_shape.has_bias) p.bias = at::empty({p.out_features}, options);
    for (const LinearShape& linear : projection_shape.linears) {
      const std::string name = linear_path(layer, linear.name);
      const at::Tensor target = p.base_weight().narrow(0, linear.out_begin, linear.out_features);
      const auto found = options_.storage.find(name);
      if (found != options_.storage.end()) {
        quantized.linears.push_back({name, found->second, {}, target});
      } else if (is_elsewhere) {
        quantized.plain.push_back({at::empty(target.sizes(), options), target});
        loader.load(name + ".weight", quantized.plain.back().weight);
      } else {
        loader.load(name + ".weight", target);
      }
      if (p.bias.defined()) loader.load(name + ".bias", p.bias.narrow(0, linear.out_begin, linear.out_features));
    }
  });
  for (QuantizedLayer::Linear& linear : quantized.linears) loader.load(linear);  // from here on they do not move
  for_each_small(shape, weights, [&](const SmallWeightShape& small_shape, SmallWeight& small) {
    const bool is_widened = keeps_fp32(small_shape.kind) && options_.dtype == at::kBFloat16;
    small.weight = at::empty(small_shape.shape, is_widened ? options.dtype(at::kFloat) : options);
    loader.load(layer_prefix(layer) + small_shape.name, small.weight);
  });
}

void ComputeWeights::allocate_projection(const ProjectionShape& shape, Projection& projection,
                                         const at::Tensor& shared) const {
  const auto options = at::TensorOptions(options_.dtype).device(options_.device);
  if (matrix_dtype_ == options_.dtype) {
    projection.weight =
        (shared.defined() ? shared : make_matrix(shape, options)).narrow(1, 0, projection.input_width());
    return;
  }
  projection.base = at::empty({shape.out_features, shape.in_features}, options.dtype(matrix_dtype_));
  projection.b_columns = at::zeros({shape.out_features, shape.num_columns}, options);
  projection.a_rows = at::zeros({shape.num_columns, shape.in_features}, options);
}

void ComputeWeights::fill_outer(WeightLoader& loader) {
  const auto options = at::TensorOptions(options_.dtype).device(options_.device);
  outer_.is_tied = config_.tie_word_embeddings;
  outer_.embedding = at::empty({config_.vocab_size, config_.hidden_size}, options.dtype(matrix_dtype_));
  const int64_t stored = config_.stored_rows();
  loader.load("model.embed_tokens.weight", outer_.embedding.narrow(0, 0, stored));
  outer_.head = outer_.is_tied ? outer_.embedding : at::empty_like(outer_.embedding);
  if (!outer_.is_tied) loader.load("lm_head.weight", outer_.head.narrow(0, 0, stored));
  outer_.final_norm.weight = at::empty({config_.hidden_size}, options);
  loader.load("model.norm.weight", outer_.final_norm.weight);
}

void ComputeWeights::bind_trained_weights() {
  const auto bind = [this](const std::vector<std::string>& names, const at::Tensor& compute, double scale = 1) {
    const auto rows = [](const at::Tensor& t) { return t.dim() > 2 ? t.flatten(1) : t; };  // a convolution is a matrix
    copies_.add(rows(parameters_.joined(parameters_.values, names)), scale, rows(compute));
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
    for_each_small(shape, weights, [&](const SmallWeightShape& small_shape, SmallWeight& small) {
      small.grad = bind({layer_prefix(layer) + small_shape.name}, small.weight);
    });
  }
  outer_.grad_embedding = bind({"model.embed_tokens.weight"}, outer_.embedding);
  outer_.grad_head = outer_.is_tied ? outer_.grad_embedding : bind({"lm_head.weight"}, outer_.head);
  outer_.final_norm.grad = bind({"model.norm.weight"}, outer_.final_norm.weight);
}

void ComputeWeights::add_columns(int64_t layer, const AddCopy& add) const {
  for (const BlockWeights& block : layers_[static_cast<std::size_t>(layer)]) {
    for (const Projection& projection : block.projections) add_adapter_copies(projection, add);
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
    for (Projection& projection : block.projections) {
      projection.weight = projection.base = projection.b_columns = projection.a_rows = projection.bias = at::Tensor();
    }
  }
}

ResidentWeights::ResidentWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                                 const WeightOptions& options, const storage::WeightFiles* files)
    : ComputeWeights(config, shape, parameters, options, files), quantized_(shape.layers.size()) {
  if (files == nullptr) {
    NoFiles loader(config.initializer_range, options.device);
    fill(loader);
    return;
  }
  FileLoader loader(config, *files, options.device);
  fill(loader);
  fill_added_rows();
  for (LayerWeights& layer : layers_) scale_biases(layer);
}

void ResidentWeights::fill(WeightLoader& loader) {
  for (int64_t layer = 0; layer < std::ssize(layers_); ++layer) {
    Allocate allocate;
    if (layer >= options_.decoded_layers) {
      allocate = [&](const ProjectionShape& shape) {
        at::Tensor& buffer = buffers_[layout_of(shape)];
        if (!buffer.defined()) buffer = make_matrix(shape, at::TensorOptions(options_.dtype).device(options_.device));
        return buffer;
      };
    }
    fill_layer(layer, loader, quantized_[static_cast<std::size_t>(layer)], allocate);
  }
  fill_outer(loader);
  if (options_.trained == TrainedWeights::kAll) {
    for (const auto& parameter : parameters_.list()) loader.load(parameter.name, parameters_.value(parameter.name));
  }
  loader.finish();
  prepare_decoding();
  if (options_.trained == TrainedWeights::kAll) bind_trained_weights();
}

void ResidentWeights::prepare_decoding() {
  for (int64_t layer = 0; layer < std::ssize(layers_); ++layer) {
    QuantizedLayer& quantized = quantized_[static_cast<std::size_t>(layer)];
    for (const QuantizedLayer::Linear& linear : quantized.linears) quantized.decode.add(linear.weight, linear.decoded);
    if (is_decoded_on_acquire(layer)) {
      for (const auto& [weight, decoded] : quantized.plain) quantized.decode.add(weight, 1.0, decoded);
      add_columns(layer, adding_to(quantized.decode));
      continue;
    }
    quantized.decode.run();
    quantized = {};
    add_columns(layer, adding_to(copies_));
  }
}

LayerWeights& ResidentWeights::acquire(int64_t layer, Pass pass) {
  // Between the forward and backward of a micro-batch, the last layer is still in the buffers. Elsewhere, a replayed
  // graph may have changed them.
  const bool is_there = pass == Pass::kBackward && in_buffers_ == layer;
  if (is_decoded_on_acquire(layer) && !is_there) {
    quantized_[static_cast<std::size_t>(layer)].run();
    in_buffers_ = layer;
  }
  return ComputeWeights::acquire(layer, pass);
}

std::int64_t ResidentWeights::quantized_bytes() const {
  std::int64_t bytes = 0;
  for (const QuantizedLayer& layer : quantized_) {
    for (const QuantizedLayer::Linear& linear : layer.linears) bytes += kernels::bytes_of(linear.weight);
    for (const QuantizedLayer::PlainLinear& plain : layer.plain)
      bytes += static_cast<std::int64_t>(plain.weight.nbytes());
  }
  return bytes;
}

void ResidentWeights::refresh() {
  in_buffers_ = -1;
  ComputeWeights::refresh();
}

StreamedWeights::StreamedWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                                 at::ScalarType dtype, const storage::WeightFiles& files, const BaseStorage& base)
    : ComputeWeights(config, shape, parameters, {dtype, at::kCPU, TrainedWeights::kNone, base, 0}), files_(files) {
  FileLoader loader(config_, files_, at::kCPU);
  fill_outer(loader);
  loader.finish();
  fill_added_rows();
}

LayerWeights& StreamedWeights::acquire(int64_t layer, Pass pass) {
  FileLoader loader(config_, files_, at::kCPU);
  QuantizedLayer quantized;
  fill_layer(layer, loader, quantized);
  loader.finish();
  for (QuantizedLayer::Linear& linear : quantized.linears) kernels::dequantize(linear.weight, linear.decoded);
  scale_biases(layers_[static_cast<std::size_t>(layer)]);
  kernels::ScaledCopies columns;
  add_columns(layer, adding_to(columns));
  columns.run();
  return ComputeWeights::acquire(layer, pass);
}

at::Tensor mean_of_rows(const at::Tensor& matrix) {
  constexpr int64_t kPiece = 4096;  // rows in fp64 at a time
  at::Tensor sum = at::zeros({matrix.size(1)}, matrix.options().dtype(at::kDouble));
  for (int64_t begin = 0; begin < matrix.size(0); begin += kPiece) {
    sum += matrix.slice(0, begin, begin + kPiece).to(at::kDouble).sum(0);
  }
  return (sum / matrix.size(0)).to(at::kFloat);
}

void ComputeWeights::bind_token_rows() {
  const auto rows = [this](const std::vector<int64_t>& ids, const char* name) -> kernels::TrainableRows {
    if (ids.empty()) return {};
    const at::Tensor indices = at::tensor(at::ArrayRef<int64_t>(ids), at::kLong);
    return {indices.to(options_.device), parameters_.value(name), parameters_.grad(name)};
  };
  outer_.rows = rows(shape_.rows.embedding, kEmbeddingRows);
  outer_.head_rows = config_.tie_word_embeddings ? outer_.rows : rows(shape_.rows.head, kHeadRows);
}

void ComputeWeights::fill_added_rows() {
  const int64_t stored = config_.stored_rows();
  if (stored == config_.vocab_size) return;
  const auto fill = [&](at::Tensor& matrix) {
    matrix.narrow(0, stored, config_.added_rows).copy_(mean_of_rows(matrix.narrow(0, 0, stored)));
  };
  fill(outer_.embedding);
  if (!outer_.is_tied) fill(outer_.head);
}

}  // namespace lora_train::model
