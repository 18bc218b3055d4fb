// N tokens of the largest micro-batch, H heads, K kv heads, E head size.

#include "lora_train/plan/tuning/layer_runs.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/gemm/gemm.h"

namespace lora_train::plan {
namespace {

using kernels::AttentionBackend;
using kernels::TuningCandidate;

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

}  // namespace

AttentionRun::AttentionRun(const AttentionHeads& sizes, at::ScalarType dtype, const std::vector<std::int64_t>& lengths,
                           at::Device device, const kernels::CudaAttention& calls)
    : sizes_(sizes), calls_(calls) {
  for (const std::int64_t length : lengths) cu_seqlens_.push_back(cu_seqlens_.back() + length);
  longest_ = *std::max_element(lengths.begin(), lengths.end());
  const auto options = at::TensorOptions(dtype).device(device);
  const std::int64_t N = cu_seqlens_.back(), H = sizes_.num_heads;
  const std::int64_t width = (H + 2 * sizes_.num_kv_heads) * sizes_.head_size;
  qkv_ = at::empty({N, width}, options).normal_();
  d_out_ = at::empty({N, sizes_.out_width}, options).normal_();
  d_qkv_ = at::zeros({N, width}, options);
  out_ = at::zeros({N, sizes_.out_width}, options);
  lse_ = at::zeros({N, H}, options.dtype(at::kFloat));
  cu_seqlens_device_ = at::tensor(cu_seqlens_, at::kInt).to(device);
}

kernels::AttentionCase AttentionRun::attention_case() const {
  kernels::AttentionCase c;
  c.dtype = qkv_.scalar_type();
  c.head_size = sizes_.head_size;
  c.num_docs = static_cast<std::int64_t>(cu_seqlens_.size()) - 1;
  c.num_heads = sizes_.num_heads;
  c.max_len_q = c.max_len_k = longest_;
  c.sm = kernels::cuda_compute_capability();
  return c;
}

std::string AttentionRun::key_of_run(std::int64_t window) const {
  return fmt::format("attention {} heads{} kv{} size{} window{} ",
                     qkv_.scalar_type() == at::kBFloat16 ? "bf16" : "fp32", sizes_.num_heads, sizes_.num_kv_heads,
                     sizes_.head_size, window);
}

std::string AttentionRun::key(std::int64_t window) const {
  return fmt::format("{}longest{} documents{} tokens{}", key_of_run(window), kernels::gemm_class(longest_),
                     kernels::gemm_class(std::ssize(cu_seqlens_) - 1), kernels::gemm_class(cu_seqlens_.back()));
}

kernels::AttentionLayout AttentionRun::layout(std::int64_t window, AttentionBackend backend) const {
  return {cu_seqlens_,        cu_seqlens_,        window,   sizes_.scale, backend,
          cu_seqlens_device_, cu_seqlens_device_, longest_, longest_,     {}};
}

void AttentionRun::forward(const kernels::AttentionLayout& layout, const kernels::CudaAttention& calls) {
  const std::int64_t H = sizes_.num_heads, K = sizes_.num_kv_heads;
  at::Tensor out = heads(out_, 0, H);
  calls.forward(heads(qkv_, 0, H), heads(qkv_, H, K), heads(qkv_, H + K, K), layout, out, lse_);
}

kernels::AttentionGradients AttentionRun::backward(const kernels::AttentionLayout& layout,
                                                   const kernels::CudaAttention& calls) {
  const std::int64_t H = sizes_.num_heads, K = sizes_.num_kv_heads;
  kernels::AttentionGradients gradients{heads(d_qkv_, 0, H), heads(d_qkv_, H, K), heads(d_qkv_, H + K, K)};
  calls.backward(heads(d_out_, 0, H), heads(qkv_, 0, H), heads(qkv_, H, K), heads(qkv_, H + K, K), heads(out_, 0, H),
                 lse_, layout, gradients);
  return gradients;
}

AttentionRun::Results AttentionRun::compute(const kernels::AttentionLayout& layout,
                                            const kernels::CudaAttention& calls) {
  forward(layout, calls);
  const kernels::AttentionGradients gradients = backward(layout, calls);
  return {heads(out_, 0, sizes_.num_heads), gradients.q, gradients.k, gradients.v};
}

std::unique_ptr<AttentionRun> AttentionRun::short_documents() const {
  return std::make_unique<AttentionRun>(sizes_, qkv_.scalar_type(), std::vector<std::int64_t>{67, 1, 0, 151, 38},
                                        qkv_.device(), calls_);
}

void AttentionRun::expect(const kernels::AttentionLayout& layout) {
  expected_ = {};
  for (const at::Tensor& buffer : {out_, d_qkv_}) buffer.zero_();
  const Results reference =
      compute(layout, {&kernels::attention_forward_reference, &kernels::attention_backward_reference});
  if (reference[0].count_nonzero().item<std::int64_t>() == 0) return;  // proves nothing
  for (std::size_t i = 0; i < reference.size(); ++i) expected_[i] = reference[i].clone();
}

std::string AttentionRun::check(const kernels::AttentionLayout& layout) {
  constexpr double kLoose = 0.05;  // relative to a document's norm; rounding to bf16 causes less than a fifth of it
  constexpr std::array kNames = {"output", "dq", "dk", "dv"};
  for (const at::Tensor& buffer : {out_, d_qkv_}) buffer.zero_();
  const Results results = compute(layout, calls_);
  const Results& expected = expected_[0].defined() ? expected_ : results;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto [document, error] = kernels::worst_document(results[i], expected[i], cu_seqlens_);
    if (error <= kLoose) continue;
    return fmt::format("{} of document {} of {}{}", kNames[i], document + 1, cu_seqlens_.size() - 1,
                       std::isfinite(error) ? fmt::format(" differs by {}", error) : std::string(" is not finite"));
  }
  if (!expected_[0].defined()) {
    for (std::size_t i = 0; i < results.size(); ++i) expected_[i] = results[i].clone();
  }
  return {};
}

