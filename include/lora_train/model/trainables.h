// Everything that is trained, in flat fp32 buffers: one for the masters and one for their gradients, so that the optimizer,
// clipping and a later all-reduce are one pass each. What an optimizer remembers is apart (optim/optimizer.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "lora_train/kernels/parameter_block.h"

namespace lora_train::model {

/// One trained tensor. `name` is its name on disk: PEFT's for adapters, Hugging Face's for weights.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  bool decays = true;      ///< takes weight decay (biases and norms do not)
  double lr_factor = 1.0;  ///< multiplies the learning rate
  int64_t offset = 0;      ///< first element in the flat buffers; set by Trainables
  int64_t numel() const;
};

/// Parameters with one lr_factor and one answer to `decays` lie side by side, as a block, in the given order. Blocks: lr_factor
/// 1 with decay, lr_factor 1 without, then others as they first appear.
/// Copies share the buffers. Not thread-safe.
class Trainables {
 public:
  /// Throws ShapeError where a name is there twice or an lr_factor is not more than 0.
  explicit Trainables(std::vector<Parameter> list, at::Device device = at::kCPU);

  /// Values in host memory of their own (kernels/host_copy.h), without gradients.
  Trainables host_copy() const;

  /// In the order of the buffers.
  const std::vector<Parameter>& list() const { return list_; }
  /// They cover the buffers, in order; none is empty.
  const std::vector<kernels::ParameterBlock>& blocks() const { return blocks_; }
  int64_t size() const { return size_; }
  /// Of masters and gradients of so many elements.
  static constexpr int64_t bytes(int64_t size) { return int64_t{2 * sizeof(float)} * size; }
  /// Views of one parameter, shaped. Throw ShapeError for an unknown name.
  at::Tensor value(const std::string& name) const { return view(values, name); }
  at::Tensor grad(const std::string& name) const { return view(grads, name); }
  at::Tensor view(const at::Tensor& flat, const std::string& name) const;
  /// Flat view over several parameters that lie side by side, shaped [sum of first dimensions, rest].
  at::Tensor joined(const at::Tensor& flat, const std::vector<std::string>& names) const;

  at::Tensor values, grads;  ///< [size] fp32, zero at first, on the device; grads is undefined in a host copy

 private:
  void place(std::vector<Parameter> list);
  const Parameter& find(const std::string& name) const;
  std::vector<Parameter> list_;
  std::vector<kernels::ParameterBlock> blocks_;
  std::unordered_map<std::string, std::size_t> index_;
  int64_t size_ = 0;
};

}  // namespace lora_train::model
