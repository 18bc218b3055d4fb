// Split-KV decoding. G = H / K heads share a KV head, so its keys and values are read once for all of them. Threads
// take parts of a document's keys; their partial softmax results are merged at the end.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention_parts.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

constexpr std::int64_t kPartKeys = 256;         // keys per part
constexpr std::int64_t kGrainElements = 16384;  // key elements; with fewer, another thread costs more than it gains

/// A part of a document's keys for one kv head.
struct Part {
  std::int64_t document, kv_head, key, num_keys;
};

/// The partial result of a part, for each of G heads: the largest score, the sum of exp(score - largest), and the
/// values weighted by that. [G, E + 2] floats.
struct PartResult {
  float* data;
  std::int64_t E;
  float& largest(std::int64_t g) const { return data[g * (E + 2)]; }
  float& sum(std::int64_t g) const { return data[g * (E + 2) + 1]; }
  float* values(std::int64_t g) const { return data + g * (E + 2) + 2; }
};

template <class T>
LORA_TRAIN_INLINE float dot(const float* a, const T* b, std::int64_t E) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t e = 0; e < E; ++e) sum += a[e] * load(b + e);
  return sum;
}

/// q [G, E] scaled. k and v point at the part's first key and kv head.
template <class T>
LORA_TRAIN_CLONES void part(const float* q, Rows<const T> k, Rows<const T> v, std::int64_t num_keys, std::int64_t G,
                            std::int64_t E, PartResult result) {
  float scores[kPartKeys];
  for (std::int64_t g = 0; g < G; ++g) {
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (std::int64_t j = 0; j < num_keys; ++j) scores[j] = dot(q + g * E, k[j], E);
    for (std::int64_t j = 0; j < num_keys; ++j) largest = std::max(largest, scores[j]);
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j < num_keys; ++j) {
      scores[j] = fast_exp(scores[j] - largest);
      sum += scores[j];
    }
    float* const values = result.values(g);
    std::fill(values, values + E, 0.0F);
    for (std::int64_t j = 0; j < num_keys; ++j) {
      const float weight = scores[j];
      const T* const row = v[j];
#pragma omp simd
      for (std::int64_t e = 0; e < E; ++e) values[e] += weight * load(row + e);
    }
    // std::max drops a NaN score; the sum keeps it.
    result.largest(g) = largest;
    result.sum(g) = sum;
  }
}

std::vector<Part> parts_of(std::span<const DecodeDocument> documents, std::int64_t num_kv_heads) {
  std::vector<Part> parts;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    for (std::int64_t head = 0; head < num_kv_heads; ++head) {
      for (std::int64_t key = 0; key < documents[d].num_keys; key += kPartKeys) {
        parts.push_back({static_cast<std::int64_t>(d), head, documents[d].key + key,
                         std::min(kPartKeys, documents[d].num_keys - key)});
      }
    }
  }
  return parts;
}

/// Merges parts [begin, end), those of one document and kv head. out [G, E].
template <class T>
void put_together(const std::vector<PartResult>& results, std::size_t begin, std::size_t end, std::int64_t G,
                  std::int64_t E, T* out) {
  std::vector<float> values(static_cast<std::size_t>(E));
  for (std::int64_t g = 0; g < G; ++g) {
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, results[i].largest(g));
    std::fill(values.begin(), values.end(), 0.0F);
    for (std::size_t i = begin; i < end; ++i) {
      const float factor = std::exp(results[i].largest(g) - largest);
      sum += factor * results[i].sum(g);
      for (std::int64_t e = 0; e < E; ++e) values[static_cast<std::size_t>(e)] += factor * results[i].values(g)[e];
    }
    for (std::int64_t e = 0; e < E; ++e) store(out + g * E + e, values[static_cast<std::size_t>(e)] / sum);
  }
}

template <class T>
std::vector<float> scaled_queries(Rows<const T> q, std::span<const DecodeDocument> documents, std::int64_t width,
                                  float scale) {
  std::vector<float> scaled(documents.size() * static_cast<std::size_t>(width));
  for (std::size_t d = 0; d < documents.size(); ++d) {
    for (std::int64_t i = 0; i < width; ++i) {
      scaled[d * static_cast<std::size_t>(width) + static_cast<std::size_t>(i)] =
          load(q[documents[d].query] + i) * scale;
    }
  }
  return scaled;
}

}  // namespace

template <class T>
void attention_decode_cpu(Rows<const T> q, Rows<const T> k, Rows<const T> v, std::span<const DecodeDocument> documents,
                          const HeadSizes& sizes, float scale, Rows<T> out) {
  const std::int64_t E = sizes.head_size, G = sizes.num_heads / sizes.num_kv_heads, width = sizes.num_heads * E;
  const std::vector<float> queries = scaled_queries(q, documents, width, scale);
  const std::vector<Part> parts = parts_of(documents, sizes.num_kv_heads);
  std::vector<float> buffer(parts.size() * static_cast<std::size_t>(G * (E + 2)));
  std::vector<PartResult> results;
  for (std::size_t i = 0; i < parts.size(); ++i)
    results.push_back({buffer.data() + i * static_cast<std::size_t>(G * (E + 2)), E});
  const auto num_parts = static_cast<std::int64_t>(parts.size());
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainElements / (kPartKeys * G * E));
  parallel_ranges(num_parts, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Part& p = parts[static_cast<std::size_t>(i)];
      part<T>(queries.data() + p.document * width + p.kv_head * G * E, {k[p.key] + p.kv_head * E, k.stride},
              {v[p.key] + p.kv_head * E, v.stride}, p.num_keys, G, E, results[static_cast<std::size_t>(i)]);
    }
  });
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    const Part& p = parts[begin];
    while (end < parts.size() && parts[end].document == p.document && parts[end].kv_head == p.kv_head) ++end;
    put_together(results, begin, end, G, E,
                 out[documents[static_cast<std::size_t>(p.document)].query] + p.kv_head * G * E);
  }
}

LORA_TRAIN_INSTANTIATE(attention_decode_cpu);

}  // namespace lora_train::kernels
