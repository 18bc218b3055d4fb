#include "lora_train/kernels/gated_delta/gated_delta.h"

#include <ATen/Parallel.h>

#include <array>
#include <cmath>
#include <functional>

#include "kernels/gated_delta/gated_delta_calls.h"
#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

using Lengths = std::vector<int64_t>;

Sequences in_a_row(const Lengths& lengths, at::Device device) {
  std::vector<int64_t> cu_seqlens = {0};
  for (const int64_t n : lengths) cu_seqlens.push_back(cu_seqlens.back() + n);
  return make_sequences(std::move(cu_seqlens), device);
}

/// Inputs and outputs of a batch at a place; the same values at every place, rounded to its dtype.
struct DeltaCase {
  DeltaCase(const Place& at_place, const GatedDeltaSizes& s, const Lengths& lengths, int64_t past_the_end = 0)
      : place(at_place),
        sizes(s),
        sequences(in_a_row(lengths, at_place.device)),
        N(sequences.cu_seqlens.back() + past_the_end) {
    inputs.qkv = place.put(uniform({N, s.qkv_width()}, 1));
    inputs.a = place.put(uniform({N, s.value_heads}, 2));
    inputs.b = place.put(uniform({N, s.value_heads}, 3).mul(2));
    // Slow decays: fast ones hide what a state carries.
    inputs.a_log = of_heads(uniform({s.value_heads}, 4).add(1).mul(0.99).add(0.02).log());
    inputs.dt_bias = of_heads(uniform({s.value_heads}, 5).mul(0.5).sub(1));
    d_out = place.put(uniform({N, s.value_width()}, 6));
    make_outputs();
  }
  /// In fp64, with the values that rounding left.
  DeltaCase exact() const {
    DeltaCase same = *this;
    same.place = {at::kCPU, at::kDouble};
    for (at::Tensor* t :
         {&same.inputs.qkv, &same.inputs.a, &same.inputs.b, &same.inputs.a_log, &same.inputs.dt_bias, &same.d_out}) {
      *t = f64(*t);
    }
    same.make_outputs();
    return same;
  }
  /// Sequence s alone.
  DeltaCase alone(std::size_t s) const {
    DeltaCase one = *this;
    const int64_t first = sequences.cu_seqlens[s], n = sequences.cu_seqlens[s + 1] - first;
    one.N = n;
    one.sequences = in_a_row({n}, place.device);
    for (at::Tensor* t : {&one.inputs.qkv, &one.inputs.a, &one.inputs.b, &one.d_out}) *t = t->narrow(0, first, n);
    one.make_outputs();
    return one;
  }
  at::Tensor of_heads(const at::Tensor& t) const { return t.to(place.statistic({1}).options()); }
  void make_outputs() {
    out = place.empty({N, sizes.value_width()});
    gradients = {place.empty({N, sizes.qkv_width()}), place.empty({N, sizes.value_heads}),
                 place.empty({N, sizes.value_heads}), place.statistic({sizes.value_heads}),
                 place.statistic({sizes.value_heads})};
    scratch = at::full({N, gated_delta_scratch_width(sizes)}, NAN, inputs.qkv.options());
  }
  void forward() { gated_delta_forward(sizes, inputs, sequences, state, scratch, out); }
  void backward() { gated_delta_backward(sizes, inputs, sequences, d_out, scratch, gradients); }
  DeltaCase& run() {
    forward();
    backward();
    return *this;
  }
  at::Tensor rows_of(const at::Tensor& t, std::size_t s) const {
    return t.narrow(0, sequences.cu_seqlens[s], sequences.cu_seqlens[s + 1] - sequences.cu_seqlens[s]);
  }
  /// Gradients of q, k, v, a, b, A_log and dt_bias.
  std::vector<at::Tensor> parts() const {
    const int64_t keys = sizes.key_width();
    const at::Tensor tokens = gradients.qkv.narrow(0, 0, sequences.cu_seqlens.back());
    return {tokens.narrow(1, 0, keys),
            tokens.narrow(1, keys, keys),
            tokens.narrow(1, 2 * keys, sizes.value_width()),
            gradients.a,
            gradients.b,
            gradients.a_log - 7,
            gradients.dt_bias - 7};
  }
  std::vector<at::Tensor> all_outputs() const {
    return {out, gradients.qkv, gradients.a, gradients.b, gradients.a_log, gradients.dt_bias};
  }

