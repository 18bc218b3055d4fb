#include "weight_reader.h"

#include <ATen/Parallel.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/kernels/launch/parallel.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/model/weights/tensor_io.h"
#include "weight_checks.h"

namespace lora_train::model {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr int kMaxThreads = 8;
constexpr std::size_t kBuffersPerThread = 2;  // one is filled while the device reads the other

std::int64_t aligned(std::int64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

using kernels::QuantizedWeight;
using kernels::WeightCode;

/// A small tensor from the files, as fp32 with these sizes.
at::Tensor small_floats(const storage::WeightFiles& files, const storage::TensorEntry& entry, at::IntArrayRef sizes) {
  const at::Tensor values = at::empty(entry.shape, at::kFloat);
  copy_elements(entry, files.bytes(entry), files.where(entry), values);
  return values.view(sizes);
}

}  // namespace

struct WeightReader::Buffer {
  at::Tensor host, device;  ///< uint8
  std::optional<c10::Event> sent;
};

/// Page-locked memory and a stream, for reading through buffers.
class WeightReader::Stage {
 public:
  Stage(at::Device device, std::size_t num_buffers, std::int64_t buffer_bytes) : device_(device) {
    const auto bytes = static_cast<std::int64_t>(num_buffers) * buffer_bytes;
    host_ = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda()));
    const at::Tensor on_device = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    for (std::int64_t at = 0; at < bytes; at += buffer_bytes) {
      buffers.push_back({host_.narrow(0, at, buffer_bytes), on_device.narrow(0, at, buffer_bytes), std::nullopt});
      if (device.is_cuda()) buffers.back().sent.emplace(at::kCUDA);
    }
    if (!device.is_cuda()) return;
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    stream = guard.getNewStream(device);
    // Targets and buffers may reuse memory of other tensors that work already enqueued still reads.
    c10::Event before(at::kCUDA);
    before.record(guard.getStream(device));
    before.block(*stream);
  }
  /// Leaks page-locked memory that a failed device may still read: freeing it would make LibTorch throw in a
  /// destructor.
  ~Stage() {
    if (!device_.is_cuda()) return;
    try {
      wait();
      buffers.clear();
      host_ = at::Tensor();
      at::getHostAllocator(at::kCUDA)->empty_cache();
    } catch (...) {
      new std::vector<Buffer>(std::move(buffers));
      new at::Tensor(std::move(host_));
    }
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  void wait() const {
    if (stream) c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeStream(*stream);
  }

  std::vector<Buffer> buffers;
  std::optional<c10::Stream> stream;

 private:
  at::Device device_;
  at::Tensor host_;
};

WeightReader::WeightReader(const storage::WeightFiles& files, at::Device device, const WeightReaderOptions& options)
    : files_(files), device_(device), options_(options) {
  if (options_.chunk_bytes == 0) options_.chunk_bytes = std::int64_t{device.is_cuda() ? 8 : 2} << 20;
}

void WeightReader::add(const storage::TensorEntry& entry, std::unique_ptr<RowSink> sink) {
  const at::ScalarType type = scalar_type(entry.dtype, files_.where(entry));
  if (entry.num_bytes() == 0) return;
  const std::int64_t row_bytes = static_cast<std::int64_t>(entry.num_bytes()) / entry.shape.front();
  requests_.push_back({&entry, std::move(sink), type, row_bytes});
}

void WeightReader::add(const storage::TensorEntry& entry, const at::Tensor& target) {
  if (target.sizes() != at::IntArrayRef(entry.shape)) {
    throw ShapeError(files_.where(entry), "is {} and does not fit its destination", storage::describe(entry));
  }
  add(entry, std::make_unique<CopySink>(target));
}

void WeightReader::add(const std::string& name, const at::Tensor& target) {
  const storage::TensorEntry* entry = files_.find(name);
  if (entry == nullptr) throw FormatError(name, "tensor is missing");
  add(*entry, target);
}

void WeightReader::cut() {
  std::stable_sort(requests_.begin(), requests_.end(), [](const Request& a, const Request& b) {
    return std::tie(a.entry->file, a.entry->begin) < std::tie(b.entry->file, b.entry->begin);
  });
  rows_left_ = std::vector<std::atomic<std::int64_t>>(requests_.size());
  std::int64_t end = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const std::int64_t num_rows = requests_[i].num_rows(), row_bytes = requests_[i].row_bytes;
    const std::int64_t multiple = requests_[i].sink->row_multiple();
    rows_left_[i] = num_rows;
    for (std::int64_t begin = 0; begin < num_rows;) {
      if (chunks_.empty() || end + std::min(multiple, num_rows - begin) * row_bytes > options_.chunk_bytes) {
        chunks_.emplace_back();
        end = 0;
      }
      const std::int64_t fitting = (options_.chunk_bytes - end) / row_bytes / multiple * multiple;
      const std::int64_t count = std::min(std::max(fitting, multiple), num_rows - begin);
      chunks_.back().push_back({i, begin, count, end, count * row_bytes});
      end = aligned(end + count * row_bytes);
      begin += count;
    }
  }
}

