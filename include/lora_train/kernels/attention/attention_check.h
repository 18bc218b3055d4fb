// Compares the results of two attention implementations document by document: in the norm of a whole batch, one short document
// that is wrong does not show.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lora_train::kernels {

struct DocumentError {
  std::int64_t document = -1;  ///< -1: all documents are equal
  double error = 0;            ///< infinite if a number is not finite
};

/// The largest error of a document: |got - want| / |want| over its rows. |want| is at least the document's share of the norm of
/// all documents, because gradients of a document of one token are zero but for rounding.
/// got, want [rows, ...], the same floating dtype and device; document d has rows [cu_seqlens[d], cu_seqlens[d + 1]). Rows after
/// the last document are not compared. Waits for the device.
DocumentError worst_document(const at::Tensor& got, const at::Tensor& want,
                             const std::vector<std::int64_t>& cu_seqlens);

}  // namespace lora_train::kernels
