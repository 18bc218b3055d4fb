#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::storage {
namespace {

using Order = std::vector<const TensorToWrite*>;

Order write_order(const std::vector<TensorToWrite>& tensors) {
  Order order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  // Large elements first: this aligns every tensor for its type, since the header is padded to 8.
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const int bits_a = dtype_bits(a->dtype), bits_b = dtype_bits(b->dtype);
    return bits_a != bits_b ? bits_a > bits_b : a->name < b->name;
  });
  return order;
}

std::string header_of(const Order& order, const std::map<std::string, std::string>& metadata, std::size_t& data_bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::map<std::string_view, int> seen;
  data_bytes = 0;
  for (const auto* tensor : order) {
    if (tensor->name == "__metadata__" || seen[tensor->name]++ > 0) {
      throw ShapeError(tensor->name, "two tensors to write have this name, or it is reserved");
    }
    const std::size_t end = data_bytes + tensor_bytes(tensor->dtype, tensor->shape);
    nlohmann::ordered_json entry;
    entry["dtype"] = dtype_name(tensor->dtype);
    entry["shape"] = tensor->shape;
    entry["data_offsets"] = {data_bytes, end};
    // ordered_json would search linearly before each insertion; the names are known to differ.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(tensor->name, std::move(entry));
    data_bytes = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

std::size_t tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  std::size_t bits = static_cast<std::size_t>(dtype_bits(dtype));
  for (const std::int64_t size : shape) bits *= static_cast<std::size_t>(size);
  return bits / 8;
}

SafetensorsLayout::SafetensorsLayout(const std::vector<TensorToWrite>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : order_(write_order(tensors)), header_(header_of(order_, metadata, data_bytes_)) {}

std::string SafetensorsLayout::length_prefix() const {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header_.size() >> (8 * i) & 0xFF);
  return length;
}

std::string_view SafetensorsLayout::bytes_of(const TensorToWrite& tensor) {
  const std::string_view bytes = tensor.produce ? tensor.produce() : tensor.bytes;
  if (bytes.size() != tensor_bytes(tensor.dtype, tensor.shape)) {
    throw ShapeError(tensor.name, std::to_string(bytes.size()) + " bytes given, " +
                                      std::to_string(tensor_bytes(tensor.dtype, tensor.shape)) + " needed");
  }
  return bytes;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const SafetensorsLayout layout(tensors, metadata);
  AtomicFileWriter writer(path, layout.num_bytes());
  layout.write(writer);
  writer.commit();
}

}  // namespace lora_train::storage