  Place place;
  GatedDeltaSizes sizes;
  Sequences sequences;
  int64_t N;
  GatedDeltaInputs inputs;
  at::Tensor d_out, out, state, scratch;
  GatedDeltaGradients gradients;
};

constexpr std::array kParts = {"q", "k", "v", "a", "b", "A_log", "dt_bias"};
const Lengths kLengths = {0, 1, 2, 63, 64, 65, 150};
const Place kExact{at::kCPU, at::kDouble};
/// Hk = Hv and Hk < Hv, dk and dv that are no whole vectors, those of Qwen3.5.
const std::vector<GatedDeltaSizes> kSizes = {
    {2, 2, 16, 24}, {2, 4, 16, 24}, {1, 3, 7, 5}, {1, 2, 24, 40}, {1, 2, 128, 128}};

/// Token by token and head by head, for autograd: as transformers' torch_recurrent_gated_delta_rule.
at::Tensor by_recurrence(const GatedDeltaSizes& s, const GatedDeltaInputs& in, const Sequences& sequences) {
  const auto norm = [](const at::Tensor& x) { return x * (x.dot(x) + 1e-6).rsqrt(); };
  std::vector<at::Tensor> tokens;
  for (std::size_t i = 0; i + 1 < sequences.cu_seqlens.size(); ++i) {
    std::vector<at::Tensor> states(static_cast<std::size_t>(s.value_heads));
    for (int64_t t = sequences.cu_seqlens[i]; t < sequences.cu_seqlens[i + 1]; ++t) {
      std::vector<at::Tensor> heads;
      for (int64_t h = 0; h < s.value_heads; ++h) {
        const int64_t key = h / (s.value_heads / s.key_heads) * s.key_size;
        const auto part = [&](int64_t begin, int64_t size) { return in.qkv[t].narrow(0, begin, size); };
        const auto q = norm(part(key, s.key_size)) / std::sqrt(static_cast<double>(s.key_size));
        const auto k = norm(part(s.key_width() + key, s.key_size));
        const auto v = part(2 * s.key_width() + h * s.value_size, s.value_size);
        const auto decay = (-in.a_log[h].exp() * (1 + (in.a[t][h] + in.dt_bias[h]).exp()).log()).exp();
        at::Tensor& state = states[static_cast<std::size_t>(h)];
        state = state.defined() ? decay * state : at::zeros({s.key_size, s.value_size}, v.options());
        state = state + k.outer(in.b[t][h].sigmoid() * (v - k.matmul(state)));
        heads.push_back(q.matmul(state));
      }
      tokens.push_back(at::cat(heads));
    }
  }
  return at::stack(tokens);
}

TEST(GatedDeltaReference, MatchesAutogradOfTheRecurrence) {
  for (const GatedDeltaSizes& sizes : {GatedDeltaSizes{2, 4, 6, 5}, {2, 2, 4, 7}}) {
    DeltaCase c(kExact, sizes, {3, 0, 1, 9}, /*past_the_end=*/2);
    const int64_t n = c.sequences.cu_seqlens.back();
    GatedDeltaInputs in = c.inputs;
    for (at::Tensor* t : {&in.qkv, &in.a, &in.b, &in.a_log, &in.dt_bias}) *t = t->clone().requires_grad_();
    const at::Tensor want = by_recurrence(sizes, in, c.sequences);
    want.backward(c.d_out.narrow(0, 0, n));
    c.run();
    EXPECT_CLOSE(c.out.narrow(0, 0, n), want.detach(), 1e-13);
    EXPECT_CLOSE(c.gradients.qkv, in.qkv.grad(), 1e-13);
    EXPECT_CLOSE(c.gradients.a, in.a.grad(), 1e-13);
    EXPECT_CLOSE(c.gradients.b, in.b.grad(), 1e-13);
    EXPECT_CLOSE(c.gradients.a_log - 7, in.a_log.grad(), 1e-13);
    EXPECT_CLOSE(c.gradients.dt_bias - 7, in.dt_bias.grad(), 1e-13);
  }
}

class GatedDelta : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(GatedDelta);

