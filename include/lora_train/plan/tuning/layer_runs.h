// The parts of a decoder layer that autotuning (tuning_cases.h) and bench measure, on random numbers in buffers laid
// out as in training: attention, and the linears with their adapters.
// N tokens, D input features, O outputs, C adapter columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/dispatch/tuning.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/projection.h"

namespace lora_train::plan {

struct AttentionHeads {
  std::int64_t num_heads = 0, num_kv_heads = 0, head_size = 0;
  std::int64_t out_width = 0;  ///< width of a row of the output buffer, at least num_heads * head_size
  double scale = 0;
};

/// Runs attention forward and backward over documents of these lengths. Not copyable, because candidates refer to it.
class AttentionRun {
 public:
  /// `calls` runs a backend: attention_forward and attention_backward, except in tests.
  AttentionRun(const AttentionHeads& sizes, at::ScalarType dtype, const std::vector<std::int64_t>& lengths,
               at::Device device,
               const kernels::CudaAttention& calls = {&kernels::attention_forward, &kernels::attention_backward});
  AttentionRun(const AttentionRun&) = delete;

  kernels::AttentionCase attention_case() const;
  /// The part of the key that does not depend on the documents.
  std::string key_of_run(std::int64_t window) const;
  std::string key(std::int64_t window) const;
  kernels::AttentionLayout layout(std::int64_t window, kernels::AttentionBackend backend) const;
  void forward(const kernels::AttentionLayout& layout) { forward(layout, calls_); }
  void backward(const kernels::AttentionLayout& layout) { backward(layout, calls_); }
  void compute(const kernels::AttentionLayout& layout) { compute(layout, calls_); }
  /// The same heads over a few short documents. The reference keeps every score of a document, which would take
  /// gigabytes for long ones.
  std::unique_ptr<AttentionRun> short_documents() const;
  /// Computes the reference results that check() compares with.
  void expect(const kernels::AttentionLayout& layout);
  /// Computes, and compares every document with the expected results, or, if there are none, with those of the first
  /// check. Returns the problem, or an empty string.
  std::string check(const kernels::AttentionLayout& layout);

 private:
  using Results = std::array<at::Tensor, 4>;  ///< out, dq, dk, dv
  void forward(const kernels::AttentionLayout& layout, const kernels::CudaAttention& calls);
  kernels::AttentionGradients backward(const kernels::AttentionLayout& layout, const kernels::CudaAttention& calls);
  Results compute(const kernels::AttentionLayout& layout, const kernels::CudaAttention& calls);
  at::Tensor heads(const at::Tensor& buffer, std::int64_t begin, std::int64_t count) const;

  AttentionHeads sizes_;
  kernels::CudaAttention calls_;
  std::vector<std::int64_t> cu_seqlens_{0};
  std::int64_t longest_ = 0;
  at::Tensor qkv_, out_, lse_, d_out_, d_qkv_, cu_seqlens_device_;
  Results expected_;
};

/// Returns the fastest backend; kAuto if there is no choice or all fail.
kernels::AttentionBackend choose_backend(kernels::Tuner& tuner, AttentionRun& run, std::int64_t window,
                                         const std::vector<kernels::AttentionBackend>& backends);

/// Memory for the projections of a layer with either row pitch. Several runs may share it, one at a time. Values are
/// normally distributed: zeros would let a GPU run faster than in training.
struct LinearsMemory {
  LinearsMemory(const model::LayerShape& layer, std::int64_t num_tokens, at::ScalarType dtype, at::Device device);

  std::int64_t num_tokens;
  at::Tensor weight, input, output, d_input, residual;  ///< flat
};

/// The first layer of the model that has an adapter; the first layer if none has.
const model::LayerShape& first_adapted_layer(const model::ModelShape& shape);

/// "q|k|v", "gate|up", "o"
std::string short_name(const model::ProjectionShape& projection);

/// Forward and backward as in training.
class LinearsRun {
 public:
  /// Makes views of the memory, laid out as in `shapes`, which may differ from the memory's layer in row_pitch and
  /// gradient_columns.
  LinearsRun(const std::vector<model::ProjectionShape>& shapes, const LinearsMemory& memory);

  /// Fills the adapter columns of the input and multiplies; the last projection of a block adds a residual.
  void forward(std::size_t index);
  /// Computes dx and the gradients of the adapters.
  void backward(std::size_t index);
  void run_all();
  const model::Projection& projection(std::size_t index) const { return linears_[index].projection; }
  std::size_t size() const { return linears_.size(); }

 private:
  struct Linear {
    model::Projection projection;
    at::Tensor input, residual, output, d_output, d_input;
  };
  std::vector<Linear> linears_;
};

/// The projections of a layer, in order.
std::vector<model::ProjectionShape> projections_of(const model::LayerShape& layer);

}  // namespace lora_train::plan
