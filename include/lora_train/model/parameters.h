// Everything that is trained, in flat fp32 buffers: one each for masters, gradients and the two moments, so that the
// optimizer, clipping and a later all-reduce are one pass each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace lora_train::model {

/// One trained tensor. `name` is its name on disk: PEFT's for adapters, Hugging Face's for weights.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  bool decayed = true;   ///< takes weight decay (biases and norms do not)
  int64_t offset = 0;    ///< first element in the flat buffers
  int64_t numel() const;
};

enum class Buffers { kAll, kWithoutGradients };

/// Decayed parameters come first in the buffers; within each group the given order is kept.
/// Not thread-safe.
class Parameters {
 public:
  explicit Parameters(std::vector<Parameter> list, Buffers buffers = Buffers::kAll, at::Device device = at::kCPU);

  /// Values and moments in host memory of their own (page-locked where they come from a GPU, up to 8 GiB a buffer),
  /// without gradients.
  Parameters host_copy() const;
  /// Values and moments of `other`, which has the same parameters on any device.
  void copy_state_from(const Parameters& other);

  const std::vector<Parameter>& list() const { return list_; }
  int64_t size() const { return size_; }
  int64_t num_decayed() const { return num_decayed_; }
  /// Views of one parameter, shaped. Throw ShapeError for an unknown name.
  at::Tensor value(const std::string& name) const { return view(values, name); }
  at::Tensor grad(const std::string& name) const { return view(grads, name); }
  at::Tensor view(const at::Tensor& flat, const std::string& name) const;
  /// Flat view over several parameters that lie side by side, shaped [sum of first dimensions, rest].
  at::Tensor joined(const at::Tensor& flat, const std::vector<std::string>& names) const;

  at::Tensor values, grads, exp_avg, exp_avg_sq;  ///< [size] fp32, zero at first, on the device; grads may be undefined

 private:
  Parameters() = default;
  const Parameter& find(const std::string& name) const;
  std::vector<Parameter> list_;
  std::unordered_map<std::string, std::size_t> index_;
  int64_t size_ = 0, num_decayed_ = 0;
};

}  // namespace lora_train::model