at::Tensor AttentionRun::heads(const at::Tensor& buffer, std::int64_t begin, std::int64_t count) const {
  return buffer.narrow(1, begin * sizes_.head_size, count * sizes_.head_size).unflatten(1, {count, sizes_.head_size});
}

AttentionBackend choose_backend(kernels::Tuner& tuner, AttentionRun& run, std::int64_t window,
                                const std::vector<AttentionBackend>& backends) {
  if (backends.size() < 2) return AttentionBackend::kAuto;
  const auto find = [&](const std::string& name) {
    return std::find_if(backends.begin(), backends.end(), [&](AttentionBackend b) { return name_of(b) == name; });
  };
  const auto accepts = [&](const std::string& name) { return find(name) != backends.end(); };
  const auto make_candidates = [&] {
    constexpr std::int64_t kCheckedWindow = 40;  // short enough to hide keys in short documents too
    const std::int64_t checked_window = std::min(window, kCheckedWindow);
    const std::shared_ptr<AttentionRun> checked = run.short_documents();
    checked->expect(checked->layout(checked_window, AttentionBackend::kReference));
    std::vector<TuningCandidate> candidates;
    for (const AttentionBackend backend : backends) {
      const auto layout = std::make_shared<kernels::AttentionLayout>(run.layout(window, backend));
      candidates.push_back(
          {name_of(backend), [&run, layout] { run.compute(*layout); },
           [checked, checked_window, backend] { return checked->check(checked->layout(checked_window, backend)); }});
    }
    return candidates;
  };
  const auto chosen = tuner.choose({run.key(window), accepts, make_candidates, run.key_of_run(window)});
  return chosen ? *find(*chosen) : AttentionBackend::kAuto;
}

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

}  // namespace lora_train::plan