void expect_like_reference(DeltaCase& c) {
  DeltaCase want = c.exact();
  gated_delta_forward_reference(want.sizes, want.inputs, want.sequences, want.state, want.scratch, want.out);
  gated_delta_backward_reference(want.sizes, want.inputs, want.sequences, want.d_out, want.scratch, want.gradients);
  c.run();
  EXPECT_TRUE(rows_are_close(c.out, want.out, tolerance(c.place.dtype)));
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    EXPECT_CLOSE(c.parts()[i], want.parts()[i], tolerance(c.place.dtype)) << kParts[i];
  }
  const int64_t last = c.sequences.cu_seqlens.back();
  for (const at::Tensor& t : {c.out, c.gradients.qkv, c.gradients.a, c.gradients.b}) {
    EXPECT_TRUE(gaps_are_untouched(t));
    EXPECT_TRUE((t.narrow(0, last, c.N - last) == 0).all().item<bool>()) << "past the end";
  }
}

TEST_P(GatedDelta, MatchesReferenceInEverySequence) {
  for (const GatedDeltaSizes& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.key_heads << "/" << s.value_heads << " " << s.key_size << "x"
                                      << s.value_size);
    DeltaCase c(place, s, kLengths, /*past_the_end=*/5);
    expect_like_reference(c);
  }
}

TEST_P(GatedDelta, StrongAndMixedDecaysNeitherOverflowNorLoseTheRest) {
  DeltaCase c(place, {1, 3, 16, 24}, {150, 70});
  c.inputs.a_log.fill_(std::log(16.0));
  c.inputs.a.copy_(uniform({c.N, 3}, 7).mul(30));  // g from 0 to -500 a token, -8000 and more a chunk
  c.inputs.a.narrow(0, 90, 60).fill_(-8);          // what follows a large G decays slowly
  expect_like_reference(c);
}

/// ATen's exp differs with the place of an element in memory, so the reference is not tested here.
class GatedDeltaBits : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(NativePlaces, GatedDeltaBits,
                         ::testing::Values(Place{at::kCPU, at::kFloat}, Place{at::kCPU, at::kBFloat16},
                                           Place{at::kCUDA, at::kFloat}, Place{at::kCUDA, at::kBFloat16},
                                           Place{at::kCPU, at::kFloat, true}, Place{at::kCPU, at::kBFloat16, true}),
                         place_name);

TEST_P(GatedDeltaBits, NoSequenceDependsOnTheOthers) {
  for (const GatedDeltaSizes& s : {GatedDeltaSizes{2, 4, 16, 24}, {1, 1, 128, 128}}) {
    DeltaCase c(place, s, kLengths, /*past_the_end=*/3);
    c.run();
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
      DeltaCase one = c.alone(i);
      one.run();
      EXPECT_TRUE(at::equal(one.out, c.rows_of(c.out, i))) << kLengths[i];
      EXPECT_TRUE(at::equal(one.gradients.qkv, c.rows_of(c.gradients.qkv, i))) << kLengths[i];
      EXPECT_TRUE(at::equal(one.gradients.a, c.rows_of(c.gradients.a, i))) << kLengths[i];
      EXPECT_TRUE(at::equal(one.gradients.b, c.rows_of(c.gradients.b, i))) << kLengths[i];
    }
  }
}

TEST_P(GatedDelta, HasTheSameBitsForEveryNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<std::vector<at::Tensor>> results;
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    DeltaCase c(place, {4, 8, 16, 24}, kLengths);
    results.push_back(c.run().all_outputs());
  }
  at::set_num_threads(before);
  for (std::size_t run = 1; run < results.size(); ++run) {
    for (std::size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(at::equal(results[run][i], results[0][i])) << i;
  }
}

TEST_P(GatedDelta, FrozenDecaysGetNoGradient) {
  DeltaCase c(place, {1, 2, 16, 24}, {70}), frozen = c;
  frozen.make_outputs();
  frozen.gradients.a_log = frozen.gradients.dt_bias = at::Tensor();
  c.run();
  frozen.run();
  EXPECT_TRUE(at::equal(frozen.gradients.qkv, c.gradients.qkv) && at::equal(frozen.gradients.a, c.gradients.a));
}

