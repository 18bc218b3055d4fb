// Weights out of the pages of their files into tensors, by several threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/model/row_sink.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::model {

struct WeightReaderOptions {
  std::int64_t chunk_bytes = 8 << 20;  ///< of the files, read in one go; a row of a tensor is never cut
  int num_threads = 0;                 ///< that fill buffers for a GPU; 0 = by machine. On a CPU: ATen's threads
  bool is_staged = false;              ///< through buffers on a CPU too, for tests
};

/// First asked for all tensors, then reads them, in the order of the files. On a GPU its threads copy the bytes of the files
/// into page-locked buffers, two each, from where a stream of its own takes them; dtypes are converted and rows spread on the
/// device. Events guard buffers that are used again; the device is waited for once, at the end. One thread uses it.
class WeightReader {
 public:
  /// `files` outlives the object.
  WeightReader(const storage::WeightFiles& files, at::Device device, const WeightReaderOptions& options = {});

  /// The rows of the tensor go to `sink`. FormatError when there is no such tensor or its dtype is none of ours.
  void add(const std::string& name, std::unique_ptr<RowSink> sink);
  /// They are copied into `target`, which has the tensor's shape, one dimension or more, any strides and dtype.
  void add(const std::string& name, const at::Tensor& target);

  /// Fills all targets and releases the mapped pages behind it. StopError between chunks when a stop is asked for; what has
  /// been filled until then is undefined.
  void read();

 private:
  struct Request {
    const storage::TensorEntry* entry;
    std::unique_ptr<RowSink> sink;
    at::ScalarType type;     ///< in the file
    std::int64_t row_bytes;  ///< there
    std::int64_t num_rows() const { return entry->shape.front(); }
  };
  /// Rows of one tensor, and where in a buffer they go.
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
  /// Gives the piece's rows to their sink; `from` holds its bytes.
  void hand_over(const Piece& piece, const at::Tensor& from);
  void read_chunks_into_memory();
  void read_chunks_through_buffers();
  void fill_and_send(const Chunk& chunk, Buffer& buffer, const Stage& stage);

  const storage::WeightFiles& files_;
  at::Device device_;
  WeightReaderOptions options_;
  std::vector<Request> requests_;
  std::vector<Chunk> chunks_;
  std::vector<std::atomic<std::int64_t>> rows_left_;  ///< per request: to be read
  std::atomic<std::size_t> next_chunk_ = 0;
  std::atomic<bool> has_failed_ = false;
};

}  // namespace lora_train::model
