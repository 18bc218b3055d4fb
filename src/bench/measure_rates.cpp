// N tokens, D input features, O outputs, V vocabulary, H heads, K kv heads, E head size.
#include "measure_rates.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/model/layer_shape.h"
#include "lora_train/model/loss_head.h"

namespace lora_train::bench {
namespace {

constexpr double kStd = 0.02;
constexpr double kGemmS = 1;     // until power limits the clock
constexpr double kShortS = 0.3;  // what runs at its own limit from the start

/// y [rows, O] = x [rows, D] W^T, and dx = y W.
struct GemmShape {
  std::int64_t rows = 0, D = 0, O = 0, count = 0;
  double flops() const { return 4.0 * static_cast<double>(rows * D * O); }
};

std::vector<GemmShape> gemms_of_step(const RateCase& sizes) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> counts;
  model::model_shape(sizes.config).for_each_projection([&](const model::ProjectionShape& p) {
    ++counts[{p.in_features, p.out_features}];
  });
  std::vector<GemmShape> shapes;
  for (const auto& [features, count] : counts)
    shapes.push_back({sizes.num_tokens, features.first, features.second, count});
  const std::int64_t V = sizes.config.vocab_size, supervised = std::max<std::int64_t>(1, sizes.num_supervised);
  const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(sizes.dtype));
  const std::int64_t rows = std::clamp<std::int64_t>(sizes.loss_chunk_bytes / (V * element_bytes), 1, supervised);
  shapes.push_back({rows, sizes.config.hidden_size, V, (supervised + rows - 1) / rows});
  return shapes;
}

/// Operands of every shape in the same buffers. Weights begin one after the other, so that none is in a cache from before.
class GemmBuffers {
 public:
  GemmBuffers(const std::vector<GemmShape>& shapes, at::TensorOptions options) {
    std::int64_t input = 0, output = 0, widest = 0, all_linears = 0;
    for (const GemmShape& s : shapes) {
      input = std::max(input, s.rows * s.D);
      output = std::max(output, s.rows * s.O);
      widest = std::max(widest, s.D * s.O);
      all_linears += s.D * s.O;
    }
    const std::int64_t head = shapes.back().D * shapes.back().O;
    x_ = at::empty({input}, options).normal_();
    dx_ = at::empty({input}, options);
    y_ = at::empty({output}, options);
    weights_ = at::empty({std::max(widest, all_linears - head)}, options).normal_(0, kStd);
  }

  void multiply(const GemmShape& s) {
    if (next_ + s.D * s.O > weights_.size(0)) next_ = 0;
    const at::Tensor weight = weights_.narrow(0, next_, s.D * s.O).view({s.O, s.D});
    next_ += s.D * s.O;
    const auto rows_of = [&](const at::Tensor& flat, std::int64_t width) {
      return flat.narrow(0, 0, s.rows * width).view({s.rows, width});
    };
    at::Tensor y = rows_of(y_, s.O), dx = rows_of(dx_, s.D);
    kernels::gemm(rows_of(x_, s.D), weight.t(), y);
    kernels::gemm(y, weight, dx);
  }

 private:
  at::Tensor x_, dx_, y_, weights_;
  std::int64_t next_ = 0;
};

double copy_bytes_per_s(const plan::RunDevice& device) {
  const std::int64_t size = std::int64_t{1} << (device.is_cuda() ? 28 : 22);
  const at::Tensor from = at::empty({size}, at::TensorOptions(at::kFloat).device(device.device)).normal_();
  at::Tensor to = at::empty_like(from);
  return 2.0 * 4 * static_cast<double>(size) / seconds_back_to_back(device, kShortS, [&] { to.copy_(from); });
}

/// One layer's attention on full rows.
class AttentionRows {
 public:
  AttentionRows(const RateCase& sizes, const plan::RunDevice& device)
      : H_(sizes.config.num_heads), K_(sizes.config.num_kv_heads), E_(sizes.config.head_dim) {
    const std::int64_t rows = std::max<std::int64_t>(1, sizes.num_tokens / sizes.max_seq_len);
    const std::int64_t N = rows * sizes.max_seq_len;
    for (std::int64_t i = 0; i <= rows; ++i) layout_.cu_seqlens_q.push_back(i * sizes.max_seq_len);
    layout_.cu_seqlens_k = layout_.cu_seqlens_q;
    layout_.scale = sizes.config.attention_scale;
    layout_.max_len_q = layout_.max_len_k = sizes.max_seq_len;
    layout_.cu_seqlens_q_device = at::tensor(layout_.cu_seqlens_q, at::kInt).to(device.device);
    layout_.cu_seqlens_k_device = layout_.cu_seqlens_q_device;
    const auto options = at::TensorOptions(sizes.dtype).device(device.device);
    qkv_ = at::empty({N, (H_ + 2 * K_) * E_}, options).normal_();
    d_qkv_ = at::empty_like(qkv_);
    out_ = at::empty({N, H_, E_}, options);
    d_out_ = at::empty_like(out_).normal_();
    lse_ = at::empty({N, H_}, options.dtype(at::kFloat));
    flops_ = 4.0 * static_cast<double>(H_ * E_ * N) * static_cast<double>(sizes.max_seq_len + 1) / 2;
  }