const WeightReader::Chunk* WeightReader::take() {
  if (has_failed_) return nullptr;
  throw_if_stop_requested();
  const std::size_t index = next_chunk_++;
  if (index >= chunks_.size()) return nullptr;
  if (pace_.is_due()) log_info("weights: {}% read", 100 * index / chunks_.size());
  return &chunks_[index];
}

const char* WeightReader::source(const Piece& piece) const {
  const Request& request = requests_[piece.request];
  return files_.bytes(*request.entry).data() + piece.begin * request.row_bytes;
}

void WeightReader::deliver(const Piece& piece, const at::Tensor& from) {
  const Request& request = requests_[piece.request];
  std::vector<std::int64_t> shape = request.entry->shape;
  shape.front() = piece.count;
  request.sink->accept(piece.begin, from.view(request.type).view(shape));
  if ((rows_left_[piece.request] -= piece.count) > 0) return;
  request.sink->finish();
  files_.release(*request.entry);
}

void WeightReader::read() {
  cut();
  if (chunks_.empty()) return;
  if (device_.is_cuda() || options_.is_staged) {
    read_chunks_through_buffers();
  } else {
    read_chunks_into_memory();
  }
}

void WeightReader::read_chunks_into_memory() {
  kernels::parallel_ranges(at::get_num_threads(), 1, [&](std::int64_t, std::int64_t) {
    try {
      while (const Chunk* chunk = take()) {
        for (const Piece& piece : *chunk) {
          // Used in place if it is aligned for its type in the file.
          const char* const bytes = source(piece);
          const auto address = reinterpret_cast<std::uintptr_t>(bytes);
          at::Tensor from = at::from_blob(const_cast<char*>(bytes), {piece.bytes}, at::TensorOptions(at::kByte));
          if (address % c10::elementSize(requests_[piece.request].type) != 0) from = from.clone();
          deliver(piece, from);
        }
      }
    } catch (...) {
      has_failed_ = true;
      throw;
    }
  });
}

void WeightReader::fill_and_send(const Chunk& chunk, Buffer& buffer, const Stage& stage) {
  if (buffer.sent && buffer.sent->was_marked_for_recording()) buffer.sent->synchronize();
  for (const Piece& piece : chunk) {
    std::memcpy(buffer.host.mutable_data_ptr<std::uint8_t>() + piece.offset, source(piece),
                static_cast<std::size_t>(piece.bytes));
  }
  const std::int64_t bytes = chunk.back().offset + chunk.back().bytes;
  buffer.device.narrow(0, 0, bytes).copy_(buffer.host.narrow(0, 0, bytes), /*non_blocking=*/true);
  if (buffer.sent) buffer.sent->record(*stage.stream);
  for (const Piece& piece : chunk) deliver(piece, buffer.device.narrow(0, piece.offset, piece.bytes));
}

void WeightReader::read_chunks_through_buffers() {
  int num_threads = options_.num_threads;
  if (num_threads == 0) num_threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  const std::size_t num_readers = std::min(static_cast<std::size_t>(num_threads), chunks_.size());
  std::int64_t buffer_bytes = 0;
  for (const Chunk& chunk : chunks_)
    buffer_bytes = std::max(buffer_bytes, aligned(chunk.back().offset + chunk.back().bytes));
  Stage stage(device_, std::min(kBuffersPerThread * num_readers, chunks_.size()), buffer_bytes);
  std::mutex mutex;
  std::exception_ptr error;
  const auto reader = [&](std::size_t number) {
    try {
      const c10::OptionalStreamGuard in_stream(stage.stream);
      for (std::size_t next = number; const Chunk* chunk = take();) {
        fill_and_send(*chunk, stage.buffers[next], stage);
        next = next + num_readers < stage.buffers.size() ? next + num_readers : number;
      }
    } catch (...) {
      has_failed_ = true;
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < num_readers; ++i) threads.emplace_back(reader, i);
    reader(0);
  }
  if (error) std::rethrow_exception(error);
  stage.wait();
}

