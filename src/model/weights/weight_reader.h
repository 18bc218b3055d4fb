// Reads weights from mapped files into tensors, with several threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/base/log.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::model {

/// Receives a tensor in ranges of rows, in any order. Several threads may call it at once, each with different rows. On
/// a GPU, work goes to the reader's stream.
class RowSink {
 public:
  virtual ~RowSink() = default;
  /// Every range begins at a multiple of this many rows.
  virtual int64_t row_multiple() const { return 1; }
  /// Takes rows [begin, begin + rows.size(0)), in the dtype of the file, on the sink's device. `rows` is valid until
  /// this returns (on a GPU: until the stream has passed this point).
  virtual void accept(int64_t begin, const at::Tensor& rows) = 0;
  /// Called after the last row, by the thread that delivered it.
  virtual void finish() {}
};

/// Copies rows into `target`, which may have any strides and dtype.
class CopySink : public RowSink {
 public:
  explicit CopySink(at::Tensor target) : target_(std::move(target)) {}
  void accept(int64_t begin, const at::Tensor& rows) override {
    target_.narrow(0, begin, rows.size(0)).copy_(rows, /*non_blocking=*/true);
  }

 private:
  at::Tensor target_;
};

struct WeightReaderOptions {
  /// File bytes read at a time; rows that a sink needs together are never split. 0: 8 MiB for a GPU; 2 MiB for a CPU,
  /// where they bound the memory of quantising.
  std::int64_t chunk_bytes = 0;
  int num_threads = 0;     ///< threads that fill buffers for a GPU; 0: chosen by machine. A CPU uses ATen's threads
  bool is_staged = false;  ///< reads through buffers on a CPU too, for tests
};

/// First add() every tensor, then read() them all, in the order of the files. On a GPU, each thread copies file bytes
/// into its own two page-locked buffers, and a separate stream copies them to the device, which converts dtypes and
/// scatters rows. Events guard the reuse of buffers; the host synchronizes once, at the end. Not thread-safe.
class WeightReader {
 public:
  /// `files` must outlive the object.
  WeightReader(const storage::WeightFiles& files, at::Device device, const WeightReaderOptions& options = {});

  /// Sends the rows of a tensor of the files to `sink`. Throws FormatError if its dtype is not supported.
  void add(const storage::TensorEntry& entry, std::unique_ptr<RowSink> sink);
  /// Copies the tensor into `target`, which has its shape (one dimension or more) and any strides and dtype.
  void add(const storage::TensorEntry& entry, const at::Tensor& target);
  /// The same by name. Throws FormatError if there is no such tensor.
  void add(const std::string& name, const at::Tensor& target);

  /// Delivers all tensors and releases the mapped pages as it goes. Throws StopError between chunks when a stop is
  /// requested; the contents of all targets are then undefined.
  void read();

 private:
  struct Request {
    const storage::TensorEntry* entry;
    std::unique_ptr<RowSink> sink;
    at::ScalarType type;     ///< in the file
    std::int64_t row_bytes;  ///< in the file
    std::int64_t num_rows() const { return entry->shape.front(); }
  };
  /// Rows [begin, begin + count) of one tensor, and their position in a buffer.
  struct Piece {
    std::size_t request;
    std::int64_t begin, count;
    std::int64_t offset, bytes;
  };
  using Chunk = std::vector<Piece>;
  struct Buffer;
  class Stage;

  void cut();
  const Chunk* take();
  const char* source(const Piece& piece) const;
  /// Passes the piece's rows to their sink; `from` holds its bytes.
  void deliver(const Piece& piece, const at::Tensor& from);
  void read_chunks_into_memory();
  void read_chunks_through_buffers();
  void fill_and_send(const Chunk& chunk, Buffer& buffer, const Stage& stage);

  const storage::WeightFiles& files_;
  at::Device device_;
  WeightReaderOptions options_;
  std::vector<Request> requests_;
  std::vector<Chunk> chunks_;
  std::vector<std::atomic<std::int64_t>> rows_left_;  ///< per request: rows still to be read
  std::atomic<std::size_t> next_chunk_ = 0;
  std::atomic<bool> has_failed_ = false;
  LinePace pace_;
};

/// An uninitialised weight with the tensors of `storage`.
kernels::QuantizedWeight empty_quantized_weight(const LinearStorage& storage, at::Device device);

/// Random codes, and scales that give the weight a standard deviation of about `std`: for measurements without a model.
void fill_at_random(kernels::QuantizedWeight& weight, double std);

/// Allocates `weight` and adds the requests to `reader` that fill it from the stored linear. `weight` outlives the
/// reading.
void read_quantized(const storage::WeightFiles& files, const StoredLinear& stored, at::Device device,
                    WeightReader& reader, kernels::QuantizedWeight& weight);

/// The same for a plain linear, which is quantised as it is read. Reading throws FormatError if it holds NaN or
/// infinity.
void read_and_quantize(const storage::WeightFiles& files, const storage::TensorEntry& plain,
                       const LinearStorage& storage, at::Device device, WeightReader& reader,
                       kernels::QuantizedWeight& weight);

}  // namespace lora_train::model
