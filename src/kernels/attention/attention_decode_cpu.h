// Attention of one query per document to keys and values in a cache. T is float or Bf16.
// H heads, K kv heads, E head size.
#pragma once

#include <span>

#include "launch/rows.h"

namespace lora_train::kernels {

/// The query of a document, and the keys that it attends to.
struct DecodeDocument {
  std::int64_t query, key, num_keys;
};

struct HeadSizes {
  std::int64_t num_heads, num_kv_heads, head_size;
};

/// Rows of q and out are [H, E], rows of k and v [K, E]. Sums in fp32. Splits the keys of a document at fixed places, so that its
/// result depends on neither the other documents nor the threads.
template <class T>
void attention_decode_cpu(Rows<const T> q, Rows<const T> k, Rows<const T> v, std::span<const DecodeDocument> documents,
                          const HeadSizes& sizes, float scale, Rows<T> out);

}  // namespace lora_train::kernels
