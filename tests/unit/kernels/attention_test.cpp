#include "lora_train/kernels/attention/attention.h"

#include <ATen/ATen.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "support/kernel_test.h"
#include "support/tensors.h"
#include "support/tolerance.h"

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
  at::Tensor out, dq, dk, dv;
};

// Autograd through softmax with the mask above, in fp64.
Gradients by_autograd(const Case& c, const at::Tensor& q0, const at::Tensor& k0, const at::Tensor& v0,
                      const at::Tensor& dout) {
  const auto layout = layout_of(c);
  const auto q = q0.clone().requires_grad_(), k = k0.clone().requires_grad_(), v = v0.clone().requires_grad_();
  std::vector<at::Tensor> outs;
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
    outs.push_back(at::matmul(p, rows(v, layout.cu_seqlens_k, shared)).transpose(0, 1));
  }
  const auto out = at::cat(outs);
  out.backward(dout);
  return {out.detach(), q.grad(), k.grad(), v.grad()};
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

TEST(AttentionReference, MatchesAtenAutogradInFp64) {
  for (const auto& c : cases()) {
    const auto in = inputs_for(c, at::kDouble);
    const auto expected = by_autograd(c, in.q, in.k, in.v, in.dout);
    auto out = at::full_like(in.q, 7), lse = at::full({in.q.size(0), c.heads}, 7, at::kDouble);
    AttentionGradients d{at::full_like(in.q, 7), at::full_like(in.k, 7), at::full_like(in.v, 7)};
    attention_forward_reference(in.q, in.k, in.v, layout_of(c), out, lse);
    attention_backward_reference(in.dout, in.q, in.k, in.v, out, lse, layout_of(c), d);
    EXPECT_CLOSE(out, expected.out, 1e-12) << describe(c);
    EXPECT_CLOSE(d.v, expected.dv, 1e-12) << describe(c);
    if (c.head_size > 0 && in.q.size(0) > 1 && c.window != 1) {  // one visible key: no gradient reaches q and k
      EXPECT_CLOSE(d.q, expected.dq, 1e-12) << describe(c);
      EXPECT_CLOSE(d.k, expected.dk, 1e-12) << describe(c);
    }
  }
}

TEST(AttentionReference, GradientMatchesCentralDifferences) {
  const Case c{{3, 2}, {5, 2}, 3, 4, 2, 3};
  const auto in = inputs_for(c, at::kDouble);
  auto out = at::empty_like(in.q), lse = at::empty({in.q.size(0), c.heads}, at::kDouble);
  const auto loss = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    attention_forward_reference(q, k, v, layout_of(c), out, lse);
    return (out * in.dout).sum().item<double>();
  };
  const auto dq_expected = central_differences([&](const at::Tensor& q) { return loss(q, in.k, in.v); }, in.q);
  const auto dk_expected = central_differences([&](const at::Tensor& k) { return loss(in.q, k, in.v); }, in.k);
  const auto dv_expected = central_differences([&](const at::Tensor& v) { return loss(in.q, in.k, v); }, in.v);
  loss(in.q, in.k, in.v);
  AttentionGradients d{at::empty_like(in.q), at::empty_like(in.k), at::empty_like(in.v)};
  attention_backward_reference(in.dout, in.q, in.k, in.v, out, lse, layout_of(c), d);
  EXPECT_CLOSE(d.q, dq_expected, kDifferenceTolerance);
  EXPECT_CLOSE(d.k, dk_expected, kDifferenceTolerance);
  EXPECT_CLOSE(d.v, dv_expected, kDifferenceTolerance);
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

