#include "lora_train/kernels/attention/attention_cache.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "lora_train/base/error.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

// S tokens of the cache, H heads, K kv heads, E head size.
namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Case {
  std::vector<int64_t> num_queries, num_keys;
  int64_t window, heads, kv_heads, head_size;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{1}, {1}, 0, 1, 1, 8},
      {{1, 1, 1}, {37, 1, 300}, 0, 5, 1, 8},           // decoding; more keys than one part has
      {{1, 1}, {256, 257}, 0, 4, 2, 16},               // a whole part, and one key more
      {{1, 1, 1, 1}, {9, 10, 11, 700}, 10, 6, 3, 10},  // window above, at and below the keys
      {{1}, {600}, 513, 14, 2, 64},
      {{1, 7, 1}, {5, 7, 64}, 0, 4, 4, 128},    // a prompt among them
      {{5, 9, 130}, {40, 9, 200}, 0, 6, 2, 8},  // further parts of long prompts
      {{5, 130}, {40, 200}, 16, 4, 1, 16},
  };
  return all;
}

/// Documents lie in the cache in reverse order, with three tokens of room after each that are NaN.
CachedLayout layout_of(const Case& c) {
  CachedLayout layout;
  layout.cu_seqlens_q = {0};
  layout.key_begin.resize(c.num_keys.size());
  layout.num_keys = c.num_keys;
  int64_t place = 2;
  for (std::size_t d = c.num_keys.size(); d-- > 0;) {
    layout.key_begin[d] = place;
    place += c.num_keys[d] + 3;
  }
  for (const auto count : c.num_queries) layout.cu_seqlens_q.push_back(layout.cu_seqlens_q.back() + count);
  layout.window = c.window;
  layout.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  return layout;
}

at::Tensor cache_of(const CachedLayout& layout, const Case& c, std::uint64_t seed, at::ScalarType rounding) {
  int64_t size = 0;
  for (std::size_t d = 0; d < layout.num_docs(); ++d)
    size = std::max(size, layout.key_begin[d] + layout.num_keys[d] + 3);
  const auto values = (uniform({size, c.kv_heads, c.head_size}, seed) * 2).to(rounding).to(at::kDouble);
  auto cache = at::full_like(values, std::numeric_limits<double>::quiet_NaN());
  for (std::size_t d = 0; d < layout.num_docs(); ++d) {
    cache.narrow(0, layout.key_begin[d], layout.num_keys[d])
        .copy_(values.narrow(0, layout.key_begin[d], layout.num_keys[d]));
  }
  return cache;
}

struct Inputs {
  CachedLayout layout;
  at::Tensor q, k, v;  ///< fp64
};

Inputs inputs_for(const Case& c, at::ScalarType rounding) {
  Inputs in{layout_of(c), {}, {}, {}};
  in.q = (uniform({in.layout.cu_seqlens_q.back(), c.heads, c.head_size}, 1) * 3).to(rounding).to(at::kDouble);
  in.k = cache_of(in.layout, c, 2, rounding);
  in.v = cache_of(in.layout, c, 3, rounding);
  return in;
}

// Query by query: softmax over the keys that it sees, by the definition in the header.
at::Tensor by_definition(const Case& c, const Inputs& in) {
  auto out = at::zeros_like(in.q);
  for (std::size_t d = 0; d < in.layout.num_docs(); ++d) {
    for (int64_t i = 0; i < c.num_queries[d]; ++i) {
      const int64_t own = i + c.num_keys[d] - c.num_queries[d];
      const int64_t first = c.window > 0 ? std::max<int64_t>(0, own - c.window + 1) : 0;
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t kv = h / (c.heads / c.kv_heads), begin = in.layout.key_begin[d] + first;
        const auto keys = in.k.select(1, kv).narrow(0, begin, own - first + 1);
        const auto values = in.v.select(1, kv).narrow(0, begin, own - first + 1);
        const auto query = in.q[in.layout.cu_seqlens_q[d] + i][h];
        out[in.layout.cu_seqlens_q[d] + i][h].copy_(
            at::mv(values.t(), at::softmax(at::mv(keys, query) * in.layout.scale, 0)));
      }
    }
  }
  return out;
}

class AttentionCache : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(AttentionCache);