namespace {

/// A plain linear to be quantised, without scales in 8 bits.
QuantizedWeight unnested_weight(const LinearStorage& storage, at::Device device) {
  const WeightCode code = storage.format == LinearFormat::k4Bit   ? WeightCode::k4Bit
                          : storage.format == LinearFormat::kInt8 ? WeightCode::kInt8
                                                                  : WeightCode::kFp8;
  return kernels::make_quantized_weight(code, storage.out_features, storage.in_features, device,
                                        {storage.block_size, storage.block_rows, storage.block_columns});
}

/// Quantises a plain linear while it is read. After the last row the weight has its final form.
class QuantizeSink : public RowSink {
 public:
  QuantizeSink(QuantizedWeight& weight, bool nested, std::string where)
      : weight_(weight), nested_(nested), where_(std::move(where)) {}
  int64_t row_multiple() const override { return kernels::row_multiple(weight_); }
  void accept(int64_t begin, const at::Tensor& rows) override { kernels::quantize_rows(rows, begin, weight_); }
  void finish() override {
    if (!kernels::are_scales_finite(weight_)) {
      throw FormatError(where_,
                        "holds NaN or infinity (or, for int8, a value beyond F16): the base model is damaged; download "
                        "it again");
    }
    if (nested_) kernels::finish_nested(weight_);
  }

 private:
  QuantizedWeight& weight_;
  bool nested_;
  std::string where_;
};

}  // namespace

QuantizedWeight empty_quantized_weight(const LinearStorage& storage, at::Device device) {
  QuantizedWeight weight = unnested_weight(storage, device);
  if (storage.nested_block_size == 0) return weight;
  const at::TensorOptions fp32 = weight.scales.options();
  weight.nested_block_size = storage.nested_block_size;
  weight.scales = at::empty(weight.scales.sizes(), fp32.dtype(at::kByte));
  weight.nested_scales = at::empty({ceil_div(storage.num_scales(), storage.nested_block_size)}, fp32);
  weight.nested_map = at::empty({kNestedMapSize}, fp32);
  return weight;
}

void fill_at_random(QuantizedWeight& weight, double std) {
  constexpr double kNf4Std = 0.55, kInt8Share = 0.58, kFp8Value = 1.0;  // for equally likely codes
  if (weight.codes.is_meta()) return;
  const bool is_fp8 = weight.code == WeightCode::kFp8, is_int8 = weight.code == WeightCode::kInt8;
  if (is_fp8) {
    weight.codes.copy_(at::randn(weight.codes.sizes(), weight.codes.options().dtype(at::kFloat)));
  } else {
    weight.codes.random_(is_int8 ? -127 : 0, is_int8 ? 128 : 256);
  }
  if (weight.code == WeightCode::k4Bit) weight.map.copy_(kernels::nf4_map());
  if (!weight.is_nested()) {
    weight.scales.fill_(std / (is_fp8 ? kFp8Value : is_int8 ? kInt8Share : kNf4Std));
    return;
  }
  weight.scales.zero_();
  weight.nested_map.copy_(kernels::dynamic_map(true));
  weight.nested_scales.zero_();
  weight.nested_offset = static_cast<float>(std / kNf4Std);
}

void read_quantized(const storage::WeightFiles& files, const StoredLinear& stored, at::Device device,
                    WeightReader& reader, QuantizedWeight& weight) {
  weight = empty_quantized_weight(stored, device);
  // Codes of 4 bits may be stored as elements of any dtype (bnb_4bit_quant_storage).
  const at::ScalarType type = scalar_type(stored.weight->dtype, files.where(*stored.weight));
  reader.add(*stored.weight, weight.codes.view(type).view(stored.weight->shape));
  if (stored.format != LinearFormat::k4Bit) {
    weight.scales.copy_(small_floats(files, *stored.scales, weight.scales.sizes()));
    return;
  }
  reader.add(*stored.scales, weight.scales.view(stored.scales->shape));
  weight.map.copy_(small_floats(files, *stored.map, weight.map.sizes()));
  if (!weight.is_nested()) return;
  weight.nested_scales.copy_(small_floats(files, *stored.nested_scales, weight.nested_scales.sizes()));
  weight.nested_map.copy_(small_floats(files, *stored.nested_map, weight.nested_map.sizes()));
  weight.nested_offset = stored.nested_offset;
}

void read_and_quantize(const storage::WeightFiles& files, const storage::TensorEntry& plain,
                       const LinearStorage& storage, at::Device device, WeightReader& reader, QuantizedWeight& weight) {
  weight = unnested_weight(storage, device);
  reader.add(plain, std::make_unique<QuantizeSink>(weight, storage.nested_block_size > 0, files.where(plain)));
}

std::vector<float> decode_linear(const StoredLinear& linear, const storage::WeightFiles& weights) {
  QuantizedWeight quantized;
  WeightReader reader(weights, at::kCPU);
  if (linear.scales != nullptr) {
    read_quantized(weights, linear, at::kCPU, reader, quantized);
  } else {
    read_and_quantize(weights, *linear.weight, linear, at::kCPU, reader, quantized);
  }
  reader.read();
  std::vector<float> values(static_cast<std::size_t>(linear.out_features * linear.in_features));
  at::Tensor out = at::from_blob(values.data(), {linear.out_features, linear.in_features}, at::kFloat);
  kernels::dequantize(quantized, out);
  return values;
}

void QuantizedLayer::run() {
  kernels::run_or_capture([this] { decode.run(); });
}

}  // namespace lora_train::model
