#include "lora_train/kernels/attention/attention.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "lora_train/kernels/attention/attention_cache.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

struct Case {
  std::vector<int64_t> len_q, len_k;
  int64_t window, heads, kv_heads, head_size;
};

std::vector<int64_t> cumulated(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> cu = {0};
  for (const auto length : lengths) cu.push_back(cu.back() + length);
  return cu;
}

AttentionLayout layout_of(const Case& c) {
  return {cumulated(c.len_q), cumulated(c.len_k), c.window, 1 / std::sqrt(static_cast<double>(c.head_size))};
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{1}, {1}, 0, 1, 1, 8},
      {{37}, {37}, 0, 5, 1, 8},                                         // one kv head for five
      {{5, 1, 0, 33, 2, 0, 64}, {5, 1, 0, 33, 2, 0, 64}, 0, 4, 2, 16},  // many documents, empty ones between
      {{7, 5, 1}, {19, 5, 40}, 0, 6, 2, 8},                             // len_q < len_k: bottom-right aligned
      {{9, 3}, {4, 3}, 0, 2, 2, 8},                                     // len_q > len_k: early queries see nothing
      {{4, 6}, {0, 6}, 0, 2, 1, 8},                                     // no key at all
      {{20, 16}, {20, 16}, 15, 3, 3, 8},                                // window one below, at and one above a length
      {{20, 16}, {20, 16}, 16, 3, 3, 8},
      {{20, 16}, {20, 16}, 17, 4, 1, 8},
      {{13}, {29}, 6, 4, 2, 8},               // window and len_q < len_k
      {{31}, {31}, 1, 2, 1, 8},               // itself only
      {{301, 150}, {301, 150}, 70, 4, 4, 8},  // several query blocks
      {{300}, {431}, 129, 3, 1, 8},
      {{1100}, {1103}, 0, 1, 1, 8},               // more than one block without a window
      {{70, 0, 130}, {70, 0, 130}, 0, 7, 1, 64},  // head sizes of models
      {{70, 0, 130}, {70, 0, 130}, 48, 4, 1, 128},
  };
  return all;
}

// [L, S], by the definition in the header, element by element.
at::Tensor visible(int64_t len_q, int64_t len_k, int64_t window) {
  auto mask = at::zeros({len_q, len_k}, at::kBool);
  auto access = mask.accessor<bool, 2>();
  for (int64_t i = 0; i < len_q; ++i) {
    const int64_t own = i + len_k - len_q;
    for (int64_t j = 0; j < len_k; ++j) {
      access[i][j] = j <= own && (window == 0 || j > own - window);
    }
  }
  return mask;
}

struct Gradients {
  at::Tensor out, lse, dq, dk, dv;
};

// Autograd through softmax with the mask above, in fp64.
Gradients by_autograd(const Case& c, const at::Tensor& q0, const at::Tensor& k0, const at::Tensor& v0,
                      const at::Tensor& dout) {
  const auto layout = layout_of(c);
  const auto q = q0.clone().requires_grad_(), k = k0.clone().requires_grad_(), v = v0.clone().requires_grad_();
  std::vector<at::Tensor> outs, lses;
  for (std::size_t d = 0; d < c.len_q.size(); ++d) {
    const auto rows = [&](const at::Tensor& t, const std::vector<int64_t>& cu, int64_t repeat) {
      return t.slice(0, cu[d], cu[d + 1]).transpose(0, 1).repeat_interleave(repeat, 0);
    };
    const auto shared = c.heads / c.kv_heads;
    const auto mask = visible(c.len_q[d], c.len_k[d], c.window);
    const auto scores =
        at::matmul(rows(q, layout.cu_seqlens_q, 1), rows(k, layout.cu_seqlens_k, shared).transpose(1, 2));
    const auto e = (scores * layout.scale).exp() * mask;
    const auto p = e / (e.sum(-1, true) + mask.any(-1, true).logical_not());
    lses.push_back(e.sum(-1).log().t());
    outs.push_back(at::matmul(p, rows(v, layout.cu_seqlens_k, shared)).transpose(0, 1));
  }
  const auto out = at::cat(outs);
  out.backward(dout);
  return {out.detach(), at::cat(lses).detach(), q.grad(), k.grad(), v.grad()};
}