TEST_P(AttentionCache, MatchesTheDefinition) {
  const auto place = GetParam();
  for (const auto& c : cases()) {
    const auto in = inputs_for(c, place.dtype);
    auto out = place.empty(in.q.sizes());
    attention_cached(place.put(in.q), place.put(in.k), place.put(in.v), in.layout, out);
    EXPECT_CLOSE(out, by_definition(c, in), tolerance(place.dtype))
        << at::IntArrayRef(c.num_keys) << " window " << c.window;
    EXPECT_TRUE(gaps_are_untouched(out));
  }
}

TEST_P(AttentionCache, TakesLengthsFromTheDevice) {
  const auto place = GetParam();
  const std::string refusal = refuses_max_keys(place.device, place.dtype, 16, AttentionBackend::kAuto);
  EXPECT_EQ(refusal.empty(), place.device == at::kCPU || place.dtype == at::kBFloat16) << refusal;
  const auto& c = cases()[2];  // one query each
  const auto in = inputs_for(c, place.dtype);
  const auto q = place.put(in.q), k = place.put(in.k), v = place.put(in.v);
  auto want = place.empty(in.q.sizes()), out = place.empty(in.q.sizes());
  attention_cached(q, k, v, in.layout, want);
  const auto on_device = [&](std::vector<int64_t> numbers, std::size_t size) {
    numbers.resize(size);
    return at::tensor(numbers, at::kInt).to(place.device);
  };
  CachedLayout layout = in.layout;
  layout.cu_seqlens_q_device = on_device(layout.cu_seqlens_q, 3);
  layout.key_begin_device = on_device(layout.key_begin, 3);
  layout.num_keys_device = on_device(layout.num_keys, 2);
  layout.key_begin = layout.num_keys = {-1, -1};
  layout.max_keys = 300;
  if (!refusal.empty()) {
    EXPECT_THROW(attention_cached(q, k, v, layout, out), DeviceError);
    return;
  }
  attention_cached(q, k, v, layout, out);
  if (place.device == at::kCPU) {
    EXPECT_TRUE(at::equal(out, want));
  } else {
    EXPECT_CLOSE(out, want, tolerance(place.dtype));
  }
}

TEST_P(AttentionCache, ADocumentHasTheSameBitsWhateverElseIsThere) {
  const auto place = GetParam();
  if (place.dtype == at::kDouble || place.device != at::kCPU) GTEST_SKIP() << "a matter of our kernel for CPUs";
  const Case c{{1, 1, 1, 1}, {700, 37, 256, 1030}, 0, 6, 2, 24};
  const auto in = inputs_for(c, place.dtype);
  const auto q = place.put(in.q), k = place.put(in.k), v = place.put(in.v);
  auto all = place.empty(in.q.sizes());
  attention_cached(q, k, v, in.layout, all);
  for (std::size_t d = 0; d < 4; ++d) {
    const CachedLayout alone{{0, 1}, {in.layout.key_begin[d]}, {in.layout.num_keys[d]}, 0, in.layout.scale};
    auto out = place.empty({1, 6, 24});
    attention_cached(q.narrow(0, static_cast<int64_t>(d), 1), k, v, alone, out);
    EXPECT_TRUE(at::equal(out[0], all[static_cast<int64_t>(d)])) << d;
  }
}

TEST(AttentionCached, ANotANumberStays) {
  const Case c{{1}, {20}, 0, 2, 1, 8};
  auto in = inputs_for(c, at::kFloat);
  in.k[in.layout.key_begin[0] + 4].fill_(std::numeric_limits<double>::quiet_NaN());
  auto out = at::zeros({1, 2, 8});
  attention_cached(in.q.to(at::kFloat), in.k.to(at::kFloat), in.v.to(at::kFloat), in.layout, out);
  EXPECT_TRUE(out.isnan().all().item<bool>());
}

TEST(AttentionCached, RefusesKeysThatAreNotThere) {
  const auto q = at::ones({2, 2, 8}), k = at::ones({9, 2, 8});
  auto out = at::empty_like(q);
  EXPECT_THROW(attention_cached(q, k, k, {{0, 1, 2}, {0, 4}, {4, 6}, 0, 1}, out), ShapeError);  // past the end
  EXPECT_THROW(attention_cached(q, k, k, {{0, 2}, {0}, {1}, 0, 1}, out), ShapeError);     // fewer keys than queries
  EXPECT_THROW(attention_cached(q, k, k, {{0, 1, 2}, {0}, {4}, 0, 1}, out), ShapeError);  // of another document
}

}  // namespace
}  // namespace lora_train::kernels