  kernels::AttentionCase attention_case(bool is_cuda) const {
    kernels::AttentionCase c;
    c.dtype = qkv_.scalar_type();
    c.head_size = E_;
    c.num_docs = static_cast<std::int64_t>(layout_.cu_seqlens_q.size()) - 1;
    c.num_heads = H_;
    c.max_len_q = c.max_len_k = layout_.max_len_q;
    c.sm = is_cuda ? kernels::cuda_compute_capability() : 0;
    return c;
  }
  void use(kernels::AttentionBackend backend) {
    layout_.backend = backend;
    layout_.prepared = {};
  }
  void forward() {
    kernels::attention_forward(heads(qkv_, 0, H_), heads(qkv_, H_, K_), heads(qkv_, H_ + K_, K_), layout_, out_, lse_);
  }
  void backward() {
    kernels::AttentionGradients gradients{heads(d_qkv_, 0, H_), heads(d_qkv_, H_, K_), heads(d_qkv_, H_ + K_, K_)};
    kernels::attention_backward(d_out_, heads(qkv_, 0, H_), heads(qkv_, H_, K_), heads(qkv_, H_ + K_, K_), out_, lse_,
                                layout_, gradients);
  }
  double forward_flops() const { return flops_; }         ///< 2 products over the visible scores
  double backward_flops() const { return 2.5 * flops_; }  ///< 5

 private:
  at::Tensor heads(const at::Tensor& buffer, std::int64_t begin, std::int64_t count) const {
    return buffer.narrow(1, begin * E_, count * E_).unflatten(1, {count, E_});
  }

  std::int64_t H_, K_, E_;
  kernels::AttentionLayout layout_;
  at::Tensor qkv_, d_qkv_, out_, d_out_, lse_;
  double flops_ = 0;
};

/// "2026-11-22T23:59:59Z"
std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text.data();
}

void measure_attention(const RateCase& sizes, const plan::RunDevice& device, BenchRates& rates) {
  AttentionRows attention(sizes, device);
  std::vector<kernels::AttentionBackend> backends = {kernels::AttentionBackend::kAuto};
  if (device.is_cuda()) {
    const auto candidates = kernels::attention_candidates(attention.attention_case(true));
    if (!candidates.empty()) backends = candidates;
  }
  double best_s = 0;
  for (const kernels::AttentionBackend backend : backends) {
    throw_if_stop_requested();
    attention.use(backend);
    try {
      const double forward_s = seconds_back_to_back(device, kShortS, [&] { attention.forward(); });
      const double backward_s = seconds_back_to_back(device, kShortS, [&] { attention.backward(); });
      if (best_s > 0 && forward_s + backward_s >= best_s) continue;
      best_s = forward_s + backward_s;
      rates.attention_forward_flops_per_s = attention.forward_flops() / forward_s;
      rates.attention_backward_flops_per_s = attention.backward_flops() / backward_s;
    } catch (const DeviceError& error) {  // one backend of several, as in autotuning
      log_info(std::string("bench: an attention backend is out: ") + error.what());
    }
  }
  if (best_s == 0) throw DeviceError("bench", "no attention backend works, so there is no rate to measure");
}

}  // namespace

double measure_gemm_rate(const RateCase& sizes, const plan::RunDevice& device, plan::RunTuning* tuning) {
  const std::vector<GemmShape> shapes = gemms_of_step(sizes);
  GemmBuffers buffers(shapes, at::TensorOptions(sizes.dtype).device(device.device));
  const auto tuned_products = plan::tune_products(tuning);
  double flops = 0;
  for (const GemmShape& shape : shapes) flops += static_cast<double>(shape.count) * shape.flops();
  const double seconds = seconds_back_to_back(device, kGemmS, [&] {
    throw_if_stop_requested();
    for (const GemmShape& shape : shapes) {
      for (std::int64_t i = 0; i < shape.count; ++i) buffers.multiply(shape);
    }
  });
  return flops / seconds;
}

BenchRates measure_rates(const RateCase& sizes, const plan::RunDevice& device, plan::RunTuning* tuning) {
  BenchRates rates;
  rates.gpu = device.name;
  rates.date = utc_now();
  rates.gemm_flops_per_s = measure_gemm_rate(sizes, device, tuning);
  measure_attention(sizes, device, rates);
  rates.copy_bytes_per_s = copy_bytes_per_s(device);
  return rates;
}

}  // namespace lora_train::bench
