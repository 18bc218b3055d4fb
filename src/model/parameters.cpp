#include "lora_train/model/parameters.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/base/error.h"

namespace lora_train::model {

int64_t Parameter::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

Parameters::Parameters(std::vector<Parameter> list, Buffers buffers, at::Device device) : list_(std::move(list)) {
  std::stable_partition(list_.begin(), list_.end(), [](const Parameter& parameter) { return parameter.decayed; });
  for (std::size_t i = 0; i < list_.size(); ++i) {
    list_[i].offset = size_;
    size_ += list_[i].numel();
    if (list_[i].decayed) num_decayed_ = size_;
    if (!index_.emplace(list_[i].name, i).second) throw ShapeError(list_[i].name, "two parameters have one name");
  }
  const auto options = at::TensorOptions(at::kFloat).device(device);
  for (at::Tensor* flat : {&values, &exp_avg, &exp_avg_sq}) *flat = at::zeros({size_}, options);
  if (buffers == Buffers::kAll) grads = at::zeros({size_}, options);
}

Parameters Parameters::host_copy() const {
  Parameters copy;
  copy.list_ = list_;
  copy.index_ = index_;
  copy.size_ = size_;
  copy.num_decayed_ = num_decayed_;
  constexpr int64_t kMostPinnedBytes = int64_t{8} << 30;  // a buffer; page-locked memory is rounded up to a power of two
  const bool is_pinned = values.is_cuda() && static_cast<int64_t>(values.nbytes()) <= kMostPinnedBytes;
  const auto options = at::TensorOptions(at::kFloat).pinned_memory(is_pinned);
  for (at::Tensor* flat : {&copy.values, &copy.exp_avg, &copy.exp_avg_sq}) *flat = at::empty({size_}, options);
  copy.copy_state_from(*this);
  return copy;
}

void Parameters::copy_state_from(const Parameters& other) {
  values.copy_(other.values);
  exp_avg.copy_(other.exp_avg);
  exp_avg_sq.copy_(other.exp_avg_sq);
}

const Parameter& Parameters::find(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) throw ShapeError(name, "no such parameter");
  return list_[found->second];
}

at::Tensor Parameters::view(const at::Tensor& flat, const std::string& name) const {
  const Parameter& parameter = find(name);
  return flat.narrow(0, parameter.offset, parameter.numel()).view(parameter.shape);
}

at::Tensor Parameters::joined(const at::Tensor& flat, const std::vector<std::string>& names) const {
  const Parameter& first = find(names.front());
  std::vector<int64_t> shape = first.shape;
  shape[0] = 0;
  int64_t end = first.offset;
  for (const auto& name : names) {
    const Parameter& parameter = find(name);
    if (parameter.offset != end) throw ShapeError(name, "does not lie beside " + names.front());
    end += parameter.numel();
    shape[0] += parameter.shape[0];
  }
  return flat.narrow(0, first.offset, end - first.offset).view(shape);
}

}  // namespace lora_train::model
