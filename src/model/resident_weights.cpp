#include "lora_train/model/resident_weights.h"

#include <ATen/ATen.h>

#include <optional>

#include "lora_train/kernels/cast.h"
#include "weight_reader.h"

// D hidden, H heads, K kv heads, E head size, F ffn, V vocabulary.
namespace lora_train::model {
namespace {

std::string layer_name(int64_t layer, const std::string& rest) {
  return "model.layers." + std::to_string(layer) + "." + rest;
}

/// The parts of a projection: which slots, and how many outputs each.
struct Part {
  LinearSlot slot;
  int64_t out_features;
};

std::vector<Part> qkv_parts(const ModelConfig& c) {
  return {{LinearSlot::kQ, c.num_heads * c.head_dim},
          {LinearSlot::kK, c.num_kv_heads * c.head_dim},
          {LinearSlot::kV, c.num_kv_heads * c.head_dim}};
}
std::vector<Part> o_parts(const ModelConfig& c) { return {{LinearSlot::kO, c.hidden_size}}; }
std::vector<Part> gate_up_parts(const ModelConfig& c) {
  return {{LinearSlot::kGate, c.intermediate_size}, {LinearSlot::kUp, c.intermediate_size}};
}
std::vector<Part> down_parts(const ModelConfig& c) { return {{LinearSlot::kDown, c.hidden_size}}; }

/// One projection of a layer with everything that describes it.
struct ProjectionSite {
  Projection LayerWeights::*member;
  std::vector<Part> parts;
  int64_t in_features;
  bool has_bias;
  GradientColumns gradient_columns;
};

/// dS goes beside the narrower of dx (4 D bytes) and dy (2 O): for gate|up, O = 2F, that is dx, for the others dy.
std::vector<ProjectionSite> projection_sites(const ModelConfig& c) {
  const GradientColumns dx = GradientColumns::kBesideInput, dy = GradientColumns::kBesideOutput;
  return {{&LayerWeights::qkv, qkv_parts(c), c.hidden_size, c.qkv_bias, dy},
          {&LayerWeights::o, o_parts(c), c.num_heads * c.head_dim, c.o_bias, dy},
          {&LayerWeights::gate_up, gate_up_parts(c), c.hidden_size, c.mlp_bias, dx},
          {&LayerWeights::down, down_parts(c), c.intermediate_size, c.mlp_bias, dy}};
}

struct NormSite {
  NormWeight LayerWeights::*member;
  std::string name;
  int64_t size;
};

std::vector<NormSite> norm_sites(const ModelConfig& c) {
  std::vector<NormSite> sites{{&LayerWeights::input_norm, "input_layernorm.weight", c.hidden_size},
                              {&LayerWeights::post_attention_norm, "post_attention_layernorm.weight", c.hidden_size}};
  if (c.qk_norm) {
    sites.push_back({&LayerWeights::q_norm, "self_attn.q_norm.weight", c.head_dim});
    sites.push_back({&LayerWeights::k_norm, "self_attn.k_norm.weight", c.head_dim});
  }
  return sites;
}

std::vector<Parameter> adapter_parameters(const ModelConfig& config, const std::vector<AdapterSpec>& specs) {
  std::vector<Parameter> list;
  for (const auto& spec : specs) {
    for (const auto& site : projection_sites(config)) {
      for (const auto& part : site.parts) {
        if (part.slot != spec.slot) continue;
        list.push_back({peft_parameter_name(spec.layer, spec.slot, 'A'), {spec.rank, site.in_features}, true, 0});
        list.push_back({peft_parameter_name(spec.layer, spec.slot, 'B'), {part.out_features, spec.rank}, true, 0});
      }
    }
  }
  return list;
}

std::vector<Parameter> weight_parameters(const ModelConfig& config) {
  std::vector<Parameter> list;
  for (const auto& spec : expected_tensors(config)) {
    const bool decayed = spec.kind != WeightKind::kNorm && spec.kind != WeightKind::kBias;
    list.push_back({spec.name, spec.shape, decayed, 0});
  }
  return list;
}

/// "q_proj.weight" for every part, in the order of the fused rows.
std::vector<std::string> part_names(int64_t layer, const ProjectionSite& site, const std::string& suffix) {
  std::vector<std::string> names;
  for (const auto& part : site.parts) names.push_back(linear_path(layer, part.slot) + suffix);
  return names;
}

}  // namespace

ResidentWeights::ResidentWeights(const ModelConfig& config, const storage::WeightFiles& files, at::ScalarType dtype,
                                 const std::vector<AdapterSpec>& specs, TrainedWeights trained, at::Device device)
    : ResidentWeights(config, &files, dtype, specs, trained, device, Layers::kLoad) {}

ResidentWeights::ResidentWeights(const ModelConfig& config, at::ScalarType dtype, const std::vector<AdapterSpec>& specs,
                                 TrainedWeights trained, at::Device device)
    : ResidentWeights(config, nullptr, dtype, specs, trained, device, Layers::kLoad) {}

ResidentWeights::ResidentWeights(const ModelConfig& config, const storage::WeightFiles* files, at::ScalarType dtype,
                                 const std::vector<AdapterSpec>& specs, TrainedWeights trained, at::Device device,
                                 Layers layers)
    : config_(config),
      options_(at::TensorOptions(dtype).device(device)),
      parameters_(trained == TrainedWeights::kAll ? weight_parameters(config) : adapter_parameters(config, specs),
                  Buffers::kAll, device),
      layers_(static_cast<std::size_t>(config.num_layers)) {
  bind_adapters(specs);
  std::optional<WeightReader> reader;
  if (files != nullptr) reader_ = &reader.emplace(*files, device);
  for (int64_t i = 0; layers == Layers::kLoad && i < config.num_layers; ++i) load_layer(i);
  outer_.is_tied = config.tie_word_embeddings;
  outer_.embedding = at::empty({config.vocab_size, config.hidden_size}, options_);
  load("model.embed_tokens.weight", outer_.embedding);
  if (outer_.is_tied) {
    outer_.head = outer_.embedding;
  } else {
    outer_.head = at::empty_like(outer_.embedding);
    load("lm_head.weight", outer_.head);
  }
  outer_.final_norm.weight = at::empty({config.hidden_size}, options_);
  load("model.norm.weight", outer_.final_norm.weight);
  if (trained == TrainedWeights::kAll) {
    for (const auto& parameter : parameters_.list()) load(parameter.name, parameters_.value(parameter.name));
    bind_trained_weights();
  }
  if (reader) reader->read();
  reader_ = nullptr;
}

void ResidentWeights::load(const std::string& name, const at::Tensor& target) {
  if (reader_ != nullptr) reader_->add(name, target);
}

int64_t ResidentWeights::bytes() const {
  const auto of = [](const at::Tensor& tensor) { return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0; };
  int64_t sum = of(outer_.embedding) + (outer_.is_tied ? 0 : of(outer_.head)) + of(outer_.final_norm.weight);
  for (const auto& layer : layers_) {
    for (const Projection* projection : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      sum += of(projection->weight) + of(projection->bias);
    }
    for (const NormWeight* norm : {&layer.input_norm, &layer.post_attention_norm, &layer.q_norm, &layer.k_norm}) {
      sum += of(norm->weight);
    }
  }
  return sum;
}

void ResidentWeights::bind_adapters(const std::vector<AdapterSpec>& specs) {
  for (int64_t index = 0; index < std::ssize(specs); ++index) {
    const AdapterSpec& spec = specs[static_cast<std::size_t>(index)];
    for (const auto& site : projection_sites(config_)) {
      Projection& projection = layers_[static_cast<std::size_t>(spec.layer)].*site.member;
      int64_t begin = 0;
      for (const auto& part : site.parts) {
        if (part.slot == spec.slot) {
          const std::string a = peft_parameter_name(spec.layer, spec.slot, 'A');
          const std::string b = peft_parameter_name(spec.layer, spec.slot, 'B');
          add_adapter(projection, {linear_path(spec.layer, spec.slot), begin, begin + part.out_features, 0, spec.rank,
                                   spec.scale, spec.dropout, parameters_.value(a), parameters_.value(b),
                                   parameters_.grad(a), parameters_.grad(b), index});
        }
        begin += part.out_features;
      }
    }
  }
}

void ResidentWeights::load_layer(int64_t layer) {
  LayerWeights& weights = layers_[static_cast<std::size_t>(layer)];
  for (const auto& site : projection_sites(config_)) {
    Projection& projection = weights.*site.member;
    projection.in_features = site.in_features;
    projection.out_features = 0;
    for (const auto& part : site.parts) projection.out_features += part.out_features;
    projection.gradient_columns = site.gradient_columns;
    projection.weight = at::zeros({projection.out_features + projection.num_columns, projection.input_width()}, options_);
    if (site.has_bias) projection.bias = at::empty({projection.out_features}, options_);
    int64_t begin = 0;
    for (const auto& part : site.parts) {
      const std::string path = linear_path(layer, part.slot);
      load(path + ".weight",
           projection.base_weight().narrow(0, begin, part.out_features));
      if (site.has_bias) load(path + ".bias", projection.bias.narrow(0, begin, part.out_features));
      begin += part.out_features;
    }
  }
  for (const auto& site : norm_sites(config_)) {
    NormWeight& norm = weights.*site.member;
    norm.weight = at::empty({site.size}, options_);
    load(layer_name(layer, site.name), norm.weight);
  }
}

void ResidentWeights::load_layer(int64_t layer, const storage::WeightFiles& files) {
  WeightReader reader(files, options_.device());
  reader_ = &reader;
  load_layer(layer);
  reader_ = nullptr;
  reader.read();
}

void ResidentWeights::bind_trained_weights() {
  const auto bind = [this](const std::vector<std::string>& names, const at::Tensor& compute) {
    copies_.emplace_back(compute, parameters_.joined(parameters_.values, names));
    return parameters_.joined(parameters_.grads, names);
  };
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    LayerWeights& weights = layers_[static_cast<std::size_t>(layer)];
    for (const auto& site : projection_sites(config_)) {
      Projection& projection = weights.*site.member;
      projection.grad_weight = bind(part_names(layer, site, ".weight"), projection.weight);
      if (!site.has_bias) continue;
      projection.grad_bias = bind(part_names(layer, site, ".bias"), projection.bias);
    }
    for (const auto& site : norm_sites(config_)) {
      NormWeight& norm = weights.*site.member;
      norm.grad = bind({layer_name(layer, site.name)}, norm.weight);
    }
  }
  outer_.grad_embedding = bind({"model.embed_tokens.weight"}, outer_.embedding);
  outer_.grad_head = outer_.is_tied ? outer_.grad_embedding : bind({"lm_head.weight"}, outer_.head);
  outer_.final_norm.grad = bind({"model.norm.weight"}, outer_.final_norm.weight);
}

void ResidentWeights::refresh() {
  for (auto& layer : layers_) {
    for (Projection* projection : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) write_adapter_columns(*projection);
  }
  for (auto& [compute, master] : copies_) kernels::scaled_copy(master, 1.0, compute);
}

StreamedWeights::StreamedWeights(const ModelConfig& config, const storage::WeightFiles& files, at::ScalarType dtype,
                                 const std::vector<AdapterSpec>& specs)
    : ResidentWeights(config, &files, dtype, specs, TrainedWeights::kNone, at::kCPU, Layers::kLeave), files_(files) {}

LayerWeights& StreamedWeights::acquire(int64_t index, Pass) {
  load_layer(index, files_);
  LayerWeights& weights = layer_weights(index);
  for (Projection* projection : {&weights.qkv, &weights.o, &weights.gate_up, &weights.down}) {
    write_adapter_columns(*projection);
  }
  return weights;
}

void StreamedWeights::release(int64_t index, Pass) {
  LayerWeights& weights = layer_weights(index);
  for (Projection* projection : {&weights.qkv, &weights.o, &weights.gate_up, &weights.down}) {
    projection->weight = projection->bias = at::Tensor();
  }
}

}  // namespace lora_train::model