struct Inputs {
  at::Tensor q, k, v, dout;
};

Inputs inputs_for(const Case& c, at::ScalarType rounding) {
  const int64_t Nq = layout_of(c).cu_seqlens_q.back(), Nk = layout_of(c).cu_seqlens_k.back();
  const auto make = [&](int64_t n, int64_t heads, std::uint64_t seed) {
    return (uniform({n, heads, c.head_size}, seed) * 2).to(rounding).to(at::kDouble);
  };
  return {make(Nq, c.heads, 1), make(Nk, c.kv_heads, 2), make(Nk, c.kv_heads, 3), make(Nq, c.heads, 4)};
}

std::string describe(const Case& c) {
  return (std::ostringstream() << "len_q " << at::IntArrayRef(c.len_q) << " len_k " << at::IntArrayRef(c.len_k)
                               << " window " << c.window << " heads " << c.heads << "/" << c.kv_heads)
      .str();
}

class Attention : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(Attention);

/// On CUDA every backend that takes the case, so that one of them cannot hide behind another.
std::vector<AttentionBackend> backends_for(const Place& place, const Case& c) {
  std::vector<AttentionBackend> backends = {AttentionBackend::kAuto};
  if (place.device != at::kCUDA) return backends;
  for (const auto asked : {AttentionBackend::kFa2, AttentionBackend::kCudnn, AttentionBackend::kEfficient}) {
    AttentionCase what;
    what.requested = asked;
    what.dtype = place.dtype;
    what.head_size = c.head_size;
    what.sm = cuda_compute_capability();
    if (choose_attention(what).refusal.empty()) backends.push_back(asked);
  }
  return backends;
}

void expect_autograd(const Place& place, const Case& c, AttentionBackend backend) {
  const auto in = inputs_for(c, place.dtype);
  auto layout = layout_of(c);
  layout.backend = backend;
  const Gradients want = by_autograd(c, in.q, in.k, in.v, in.dout);
  const auto q = place.put(in.q), k = place.put(in.k), v = place.put(in.v), dout = place.put(in.dout);
  auto out = place.empty(in.q.sizes()), lse = place.statistic({in.q.size(0), c.heads});
  const AttentionGradients given{place.empty(in.q.sizes()), place.empty(in.k.sizes()), place.empty(in.v.sizes())};
  AttentionGradients d = given;
  attention_forward(q, k, v, layout, out, lse);
  attention_backward(dout, q, k, v, out, lse, layout, d);
  // ATen's kernel rounds probabilities and their gradients to bf16: 0.01001 seen in dq of 9 queries on 4 keys.
  const double limit = place.dtype == at::kBFloat16 ? 1.5 * tolerance(place.dtype) : tolerance(place.dtype);
  EXPECT_CLOSE(out, want.out, limit);
  EXPECT_CLOSE(lse.nan_to_num(0, 0, 0), want.lse.nan_to_num(0, 0, 0), limit);
  EXPECT_TRUE(at::equal(lse.cpu().isinf(), want.lse.isinf()));
  EXPECT_CLOSE(d.v, want.dv, limit);
  if (in.q.size(0) > 1 && c.window != 1) {  // one visible key: no gradient reaches q and k
    EXPECT_CLOSE(d.q, want.dq, limit);
    EXPECT_CLOSE(d.k, want.dk, limit);
  }
  for (const auto& written : {out, given.q, given.k, given.v}) EXPECT_TRUE(gaps_are_untouched(written));
}