/// Feeds whole sequences in pieces; `pieces` has the tokens of each pass for each sequence. Returns the outputs.
at::Tensor in_pieces(const DeltaCase& whole, const std::vector<Lengths>& pieces, const std::vector<int64_t>& rows,
                     at::Tensor& state) {
  at::Tensor out = at::zeros_like(whole.out);
  std::vector<int64_t> next(whole.sequences.cu_seqlens.begin(), whole.sequences.cu_seqlens.end() - 1);
  for (const Lengths& lengths : pieces) {
    std::vector<int64_t> tokens;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      for (int64_t i = 0; i < lengths[s]; ++i) tokens.push_back(next[s]++);
    }
    const at::Tensor index = at::tensor(tokens, at::kLong).to(whole.place.device);
    DeltaCase part = whole;
    part.N = std::ssize(tokens);
    part.sequences = in_a_row(lengths, whole.place.device);
    part.sequences.state_rows = at::tensor(rows, at::kLong).to(whole.place.device);
    part.state = state;
    for (at::Tensor* t : {&part.inputs.qkv, &part.inputs.a, &part.inputs.b}) *t = t->index_select(0, index);
    part.make_outputs();
    part.forward();
    out.index_copy_(0, index, part.out);
  }
  return out;
}

at::Tensor states_of(const DeltaCase& c, int64_t rows) {
  return at::zeros({rows, c.sizes.value_heads, c.sizes.key_size, c.sizes.value_size}, c.place.statistic({1}).options());
}

/// States are fp32 everywhere, but our CUDA kernels add products of bf16 matrices to them.
double state_tolerance(const Place& place) {
  const bool has_bf16_products = (place.device == at::kCUDA || place.is_cuda_on_cpu) && place.dtype == at::kBFloat16;
  return has_bf16_products ? tolerance(place.dtype) : std::max(1e-10, tolerance(place.dtype) / 10);
}

TEST_P(GatedDelta, PiecesWithStatesGiveTheWhole) {
  for (const GatedDeltaSizes& s : {GatedDeltaSizes{2, 4, 16, 24}, {1, 3, 7, 5}, {1, 2, 128, 128}}) {
    DeltaCase c(place, s, {150, 70, 6});
    c.forward();
    at::Tensor state = states_of(c, 5);
    state[0].fill_(3);
    const at::Tensor got = in_pieces(
        c, {{64, 1, 0}, {1, 65, 1}, {0, 1, 1}, {1, 1, 1}, {80, 1, 1}, {3, 1, 1}, {1, 0, 1}}, {3, 1, 4}, state);
    EXPECT_CLOSE(got, c.out, tolerance(place.dtype));
    EXPECT_TRUE((state[0] == 3).all().item<bool>() && (state[2] == 0).all().item<bool>()) << "rows of nobody";
    DeltaCase want = c.exact();
    want.sequences.state_rows = at::tensor({3, 1, 4}, at::kLong);
    want.state = states_of(want, 5);
    gated_delta_forward_reference(s, want.inputs, want.sequences, want.state, want.scratch, want.out);
    EXPECT_CLOSE(state.narrow(0, 1, 4), want.state.narrow(0, 1, 4), state_tolerance(place));
  }
}

TEST_P(GatedDeltaBits, ADecodedTokenDoesNotDependOnTheOtherSequences) {
  for (const GatedDeltaSizes& s : {GatedDeltaSizes{2, 4, 16, 24}, {1, 2, 128, 128}}) {
    DeltaCase c(place, s, {1, 1, 1, 1});
    const at::Tensor start = uniform({6, s.value_heads, s.key_size, s.value_size}, 9).to(states_of(c, 1).options());
    at::Tensor state = start.clone();
    const std::vector<int64_t> rows = {4, 0, 5, 2};
    const at::Tensor together = in_pieces(c, {{1, 1, 1, 1}}, rows, state);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      at::Tensor own = start.clone();
      const DeltaCase one = c.alone(i);
      EXPECT_TRUE(at::equal(in_pieces(one, {{1}}, {rows[i]}, own), c.rows_of(together, i)));
      EXPECT_TRUE(at::equal(own[rows[i]], state[rows[i]]));
    }
  }
}

