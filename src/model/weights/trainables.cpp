#include "lora_train/model/trainables.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/kernels/host_copy.h"

namespace lora_train::model {

Trainables::Trainables(std::vector<Parameter> list, at::Device device) {
  place(std::move(list));
  const auto options = at::TensorOptions(at::kFloat).device(device);
  values = at::zeros({size_}, options);
  grads = at::zeros({size_}, options);
}

void Trainables::place(std::vector<Parameter> list) {
  // These two come first even if they stay empty, so that the order does not depend on which parameter comes first.
  blocks_ = {{0, 0, 1.0, true}, {0, 0, 1.0, false}};
  std::vector<std::vector<Parameter>> groups(blocks_.size());
  for (Parameter& parameter : list) {
    if (!(parameter.lr_factor > 0)) throw ShapeError(parameter.name, "has an lr_factor that is not above 0");
    const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const kernels::ParameterBlock& block) {
      return block.lr_factor == parameter.lr_factor && block.decays == parameter.decays;
    });
    const auto group = static_cast<std::size_t>(found - blocks_.begin());
    if (found == blocks_.end()) {
      blocks_.push_back({0, 0, parameter.lr_factor, parameter.decays});
      groups.emplace_back();
    }
    groups[group].push_back(std::move(parameter));
  }
  for (std::size_t group = 0; group < groups.size(); ++group) {
    blocks_[group].begin = size_;
    for (Parameter& parameter : groups[group]) {
      parameter.offset = size_;
      size_ += parameter.numel();
      if (!index_.emplace(parameter.name, list_.size()).second) {
        throw ShapeError(parameter.name, "two parameters have this name");
      }
      list_.push_back(std::move(parameter));
    }
    blocks_[group].count = size_ - blocks_[group].begin;
  }
  std::erase_if(blocks_, [](const kernels::ParameterBlock& block) { return block.count == 0; });
}

Trainables Trainables::host_copy() const {
  Trainables copy = *this;
  copy.values = kernels::host_copy(values);
  copy.grads = at::Tensor();
  return copy;
}

const Parameter& Trainables::find(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) throw ShapeError(name, "no such parameter");
  return list_[found->second];
}

at::Tensor Trainables::view(const at::Tensor& flat, const std::string& name) const {
  const Parameter& parameter = find(name);
  return flat.narrow(0, parameter.offset, parameter.numel()).view(parameter.shape);
}

at::Tensor Trainables::joined(const at::Tensor& flat, const std::vector<std::string>& names) const {
  const Parameter& first = find(names.front());
  std::vector<int64_t> shape = first.shape;
  shape[0] = 0;
  int64_t end = first.offset;
  for (const auto& name : names) {
    const Parameter& parameter = find(name);
    if (parameter.offset != end) throw ShapeError(name, "is not adjacent to " + names.front());
    end += parameter.numel();
    shape[0] += parameter.shape[0];
  }
  return flat.narrow(0, first.offset, end - first.offset).view(shape);
}

}  // namespace lora_train::model
