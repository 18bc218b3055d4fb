// Quantised linears: memory for them, reading them, and quantising plain ones while they are read. O outputs, D inputs.
#pragma once

#include <string>

#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "lora_train/model/weights/stored_linear.h"
#include "weight_reader.h"

namespace lora_train::model {

/// An uninitialised weight with the tensors of `storage`.
kernels::QuantizedWeight empty_quantized_weight(const LinearStorage& storage, at::Device device);

/// The code of a format that this program quantises to.
kernels::WeightCode quantised_code(LinearFormat format);

/// Codes at random and scales such that the weight has a standard deviation of about `std`: for measurements without a model.
void fill_at_random(kernels::QuantizedWeight& weight, double std);

/// Allocates `weight` and adds to `reader` what fills it with the stored linear. `weight` outlives the reading.
void read_quantized(const storage::WeightFiles& files, const StoredLinear& stored, at::Device device,
                    WeightReader& reader, kernels::QuantizedWeight& weight);

/// Quantises a plain linear while it is read. After the last row the weight has its final form.
class QuantizeSink : public RowSink {
 public:
  /// `weight` outlives the reading. where: "file: tensor", for errors.
  QuantizeSink(kernels::QuantizedWeight& weight, bool nested, std::string where)
      : weight_(weight), nested_(nested), where_(std::move(where)) {}
  int64_t row_multiple() const override { return kernels::row_multiple(weight_); }
  void accept(int64_t begin, const at::Tensor& rows) override { kernels::quantize_rows(rows, begin, weight_); }
  /// Throws FormatError if the linear held NaN or infinity.
  void finish() override;

 private:
  kernels::QuantizedWeight& weight_;
  bool nested_;
  std::string where_;
};

}  // namespace lora_train::model