// The code of the CPU in fp64: its formulas are exact for every size of a chunk.
TEST(GatedDeltaInChunks, MatchesTheRecurrenceToRoundingInFp64) {
  const GatedDeltaSizes s{2, 4, 16, 24};
  DeltaCase want(kExact, s, kLengths);
  want.inputs.a_log.copy_(want.inputs.a_log.to(at::kFloat));
  want.inputs.dt_bias.copy_(want.inputs.dt_bias.to(at::kFloat));
  want.run();
  const at::Tensor a_log = want.inputs.a_log.to(at::kFloat), dt_bias = want.inputs.dt_bias.to(at::kFloat);
  const auto rows = [](const at::Tensor& t) { return Rows<double>{t.data_ptr<double>(), t.stride(0)}; };
  const auto read = [&](const at::Tensor& t) { return Rows<const double>{rows(t).data, rows(t).stride}; };
  const GatedDeltaRows<double> inputs{read(want.inputs.qkv), read(want.inputs.a), read(want.inputs.b),
                                      a_log.const_data_ptr<float>(), dt_bias.const_data_ptr<float>()};
  const GatedDeltaSizes shape{s.key_heads, s.value_heads, s.key_size, s.value_size};
  const HostRanges ranges{want.sequences.cu_seqlens.data(), want.sequences.size(), want.N, nullptr};
  for (const int64_t chunk : {16, 32, 64}) {
    DeltaCase got = want;
    got.make_outputs();
    const chunked::ForwardCall<double, double> forward{{shape, inputs, ranges, chunk}, nullptr, rows(got.out)};
    forward.run<AnyMachine<double>>(0, forward.num_tasks());
    EXPECT_CLOSE(got.out, want.out, 1e-12) << chunk;
    std::vector<double> sums(static_cast<std::size_t>(2 * ranges.count * s.value_heads));
    at::Tensor scratch = at::empty({want.N / chunk * s.value_heads * s.key_size * s.value_size}, at::kDouble);
    const chunked::BackwardCall<double, double> backward{
        {shape, inputs, ranges, chunk},
        read(want.d_out),
        scratch.mutable_data_ptr<double>(),
        {rows(got.gradients.qkv), rows(got.gradients.a), rows(got.gradients.b), nullptr, nullptr},
        sums.data()};
    backward.run<AnyMachine<double>>(0, backward.num_tasks());
    for (std::size_t i = 0; i < 5; ++i) EXPECT_CLOSE(got.parts()[i], want.parts()[i], 1e-12) << kParts[i] << chunk;
    const at::Tensor of_heads = at::tensor(sums, at::kDouble).view({ranges.count, s.value_heads, 2}).sum(0);
    EXPECT_CLOSE(of_heads.select(1, 0), want.parts()[5], 1e-12) << chunk;
    EXPECT_CLOSE(of_heads.select(1, 1), want.parts()[6], 1e-12) << chunk;
  }
}

TEST(GatedDelta, TheBackwardOnACpuKeepsTheStateOfEveryChunkButTheFirstInItsOwnPlace) {
  for (const Lengths& lengths : {Lengths{65, 0, 130, 64, 1, 129}, {1, 192, 63}}) {
    DeltaCase c({at::kCPU, at::kFloat}, {1, 2, 7, 9}, lengths);
    c.backward();
    int64_t num_states = 0;
    for (const int64_t n : lengths) num_states += std::max<int64_t>(0, (n - 1) / 64);
    const at::Tensor is_kept = c.scratch.flatten().isfinite();
    const int64_t size = num_states * 2 * 7 * 9;
    EXPECT_TRUE(is_kept.narrow(0, 0, size).all().item<bool>());
    EXPECT_EQ(is_kept.sum().item<int64_t>(), size);
  }
}

TEST(GatedDelta, RefusesOtherShapes) {
  const Place fp32{at::kCPU, at::kFloat};
  const auto refuses = [&](const std::function<void(DeltaCase&)>& change, bool in_forward = true) {
    DeltaCase c(fp32, {2, 4, 8, 8}, {3, 4});
    change(c);
    if (in_forward) {
      EXPECT_THROW(c.forward(), ShapeError);
    }
    EXPECT_THROW(c.backward(), ShapeError);
  };
  refuses([](DeltaCase& c) { c.sizes.key_heads = 3; });
  refuses([](DeltaCase& c) { c.inputs.qkv = c.inputs.qkv.narrow(1, 0, 8); });
  refuses([](DeltaCase& c) { c.inputs.a = c.inputs.a.to(at::kBFloat16); });
  refuses([](DeltaCase& c) { c.inputs.a_log = c.inputs.a_log.to(at::kDouble); });
  refuses([](DeltaCase& c) { c.sequences.cu_seqlens = {0, 4, 3}; });
  refuses([](DeltaCase& c) { c.sequences.cu_seqlens = {0, 8}; });
  refuses([](DeltaCase& c) { c.scratch = c.scratch.narrow(1, 0, 1); });
  refuses([](DeltaCase& c) { c.sequences.state_rows = at::zeros({2}, at::kLong); });  // without a state
  refuses([](DeltaCase& c) { c.gradients.b = c.gradients.a.narrow(1, 0, 1); }, /*in_forward=*/false);
}

}  // namespace
}  // namespace lora_train::kernels
