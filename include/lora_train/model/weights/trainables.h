// All trained tensors in two flat fp32 buffers, masters and gradients, so that the optimizer, clipping and an
// all-reduce are one pass each. Optimizer state is separate (optim/optimizer.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "lora_train/kernels/adamw/adamw.h"
#include "lora_train/model/layer_shape.h"

namespace lora_train::model {

/// Parameters with the same lr_factor and `decays` are adjacent, in the given order. First come those with lr_factor 1
/// and decay, then lr_factor 1 without, then the others by first appearance.
/// Copies share the buffers. Not thread-safe.
class Trainables {
 public:
  /// Throws ShapeError for a duplicate name or an lr_factor that is not positive.
  explicit Trainables(std::vector<Parameter> list, at::Device device = at::kCPU);

  /// A copy of the values in host memory (kernels/cast/cast.h), without gradients.
  Trainables host_copy() const;

  /// Parameters in the order of the buffers.
  const std::vector<Parameter>& list() const { return list_; }
  /// The same, as the optimizer sees them.
  const std::vector<kernels::ParameterBlock>& blocks() const { return blocks_; }
  int64_t size() const { return size_; }
  /// Bytes of masters and gradients for `size` elements.
  static constexpr int64_t bytes(int64_t size) { return int64_t{2 * sizeof(float)} * size; }
  /// Views of one parameter, in its shape. Throw ShapeError for an unknown name.
  at::Tensor value(const std::string& name) const { return view(values, name); }
  at::Tensor grad(const std::string& name) const { return view(grads, name); }
  at::Tensor view(const at::Tensor& flat, const std::string& name) const;
  /// A view of several adjacent parameters as one tensor: [sum of first dimensions, rest].
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
