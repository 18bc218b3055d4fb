// N tokens of the largest micro-batch, H heads, K kv heads, E head size; m rows of a chunk.
#include "lora_train/tuning/tuning_cases.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "lora_train/base/log.h"
#include "lora_train/kernels/attention.h"
#include "lora_train/kernels/cuda_library.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/model/loss_head.h"

namespace lora_train::tuning {
namespace {

using kernels::AttentionBackend;
using kernels::TuningCandidate;

std::string with_number(const char* name, std::int64_t value) {
  return std::string(" ") + name + std::to_string(value);
}

const char* name_of(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; }

/// Attention forward and backward on random buffers with the layout of a layer's.
class AttentionRun {
 public:
  AttentionRun(const model::Decoder& decoder, const std::vector<std::int64_t>& lengths, at::Device device)
      : config_(decoder.config) {
    for (const std::int64_t length : lengths) cu_seqlens_.push_back(cu_seqlens_.back() + length);
    longest_ = *std::max_element(lengths.begin(), lengths.end());
    const auto options = at::TensorOptions(decoder.dtype).device(device);
    const std::int64_t N = cu_seqlens_.back(), E = config_.head_dim;
    const std::int64_t width = (config_.num_heads + 2 * config_.num_kv_heads) * E;
    const std::int64_t out_width = model::saved_buffer(decoder.shape.layers.front(), "attention.out").width;
    qkv_ = at::empty({N, width}, options).normal_();
    d_out_ = at::empty({N, out_width}, options).normal_();
    d_qkv_ = at::zeros({N, width}, options);
    out_ = at::zeros({N, out_width}, options);
    lse_ = at::zeros({N, config_.num_heads}, options.dtype(at::kFloat));
    cu_seqlens_device_ = at::tensor(cu_seqlens_, at::kInt).to(device);
  }

  kernels::AttentionCase attention_case() const {
    kernels::AttentionCase c;
    c.dtype = qkv_.scalar_type();
    c.head_size = config_.head_dim;
    c.num_docs = static_cast<std::int64_t>(cu_seqlens_.size()) - 1;
    c.num_heads = config_.num_heads;
    c.max_len_q = c.max_len_k = longest_;
    c.sm = kernels::cuda_compute_capability();
    return c;
  }

  /// The part of the key that does not depend on the documents.
  std::string key_of_run(std::int64_t window) const {
    return std::string("attention ") + name_of(qkv_.scalar_type()) + with_number("heads", config_.num_heads) +
           with_number("kv", config_.num_kv_heads) + with_number("size", config_.head_dim) +
           with_number("window", window) + " ";
  }

  std::string key(std::int64_t window) const {
    return key_of_run(window) + "longest" + std::to_string(kernels::gemm_class(longest_)) +
           with_number("documents", kernels::gemm_class(attention_case().num_docs)) +
           with_number("tokens", kernels::gemm_class(cu_seqlens_.back()));
  }

  kernels::AttentionLayout layout(std::int64_t window, AttentionBackend backend) const {
    return {cu_seqlens_, cu_seqlens_, window, config_.attention_scale, backend, cu_seqlens_device_, cu_seqlens_device_,
            longest_,    longest_,    {}};
  }

  kernels::AttentionGradients compute(const kernels::AttentionLayout& layout) {
    const std::int64_t H = config_.num_heads, K = config_.num_kv_heads;
    at::Tensor out = heads(out_, 0, H);
    const at::Tensor q = heads(qkv_, 0, H), k = heads(qkv_, H, K), v = heads(qkv_, H + K, K);
    kernels::attention_forward(q, k, v, layout, out, lse_);
    kernels::AttentionGradients gradients{heads(d_qkv_, 0, H), heads(d_qkv_, H, K), heads(d_qkv_, H + K, K)};
    kernels::attention_backward(heads(d_out_, 0, H), q, k, v, out, lse_, layout, gradients);
    return gradients;
  }

