#include "lora_train/model/weights/trainables.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/cast/cast.h"

namespace lora_train::model {

Trainables::Trainables(std::vector<Parameter> list, at::Device device) {
  place(std::move(list));
  const auto options = at::TensorOptions(at::kFloat).device(device);
  values = at::zeros({size_}, options);
  grads = at::zeros({size_}, options);
}

void Trainables::place(std::vector<Parameter> list) {
  // These two come first even if they stay empty, so that the order does not depend on which parameter comes first.
  std::vector<std::pair<double, bool>> groups = {{1.0, true}, {1.0, false}};
  const auto group_of = [&](const Parameter& parameter) {
    return std::ranges::find(groups, std::pair(parameter.lr_factor, parameter.decays)) - groups.begin();
  };
  for (const Parameter& parameter : list) {
    if (!(parameter.lr_factor > 0)) throw ShapeError(parameter.name, "has an lr_factor that is not above 0");
    if (group_of(parameter) == std::ssize(groups)) groups.emplace_back(parameter.lr_factor, parameter.decays);
  }
  std::ranges::stable_sort(list, {}, group_of);
  for (Parameter& parameter : list) {
    parameter.offset = size_;
    blocks_.push_back({size_, parameter.numel(), parameter.lr_factor, parameter.decays, parameter.is_embedding});
    size_ += parameter.numel();
    if (!index_.emplace(parameter.name, list_.size()).second) {
      throw ShapeError(parameter.name, "two parameters have this name");
    }
    list_.push_back(std::move(parameter));
  }
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
