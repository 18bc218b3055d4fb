// m rows of a chunk.
#include "lora_train/plan/tuning/tuning_cases.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/log.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/plan/tuning/layer_runs.h"

namespace lora_train::plan {
namespace {

using kernels::TuningCandidate;

const char* name_of(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; }

/// The GEMMs of a loss chunk on random rows. The rest of the loss head takes the same time per row with any chunk.
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

/// Chunk sizes to try, in rows, default first.
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

using model::RowPitch;

constexpr const char *kExact = "exact", *kPadded = "padded";

/// Everything that the choice depends on, except the number of tokens.
std::string key_of_run(const std::vector<model::ProjectionShape>& shapes, at::ScalarType dtype) {
  std::string key = std::string("row_pitch ") + name_of(dtype);
  for (const model::ProjectionShape& p : shapes) {
    key += fmt::format(" {} {}+{} to {}", short_name(p), p.in_features, p.num_columns, p.out_features);
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
      tuner.choose({fmt::format("{}tokens{}", of_run, kernels::gemm_class(num_tokens)),
                    [](const std::string& choice) { return choice == kExact || choice == kPadded; },
                    [&] { return candidates(tuner, exact, padded, num_tokens, dtype, device); }, of_run});
  return chosen == kPadded ? RowPitch::kPadded : RowPitch::kExact;
}

AttentionBackends tune_attention(kernels::Tuner& tuner, const model::Decoder& decoder,
                                 const std::vector<std::int64_t>& lengths, at::Device device) {
  const model::ModelConfig& config = decoder.config;
  std::size_t layer = 0;
  while (layer < decoder.shape.layers.size() &&
         config.kind_of(static_cast<std::int64_t>(layer)) != model::LayerKind::kAttention) {
    ++layer;
  }
  if (layer == decoder.shape.layers.size()) return {};
  const char* const out = config.has_attention_gate ? "attention.ungated" : "attention.out";
  const std::int64_t out_width = model::saved_buffer(decoder.shape.layers[layer], out).width;
  AttentionRun attention({config.num_heads, config.num_kv_heads, config.head_dim, out_width, config.attention_scale},
                         decoder.dtype, lengths, device);
  const auto backends = kernels::attention_candidates(attention.attention_case());
  AttentionBackends chosen;
  const auto& windows = config.layer_window;
  for (const std::int64_t window : std::set<std::int64_t>(windows.begin(), windows.end())) {
    (window == 0 ? chosen.full : chosen.windowed) = choose_backend(tuner, attention, window, backends);
  }
  return chosen;
}

std::optional<std::int64_t> kept_loss_chunk(const at::Tensor& head, std::int64_t rows, std::int64_t spare_bytes) {
  const std::int64_t bytes = rows * LossHeadRun::row_bytes(head), more = bytes - model::LossHeadOptions{}.chunk_bytes;
  if (rows <= 0) return {};
  if (!head.is_cuda() || more / LossHeadRun::row_bytes(head) * chunk_row_bytes(head) <= spare_bytes) return bytes;
  log_info("the checkpoint was saved with loss chunks of {} rows, which no longer fit in memory", rows);
  return {};
}

std::int64_t loss_chunk_by_count(const at::Tensor& head, std::int64_t supervised, std::int64_t spare_bytes,
                                 int num_multiprocessors) {
  constexpr std::int64_t kTileRows = 128, kTileColumns = 256;
  const std::int64_t V = head.size(0), D = head.size(1), blocks = std::max(num_multiprocessors, 1);
  const auto rounds = [&](std::int64_t m, std::int64_t n) {
    return ceil_div(ceil_div(m, kTileRows) * ceil_div(n, kTileColumns), blocks);
  };
  // Each round of [m, D] x [D, V] takes D steps, each of [m, V] x [V, D] takes V.
  const auto cost = [&](std::int64_t m) { return ceil_div(supervised, m) * (rounds(m, V) * D + rounds(m, D) * V); };
  const std::vector<std::int64_t> rows = chunk_candidates(head, supervised, spare_bytes);
  const auto best = std::min_element(rows.rbegin(), rows.rend(),  // among equals, the largest
                                     [&](std::int64_t a, std::int64_t b) { return cost(a) < cost(b); });
  return *best * LossHeadRun::row_bytes(head);
}

std::optional<std::int64_t> tune_loss_chunk(kernels::Tuner& tuner, const at::Tensor& head, std::int64_t supervised,
                                            std::int64_t spare_bytes) {
  const std::vector<std::int64_t> rows = chunk_candidates(head, supervised, spare_bytes);
  const std::string key = fmt::format("loss_head {} vocabulary{} hidden{} rows{}", name_of(head.scalar_type()),
                                      head.size(0), head.size(1), kernels::gemm_class(supervised));
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
  if (!chosen) return {};
  std::int64_t chosen_rows = 0;
  std::from_chars(chosen->data(), chosen->data() + chosen->size(), chosen_rows);
  return chosen_rows * LossHeadRun::row_bytes(head);
}

}  // namespace lora_train::plan