  /// Compares the results of a backend with those of the first one checked. Returns the problem, or an empty string.
  std::string check(const kernels::AttentionLayout& layout) {
    constexpr double kLoose = 0.05;  // relative to the norm; rounding to bf16 causes less than a fifth of it
    for (const at::Tensor& buffer : {out_, d_qkv_}) buffer.zero_();
    const kernels::AttentionGradients gradients = compute(layout);
    const std::array results = {last_rows(out_),
                                at::cat({last_rows(gradients.q), last_rows(gradients.k), last_rows(gradients.v)}, 1)};
    const bool is_first = !expected_[0].defined();
    if (is_first) expected_ = results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const double size = expected_[i].norm().item<double>(), error = (results[i] - expected_[i]).norm().item<double>();
      if (std::isfinite(size) && error <= kLoose * size) continue;
      if (is_first) expected_ = {};
      return std::string(i == 0 ? "output" : "gradients") +
             (std::isfinite(error) ? " differ by " + std::to_string(error / size) : std::string(" are not finite"));
    }
    return {};
  }

 private:
  at::Tensor heads(const at::Tensor& buffer, std::int64_t begin, std::int64_t count) const {
    return buffer.narrow(1, begin * config_.head_dim, count * config_.head_dim).unflatten(1, {count, config_.head_dim});
  }
  static at::Tensor last_rows(const at::Tensor& buffer) {
    constexpr std::int64_t kRows = 2048;
    const std::int64_t n = std::min(kRows, buffer.size(0));
    return buffer.narrow(0, buffer.size(0) - n, n).flatten(1).cpu().to(at::kFloat);
  }

  const model::ModelConfig& config_;
  std::vector<std::int64_t> cu_seqlens_{0};
  std::int64_t longest_ = 0;
  at::Tensor qkv_, out_, lse_, d_out_, d_qkv_, cu_seqlens_device_;
  std::array<at::Tensor, 2> expected_;
};

std::string name_of(AttentionBackend backend) {
  switch (backend) {
    case AttentionBackend::kFa2: return "fa2";
    case AttentionBackend::kCudnn: return "cudnn";
    case AttentionBackend::kEfficient: return "efficient";
    case AttentionBackend::kAuto:
    case AttentionBackend::kReference: break;
  }
  return "reference";
}

AttentionBackend choose_backend(kernels::Tuner& tuner, AttentionRun& run, std::int64_t window) {
  const std::vector<AttentionBackend> backends = kernels::attention_candidates(run.attention_case());
  if (backends.size() < 2) return AttentionBackend::kAuto;
  const auto find = [&](const std::string& name) {
    return std::find_if(backends.begin(), backends.end(), [&](AttentionBackend b) { return name_of(b) == name; });
  };
  const auto accepts = [&](const std::string& name) { return find(name) != backends.end(); };
  const auto chosen =
      tuner.choose({run.key(window), accepts,
                    [&] {
                      std::vector<TuningCandidate> candidates;
                      for (const AttentionBackend backend : backends) {
                        const auto layout = std::make_shared<kernels::AttentionLayout>(run.layout(window, backend));
                        candidates.push_back({name_of(backend), [&run, layout] { run.compute(*layout); },
                                              [&run, layout] { return run.check(*layout); }});
                      }
                      return candidates;
                    },
                    run.key_of_run(window)});
  return chosen ? *find(*chosen) : AttentionBackend::kAuto;
}

/// The GEMMs of a loss chunk, on random rows. The rest of the loss head takes the same time per row in any chunk.
class LossHeadRun {
 public:
  LossHeadRun(const at::Tensor& head, std::int64_t most_rows) : head_(head) {
    hidden_ = at::empty({most_rows, head.size(1)}, head.options()).normal_();
    logits_ = at::empty({most_rows, head.size(0)}, head.options());
    d_hidden_ = at::empty_like(hidden_);
  }

  static std::int64_t row_bytes(const at::Tensor& head) {
    return head.size(0) * static_cast<std::int64_t>(head.element_size());
  }

  void operator()(std::int64_t rows) {
    at::Tensor logits = logits_.narrow(0, 0, rows), d_hidden = d_hidden_.narrow(0, 0, rows);
    kernels::gemm(hidden_.narrow(0, 0, rows), head_.t(), logits);
    kernels::gemm(logits, head_, d_hidden);
  }