// In fp64 this is the reference.
TEST_P(Attention, MatchesAutogradForwardAndBackward) {
  for (const auto& c : cases()) {
    for (const auto backend : backends_for(place, c)) {
      SCOPED_TRACE(describe(c) + " backend " + std::to_string(static_cast<int>(backend)));
      expect_autograd(place, c, backend);
    }
  }
}

// What processors without AVX-512 run.
TEST(Attention, BelowAvx512TheCpuTakesAtensKernel) {
  const BelowAvx512 older_cpu;
  for (const auto& c : cases()) {
    SCOPED_TRACE(describe(c));
    expect_autograd({at::kCPU, at::kFloat}, c, AttentionBackend::kAuto);
    expect_autograd({at::kCPU, at::kBFloat16}, c, AttentionBackend::kAuto);
  }
}

TEST_P(Attention, LseMayBeATransposedView) {
  const auto q = place.put(uniform({9, 4, 16}, 1)), k = place.put(uniform({9, 2, 16}, 2));
  const auto v = place.put(uniform({9, 2, 16}, 3));
  const AttentionLayout layout{{0, 2, 9}, {0, 2, 9}, 0, 0.25};
  std::vector<at::Tensor> results;
  for (const bool transposed : {false, true}) {
    auto out = place.empty({9, 4, 16}), lse = transposed ? place.statistic({4, 9}).t() : place.statistic({9, 4});
    AttentionGradients d{place.empty({9, 4, 16}), place.empty({9, 2, 16}), place.empty({9, 2, 16})};
    attention_forward(q, k, v, layout, out, lse);
    attention_backward(q, q, k, v, out, lse, layout, d);
    results.push_back(
        at::cat({out.flatten(), lse.flatten().to(out.dtype()), d.q.flatten(), d.k.flatten(), d.v.flatten()}));
  }
  // dq of FlashAttention 2 is summed by atomics.
  EXPECT_CLOSE(results[0], results[1], place.device == at::kCPU ? 0.0 : tolerance(place.dtype));
}

TEST_P(Attention, LeavesWhatIsPastTheLastDocumentAlone) {
  const auto q = place.put(uniform({6, 2, 8}, 1));
  auto out = place.empty({6, 2, 8}), lse = place.statistic({6, 2});
  AttentionGradients d{place.empty({6, 2, 8}), place.empty({6, 2, 8}), place.empty({6, 2, 8})};
  const AttentionLayout layout{{0, 4}, {0, 4}, 0, 0.35};
  attention_forward(q, q, q, layout, out, lse);
  attention_backward(q, q, q, q, out, lse, layout, d);
  EXPECT_EQ(out.size(0), 6);
  for (const auto& written : {out, d.q, d.k, d.v}) {
    EXPECT_FALSE((written.slice(0, 0, 4) == 7).any().item<bool>());
    EXPECT_TRUE(written.size(0) == 4 || (written.slice(0, 4, 6) == 7).all().item<bool>());
  }
}

/// Gradients on the CPU in `dtype`.
Gradients on_cpu(const Case& c, const Inputs& in, at::ScalarType dtype) {
  const Place place{at::kCPU, dtype};
  const auto q = place.put(in.q), k = place.put(in.k), v = place.put(in.v);
  auto out = place.empty(q.sizes()), lse = place.statistic({q.size(0), c.heads});
  AttentionGradients d{place.empty(q.sizes()), place.empty(k.sizes()), place.empty(v.sizes())};
  attention_forward(q, k, v, layout_of(c), out, lse);
  attention_backward(place.put(in.dout), q, k, v, out, lse, layout_of(c), d);
  return {out, lse, d.q, d.k, d.v};
}

