// Where the rows of a stored tensor go while files are read.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::model {

/// Receives a tensor in ranges of rows, in any order. Several threads may call it at once, each with different rows. On a GPU,
/// work goes to the reader's stream.
class RowSink {
 public:
  virtual ~RowSink() = default;
  /// Every range begins at a multiple of this many rows.
  virtual int64_t row_multiple() const { return 1; }
  /// Takes rows [begin, begin + rows.size(0)), in the dtype of the file, on the sink's device. `rows` is valid until this
  /// returns (on a GPU: until the stream has passed this point).
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

}  // namespace lora_train::model