void expect_reference(const Place& place, const Case& c, AttentionBackend backend) {
  const auto in = inputs_for(c, place.dtype);
  auto layout = layout_of(c);
  layout.backend = backend;
  auto want_out = at::empty_like(in.q), want_lse = at::empty({in.q.size(0), c.heads}, at::kDouble);
  AttentionGradients want{at::empty_like(in.q), at::empty_like(in.k), at::empty_like(in.v)};
  attention_forward_reference(in.q, in.k, in.v, layout, want_out, want_lse);
  attention_backward_reference(in.dout, in.q, in.k, in.v, want_out, want_lse, layout, want);
  const auto q = place.put(in.q), k = place.put(in.k), v = place.put(in.v), dout = place.put(in.dout);
  auto out = place.empty(in.q.sizes()), lse = place.statistic({in.q.size(0), c.heads});
  const AttentionGradients given{place.empty(in.q.sizes()), place.empty(in.k.sizes()), place.empty(in.v.sizes())};
  AttentionGradients d = given;
  attention_forward(q, k, v, layout, out, lse);
  attention_backward(dout, q, k, v, out, lse, layout, d);
  // ATen's kernel rounds probabilities and their gradients to bf16: 0.01001 seen in dq of 9 queries on 4 keys.
  const double limit = place.dtype == at::kBFloat16 ? 1.5 * tolerance(place.dtype) : tolerance(place.dtype);
  EXPECT_CLOSE(out, want_out, limit);
  EXPECT_CLOSE(lse.nan_to_num(0, 0, 0), want_lse.nan_to_num(0, 0, 0), limit);
  EXPECT_TRUE(at::equal(lse.cpu().isinf(), want_lse.isinf()));
  EXPECT_CLOSE(d.v, want.v, limit);
  if (in.q.size(0) > 1 && c.window != 1) {  // one visible key: no gradient reaches q and k
    EXPECT_CLOSE(d.q, want.q, limit);
    EXPECT_CLOSE(d.k, want.k, limit);
  }
  for (const auto& written : {out, given.q, given.k, given.v}) {
    EXPECT_TRUE(gaps_are_untouched(written));
  }
}

TEST_P(Attention, MatchesReferenceForwardAndBackward) {
  for (const auto& c : cases()) {
    for (const auto backend : backends_for(GetParam(), c)) {
      SCOPED_TRACE(describe(c) + " backend " + std::to_string(static_cast<int>(backend)));
      expect_reference(GetParam(), c, backend);
    }
  }
}

TEST_P(Attention, LseMayBeATransposedView) {
  const auto place = GetParam();
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

TEST_P(Attention, LeavesSlotsPastTheLastDocumentAlone) {
  const auto place = GetParam();
  const auto q = place.put(uniform({6, 2, 8}, 1));
  auto out = place.empty({6, 2, 8}), lse = place.statistic({6, 2});
  attention_forward(q, q, q, {{0, 4}, {0, 4}, 0, 0.35}, out, lse);
  EXPECT_TRUE((out.slice(0, 4, 6) == 7).all().item<bool>());
  EXPECT_FALSE((out.slice(0, 0, 4) == 7).any().item<bool>());
}

TEST_P(Attention, GradientsEndWithTheLastDocumentOrStayAsTheyWereThere) {
  const auto place = GetParam();
  const auto q = place.put(uniform({6, 2, 8}, 1));
  auto out = place.empty({6, 2, 8}), lse = place.statistic({6, 2});
  AttentionGradients d{place.empty({6, 2, 8}), place.empty({6, 2, 8}), place.empty({6, 2, 8})};
  const AttentionLayout layout{{0, 4}, {0, 4}, 0, 0.35};
  attention_forward(q, q, q, layout, out, lse);
  attention_backward(q, q, q, q, out, lse, layout, d);
  for (const auto& gradient : {d.q, d.k, d.v}) {
    EXPECT_FALSE((gradient.slice(0, 0, 4) == 7).any().item<bool>());
    EXPECT_TRUE(gradient.size(0) == 4 || (gradient.slice(0, 4, 6) == 7).all().item<bool>());
  }
}

TEST(Attention, GivesTheSameBitsTwice) {
  const Case c{{200, 57}, {200, 57}, 64, 4, 2, 16};
  const auto in = inputs_for(c, at::kBFloat16);
  const auto run = [&] {
    const auto q = in.q.to(at::kBFloat16), k = in.k.to(at::kBFloat16), v = in.v.to(at::kBFloat16);
    auto out = at::empty_like(q), lse = at::empty({q.size(0), c.heads});
    AttentionGradients d{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
    attention_forward(q, k, v, layout_of(c), out, lse);
    attention_backward(in.dout.to(at::kBFloat16), q, k, v, out, lse, layout_of(c), d);
    return at::cat({out.flatten(), d.q.flatten(), d.k.flatten(), d.v.flatten()});
  };
  EXPECT_TRUE(at::equal(run(), run()));
}

TEST(Attention, RefusesHeadsThatCannotShare) {
  const auto q = at::ones({2, 3, 8}), k = at::ones({2, 2, 8});
  auto out = at::empty_like(q), lse = at::empty({2, 3});
  EXPECT_THROW(attention_forward(q, k, k, {{0, 2}, {0, 2}, 0, 1}, out, lse), ShapeError);
  EXPECT_THROW(attention_forward(q, q, q, {{0, 3}, {0, 3}, 0, 1}, out, lse), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