/// Lengths around the blocks of rows (64), of keys (256 and 512) and steps of keys (32).
const std::vector<Case>& block_cases() {
  const std::vector<int64_t> lengths = {1, 2, 63, 64, 65, 127, 200, 513};
  static const std::vector<Case> all = {
      {lengths, lengths, 0, 3, 3, 64},
      {lengths, lengths, 0, 3, 1, 128},
      {lengths, lengths, 1, 2, 2, 16},
      {lengths, lengths, 5, 3, 1, 80},
      {lengths, lengths, 64, 7, 1, 64},
      {lengths, lengths, 100, 2, 2, 256},
      {{63, 200, 1, 0}, {200, 513, 65, 9}, 0, 6, 2, 80},
      {{63, 200, 1}, {200, 900, 600}, 100, 7, 1, 64},
      {{200, 65, 3}, {63, 64, 0}, 0, 7, 1, 64},
      {{200, 127}, {513, 64}, 100, 3, 1, 128},
      {{1100}, {1100}, 0, 2, 1, 32},  // two tasks forward, two parts backward
  };
  return all;
}

TEST(Attention, MatchesAutogradAroundTheBlocksOfTheCpu) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& c : block_cases()) {
      const auto in = inputs_for(c, dtype);
      const Gradients want = by_autograd(c, in.q, in.k, in.v, in.dout), got = on_cpu(c, in, dtype);
      const auto expect_close = [&](const at::Tensor& g, const at::Tensor& w, const std::vector<int64_t>& cu) {
        const auto worst = worst_document(g.to(at::kDouble), w, cu);
        EXPECT_LT(worst.error, tolerance(dtype)) << "document " << worst.document;
      };
      SCOPED_TRACE(describe(c) + " head size " + std::to_string(c.head_size) + " " + c10::toString(dtype));
      const auto layout = layout_of(c);
      expect_close(got.out, want.out, layout.cu_seqlens_q);
      expect_close(got.lse.nan_to_num(0, 0, 0), want.lse.nan_to_num(0, 0, 0), layout.cu_seqlens_q);
      EXPECT_TRUE(at::equal(got.lse.isinf(), want.lse.isinf()));
      expect_close(got.dv, want.dv, layout.cu_seqlens_k);
      if (c.window == 1) continue;  // one visible key: no gradient reaches q and k
      expect_close(got.dq, want.dq, layout.cu_seqlens_q);
      expect_close(got.dk, want.dk, layout.cu_seqlens_k);
    }
  }
}

// With more than one thread, the backward gives the parts of the first document to several.
TEST(Attention, BitsDependOnNeitherThreadsNorOtherDocuments) {
  const Case all{{1100, 57, 300}, {1100, 57, 300}, 0, 4, 1, 64}, alone{{1100}, {1100}, 0, 4, 1, 64};
  const int threads = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto in = inputs_for(all, dtype);
    const auto first = [](const at::Tensor& t) { return t.narrow(0, 0, 1100); };
    const auto run = [&](const Case& c, const Inputs& inputs) {
      const Gradients g = on_cpu(c, inputs, dtype);
      return std::vector<at::Tensor>{g.out, g.lse, g.dq, g.dk, g.dv};
    };
    at::set_num_threads(1);
    const auto want = run(all, in);
    for (const int count : {2, 3}) {
      at::set_num_threads(count);
      const auto got = run(all, in), got_alone = run(alone, {first(in.q), first(in.k), first(in.v), first(in.dout)});
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i])) << count << " threads, result " << i;
        EXPECT_TRUE(at::equal(got_alone[i], first(want[i]))) << count << " threads, result " << i << ", alone";
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(Attention, ANotANumberStaysWhereItIs) {
  const Case c{{600}, {600}, 0, 2, 1, 64};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    auto in = inputs_for(c, dtype);
    in.q[70][1].fill_(std::numeric_limits<double>::quiet_NaN());
    const Gradients got = on_cpu(c, in, dtype);
    EXPECT_TRUE(got.out[70][1].isnan().all().item<bool>() && got.dq[70][1].isnan().all().item<bool>());
    EXPECT_TRUE(got.lse[70][1].isnan().item<bool>());
    EXPECT_EQ(got.out.isnan().sum().item<int64_t>(), c.head_size);
  }
}