 private:
  at::Tensor head_, hidden_, logits_, d_hidden_;
};

/// Memory per row of a loss chunk.
std::int64_t chunk_row_bytes(const at::Tensor& head) {
  return LossHeadRun::row_bytes(head) + 4 * head.size(1) * static_cast<std::int64_t>(head.element_size());
}

/// Chunk sizes to try, in rows; the default first.
std::vector<std::int64_t> chunk_candidates(const at::Tensor& head, std::int64_t supervised, std::int64_t spare_bytes) {
  const std::int64_t row_bytes = LossHeadRun::row_bytes(head);
  const std::int64_t rule = std::clamp<std::int64_t>(model::LossHeadOptions{}.chunk_bytes / row_bytes, 16,
                                                     std::max<std::int64_t>(supervised, 16));
  std::vector<std::int64_t> rows = {rule};
  for (const std::int64_t more : {1024, 2048, 4096, 8192}) {
    if (more / 2 >= supervised || (more - rule) * chunk_row_bytes(head) > spare_bytes) break;
    if (more != rule) rows.push_back(more);
  }
  return rows;
}

}  // namespace

AttentionBackends tune_attention(kernels::Tuner& tuner, const model::Decoder& decoder,
                                 const std::vector<std::int64_t>& lengths, at::Device device) {
  AttentionRun attention(decoder, lengths, device);
  AttentionBackends chosen;
  const auto& windows = decoder.config.layer_window;
  for (const std::int64_t window : std::set<std::int64_t>(windows.begin(), windows.end())) {
    (window == 0 ? chosen.full : chosen.windowed) = choose_backend(tuner, attention, window);
  }
  return chosen;
}

std::optional<std::int64_t> kept_loss_chunk(const at::Tensor& head, std::int64_t rows, std::int64_t spare_bytes) {
  const std::int64_t bytes = rows * LossHeadRun::row_bytes(head), more = bytes - model::LossHeadOptions{}.chunk_bytes;
  if (rows <= 0) return {};
  if (!head.is_cuda() || more / LossHeadRun::row_bytes(head) * chunk_row_bytes(head) <= spare_bytes) return bytes;
  log_info("the checkpoint was saved with loss chunks of " + std::to_string(rows) +
           " rows, which do not fit in memory now");
  return {};
}

std::int64_t tune_loss_chunk(kernels::Tuner& tuner, const at::Tensor& head, std::int64_t supervised,
                             std::int64_t spare_bytes) {
  const std::vector<std::int64_t> rows = chunk_candidates(head, supervised, spare_bytes);
  const std::string key = std::string("loss_head ") + name_of(head.scalar_type()) +
                          with_number("vocabulary", head.size(0)) + with_number("hidden", head.size(1)) +
                          with_number("rows", kernels::gemm_class(supervised));
  const auto accepts = [&](const std::string& choice) {
    return std::any_of(rows.begin(), rows.end(), [&](std::int64_t m) { return std::to_string(m) == choice; });
  };
  const auto chosen =
      tuner.choose({key, accepts, [&] {
                      std::vector<TuningCandidate> candidates;
                      if (rows.size() < 2) return candidates;
                      const auto loss_head =
                          std::make_shared<LossHeadRun>(head, *std::max_element(rows.begin(), rows.end()));
                      // A partly filled chunk costs as much as a full one.
                      for (const std::int64_t m : rows) {
                        const double num_chunks = std::ceil(static_cast<double>(supervised) / static_cast<double>(m));
                        candidates.push_back({std::to_string(m), [loss_head, m] { (*loss_head)(m); }, {}, num_chunks});
                      }
                      return candidates;
                    }});
  if (!chosen) return model::LossHeadOptions{}.chunk_bytes;
  std::int64_t chosen_rows = 0;
  std::from_chars(chosen->data(), chosen->data() + chosen->size(), chosen_rows);
  return chosen_rows * LossHeadRun::row_bytes(head);
}

}  // namespace lora_train::tuning
