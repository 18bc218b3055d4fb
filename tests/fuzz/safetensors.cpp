// safetensors files: what is read can be looked at, and comes back the same when it is written anew.
#include "lora_train/storage/safetensors.h"

#include <algorithm>

#include "fuzz/refusal.h"

namespace {

using namespace lora_train::storage;  // NOLINT: the names under test
using lora_train::fuzz::require;

struct StringWriter {
  std::string bytes;
  void write(std::string_view more) { bytes += more; }
};

void look_at(const SafetensorsFile& file, std::size_t file_bytes) {
  std::size_t end = 0;
  for (const TensorEntry& entry : file.tensors()) {
    require(file.find(entry.name) == &entry, "find() does not find " + entry.name);
    require(entry.begin == end && entry.end >= entry.begin, "a gap or an overlap");
    require(entry.num_bytes() == tensor_bytes(entry.dtype, entry.shape), "a size that the shape has not");
    require(parse_dtype(dtype_name(entry.dtype)) == entry.dtype, "a dtype whose name is another one's");
    require(!describe(entry).empty() && entry.num_elements() >= 0, "an entry that cannot be shown");
    const std::string_view bytes = file.bytes(entry);
    require(bytes.size() == entry.num_bytes(), "bytes beyond the end of the file");
    for (const char byte : bytes) [[maybe_unused]] volatile char read = byte;
    end = entry.end;
  }
  require(8 + end <= file_bytes, "tensors beyond the end of the file");
}

/// Written as we write, the file has the same tensors.
void check_round_trip(const SafetensorsFile& file) {
  static const lora_train::fuzz::InputFile copy_file("copy.safetensors");
  std::vector<TensorToWrite> tensors;
  for (const TensorEntry& entry : file.tensors()) {
    tensors.push_back({entry.name, entry.dtype, entry.shape, file.bytes(entry), nullptr});
  }
  const SafetensorsLayout layout(tensors, file.metadata());
  StringWriter writer;
  layout.write(writer);
  require(writer.bytes.size() == layout.num_bytes(), "a layout of another size than what is written");
  copy_file.write(reinterpret_cast<const std::uint8_t*>(writer.bytes.data()), writer.bytes.size());
  const SafetensorsFile copy(copy_file.path());
  require(copy.metadata() == file.metadata(), "other metadata");
  require(copy.tensors().size() == file.tensors().size(), "another number of tensors");
  for (const TensorEntry& entry : file.tensors()) {
    const TensorEntry* other = copy.find(entry.name);
    require(other != nullptr && other->dtype == entry.dtype && other->shape == entry.shape, "another " + entry.name);
    require(copy.bytes(*other) == file.bytes(entry), "other bytes of " + entry.name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const lora_train::fuzz::InputFile input("input.safetensors");
  input.write(data, size);
  lora_train::fuzz::accepts([&] {
    const SafetensorsFile file(lora_train::MappedFile::read(input.path()));
    look_at(file, size);
    check_round_trip(file);
  });
  return 0;
}