TEST(Attention, RefusesHeadsThatCannotShare) {
  const auto q = at::ones({2, 3, 8}), k = at::ones({2, 2, 8});
  auto out = at::empty_like(q), lse = at::empty({2, 3});
  EXPECT_THROW(attention_forward(q, k, k, {{0, 2}, {0, 2}, 0, 1}, out, lse), ShapeError);
  EXPECT_THROW(attention_forward(q, q, q, {{0, 3}, {0, 3}, 0, 1}, out, lse), ShapeError);
}

// S tokens of the cache, H heads, K kv heads, E head size.
struct CachedCase {
  std::vector<int64_t> num_queries, num_keys;
  int64_t window, heads, kv_heads, head_size;
};

const std::vector<CachedCase>& cached_cases() {
  static const std::vector<CachedCase> all = {
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
CachedLayout layout_of(const CachedCase& c) {
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

at::Tensor cache_of(const CachedLayout& layout, const CachedCase& c, std::uint64_t seed, at::ScalarType rounding) {
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

struct CachedInputs {
  CachedLayout layout;
  at::Tensor q, k, v;  ///< fp64
};

CachedInputs inputs_for(const CachedCase& c, at::ScalarType rounding) {
  CachedInputs in{layout_of(c), {}, {}, {}};
  in.q = (uniform({in.layout.cu_seqlens_q.back(), c.heads, c.head_size}, 1) * 3).to(rounding).to(at::kDouble);
  in.k = cache_of(in.layout, c, 2, rounding);
  in.v = cache_of(in.layout, c, 3, rounding);
  return in;
}

/// What documents give whose keys lie one after the other, in fp64.
at::Tensor uncached(const CachedCase& c, const CachedInputs& in) {
  const auto keys_of_documents = [&](const at::Tensor& cache) {
    std::vector<at::Tensor> keys;
    for (std::size_t d = 0; d < in.layout.num_docs(); ++d)
      keys.push_back(cache.narrow(0, in.layout.key_begin[d], c.num_keys[d]));
    return at::cat(keys);
  };
  const AttentionLayout layout{in.layout.cu_seqlens_q, cumulated(c.num_keys), c.window, in.layout.scale};
  auto out = at::empty_like(in.q), lse = at::empty({in.q.size(0), c.heads}, at::kDouble);
  attention_forward_reference(in.q, keys_of_documents(in.k), keys_of_documents(in.v), layout, out, lse);
  return out;
}

class AttentionCache : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(AttentionCache);

TEST_P(AttentionCache, MatchesAttentionWithoutACache) {
  for (const auto& c : cached_cases()) {
    const auto in = inputs_for(c, place.dtype);
    auto out = place.empty(in.q.sizes());
    attention_cached(place.put(in.q), place.put(in.k), place.put(in.v), in.layout, out);
    EXPECT_TRUE(rows_are_close(out, uncached(c, in), tolerance(place.dtype)))
        << at::IntArrayRef(c.num_keys) << " window " << c.window;
  }
}

TEST_P(AttentionCache, TakesLengthsFromTheDevice) {
  const std::string refusal = refuses_max_keys(place.device, place.dtype, 16, AttentionBackend::kAuto);
  EXPECT_EQ(refusal.empty(), place.device == at::kCPU || place.dtype == at::kBFloat16) << refusal;
  const auto& c = cached_cases()[2];  // one query each
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
  if (place.dtype == at::kDouble || place.device != at::kCPU) GTEST_SKIP() << "a matter of our kernel for CPUs";
  const CachedCase c{{1, 1, 1, 1}, {700, 37, 256, 1030}, 0, 6, 2, 24};
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
  const CachedCase c{{1}, {20}, 0, 2, 1, 8};
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
