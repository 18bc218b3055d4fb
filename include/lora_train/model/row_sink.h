// Where rows of a stored tensor go while the files are read.
#pragma once

#include <ATen/core/Tensor.h>

namespace lora_train::model {

/// Takes a tensor row by row. Called from several threads at once, each with rows of its own, in no particular order; on a
/// GPU in a stream of the reader.
class RowSink {
 public:
  virtual ~RowSink() = default;
  /// Rows [begin, begin + rows.size(0)), in the dtype of the file, on the sink's device. `rows` is gone when this returns
  /// (on a GPU: when the stream is past this point).
  virtual void accept(int64_t begin, const at::Tensor& rows) = 0;
  /// After the last row, from the thread that brought it.
  virtual void finish() {}
};

/// Copies rows into `target`, any strides and dtype.
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
