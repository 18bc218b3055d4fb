#include "lora_train/kernels/gated_norm/gated_norm.h"

#include <array>

#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr double kEpsOfGatedNorm = 1e-4;

class GatedNorm : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(GatedNorm);

struct NormedHeads {
  int64_t N, H, E;
};

// On CUDA a lane takes one pack of a head or several; heads that leave lanes idle (80, 96), odd ones, more than a block
// has groups for; many tokens.
const std::vector<NormedHeads> kNormedHeads = {{1, 1, 1},    {3, 5, 7},   {5, 3, 33},   {67, 4, 64}, {4, 32, 128},
                                               {2, 3, 80},   {2, 2, 96},  {2, 40, 16},  {3, 2, 256}, {2, 3, 580},
                                               {1, 2, 1056}, {700, 2, 8}, {1100, 3, 5}, {0, 2, 8}};

struct GatedNormCase {
  GatedNormCase(const Place& at_place, const NormedHeads& heads)
      : place(at_place),
        shape(heads),
        x(place.put(uniform({heads.N, heads.H * heads.E}, 1))),
        gate(place.put(uniform({heads.N, heads.H * heads.E}, 2) * 4)),
        dy(place.put(uniform({heads.N, heads.H * heads.E}, 3))),
        weight((uniform({heads.E}, 4) + 1.5).to(place.options())),
        y(place.empty(x.sizes())),
        dx(place.empty(x.sizes())),
        d_gate(place.empty(x.sizes())),
        dweight(place.statistic({heads.E})) {}

  void run() {
    gated_norm_forward(x, gate, weight, kEpsOfGatedNorm, y);
    gated_norm_backward(dy, x, gate, weight, kEpsOfGatedNorm, dx, d_gate, dweight);
  }

  Place place;
  NormedHeads shape;
  at::Tensor x, gate, dy, weight, y, dx, d_gate, dweight;
};

// In fp64 this is the reference.
TEST_P(GatedNorm, MatchesAtensAutogradInFp64) {
  for (const NormedHeads& heads : kNormedHeads) {
    if (heads.N == 0 || heads.E == 1) continue;  // of one element the gradient is zero but for eps
    SCOPED_TRACE(::testing::Message() << heads.N << " x " << heads.H << " x " << heads.E);
    GatedNormCase c(place, heads);
    const auto x = f64(c.x).requires_grad_(), gate = f64(c.gate).requires_grad_(), w = f64(c.weight).requires_grad_();
    const auto normed = at::rms_norm(x.unflatten(1, {heads.H, heads.E}), {heads.E}, w, kEpsOfGatedNorm);
    const auto want = normed.flatten(1) * at::silu(gate);
    want.backward(f64(c.dy));
    c.run();
    EXPECT_TRUE(rows_are_close(c.y, want.detach(), tolerance(place.dtype)));
    EXPECT_TRUE(rows_are_close(c.dx, x.grad(), tolerance(place.dtype)));
    EXPECT_TRUE(rows_are_close(c.d_gate, gate.grad(), tolerance(place.dtype)));
    EXPECT_CLOSE(c.dweight - 7, w.grad(), tolerance(place.dtype == at::kBFloat16 ? at::kFloat : place.dtype));
  }
}

TEST_P(GatedNorm, MayWriteInPlaceAndLeaveTheWeightFrozen) {
  for (const NormedHeads& heads : kNormedHeads) {
    GatedNormCase c(place, heads);
    c.run();
    auto y = place.put(c.x), dx = place.put(c.dy), d_gate = place.empty(c.x.sizes());
    auto dweight = place.statistic({heads.E});
    at::Tensor none;
    gated_norm_forward(y, c.gate, c.weight, kEpsOfGatedNorm, y);
    gated_norm_backward(dx, c.x, c.gate, c.weight, kEpsOfGatedNorm, dx, d_gate, dweight);
    EXPECT_TRUE(rows_are_equal(y, c.y) && rows_are_equal(dx, c.dx) && rows_are_equal(d_gate, c.d_gate)) << heads.E;
    EXPECT_TRUE(at::equal(dweight, c.dweight)) << heads.E;
    gated_norm_backward(c.dy, c.x, c.gate, c.weight, kEpsOfGatedNorm, dx, d_gate, none);
    EXPECT_TRUE(at::equal(dx, c.dx) && at::equal(d_gate, c.d_gate)) << heads.E;
  }
}

TEST(GatedNormInBf16, RoundsTwiceBeforeTheGateAsTransformersDoes) {
  GatedNormCase c({at::kCPU, at::kBFloat16}, {9, 3, 129});
  c.x.copy_((uniform({9, 387}, 1) * 8).round() / 8);  // squares whose sum is exact
  c.gate.fill_(64);                                   // whose silu is 64: only the roundings before it show
  c.run();
  const auto heads = c.x.to(at::kFloat).unflatten(1, {3, 129});
  const auto normed = (heads * (heads.square().mean(-1, true) + kEpsOfGatedNorm).rsqrt()).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(c.y, (c.weight * normed).flatten(1) * 64));
}

TEST(GatedNormOnCpu, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<GatedNormCase> runs;
  for (const int threads : {1, 2, 7}) {
    at::set_num_threads(threads);
    runs.emplace_back(Place{at::kCPU, at::kFloat}, NormedHeads{500, 8, 64}).run();
  }
  at::set_num_threads(before);
  for (const GatedNormCase& c : runs) {
    EXPECT_TRUE(at::equal(c.dx, runs[0].dx) && at::equal(c.dweight, runs[0].dweight));
  }
}

TEST(GatedNorm, RefusesWhatDoesNotFit) {
  auto y = at::empty({2, 6});
  const auto x = at::ones({2, 6});
  EXPECT_THROW(gated_norm_forward(x, x, at::ones({4}), 1e-6, y), ShapeError);
  EXPECT_THROW(gated_norm_forward(x, x, at::ones({0}), 1e-6, y), ShapeError);
  EXPECT_THROW(gated_norm_forward(x, at::ones({2, 3}), at::ones({3}), 1e-6, y), ShapeError);
  EXPECT_THROW(gated_norm_forward(x, x.to(at::kBFloat16), at::ones({3}), 1e-6, y), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
