#include "lora_train/kernels/causal_conv/causal_conv.h"

#include <array>
#include <functional>
#include <numeric>

#include "support/kernel_test.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

using Lengths = std::vector<int64_t>;

std::vector<int64_t> conv_starts(const Lengths& lengths) {
  std::vector<int64_t> cu(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), cu.begin() + 1);
  return cu;
}

TEST(Sequences, ListTheirChunksWithRoomForMore) {
  const auto numbers = [](const at::Tensor& t) {
    return std::vector<int>(t.const_data_ptr<int>(), t.const_data_ptr<int>() + t.numel());
  };
  const Sequences some = make_sequences(conv_starts({0, 1, 64, 0, 65, 150}), at::kCPU);
  EXPECT_EQ(some.size(), 6);
  EXPECT_EQ(numbers(some.cu_seqlens_device), (std::vector<int>{0, 0, 1, 65, 65, 130, 280}));
  EXPECT_EQ(numbers(some.cu_chunks), (std::vector<int>{0, 0, 1, 2, 2, 4, 7}));
  EXPECT_EQ(numbers(some.chunk_sequence), (std::vector<int>{1, 2, 4, 4, 5, 5, 5}));
  EXPECT_FALSE(some.state_rows.defined());
  EXPECT_EQ(numbers(make_sequences({0, 128, 129}, at::kCPU).chunk_sequence), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(make_sequences({0}, at::kCPU).chunk_sequence.numel(), 0);
  std::vector<std::int32_t> cu_chunks(3), with_room(5), too_short(2);
  list_chunks(std::vector<std::int32_t>{0, 128, 129}, cu_chunks, with_room);
  EXPECT_EQ(with_room, (std::vector<std::int32_t>{0, 0, 1, -1, -1}));
  EXPECT_THROW(list_chunks(std::vector<std::int32_t>{0, 128, 129}, cu_chunks, too_short), ShapeError);
}

class CausalConv : public KernelTest {};
LORA_TRAIN_EVERY_PLACE(CausalConv);

const Lengths kConvLengths = {1, 0, 150, 2, 3, 64, 4, 63, 65, 0};
constexpr int64_t kPast = 5;  // tokens of no sequence

/// Several sequences at a place, and tokens past them.
struct ConvCase {
  ConvCase(const Place& at_place, int64_t C, int64_t T, const Lengths& lengths = kConvLengths)
      : place(at_place),
        sequences(make_sequences(conv_starts(lengths), at_place.device)),
        num_tokens(sequences.cu_seqlens.back() + kPast),
        x(place.put(uniform({num_tokens, C}, 1) * 2)),
        dy(place.put(uniform({num_tokens, C}, 3))),
        weight((uniform({C, T}, 2) * 1.5).to(place.options())),
        y(place.empty({num_tokens, C})),
        dx(place.empty({num_tokens, C})),
        dweight(place.statistic({C, T})) {}

  void run() {
    at::Tensor none;
    causal_conv_forward(x, weight, sequences, none, y);
    causal_conv_backward(dy, x, weight, sequences, dx, dweight);
  }

  Place place;
  Sequences sequences;
  int64_t num_tokens;
  at::Tensor x, dy, weight, y, dx, dweight;
};

/// The definition, element by element.
at::Tensor convolved(const at::Tensor& x, const at::Tensor& weight, const std::vector<int64_t>& cu) {
  const int64_t C = x.size(1), T = weight.size(1);
  at::Tensor sums = at::zeros(x.sizes(), at::kDouble);
  const auto *const from = x.const_data_ptr<double>(), *const w = weight.const_data_ptr<double>();
  auto* const to = sums.mutable_data_ptr<double>();
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    for (int64_t n = cu[s]; n < cu[s + 1]; ++n) {
      for (int64_t j = std::max<int64_t>(0, T - 1 - (n - cu[s])); j < T; ++j) {
        for (int64_t c = 0; c < C; ++c) to[n * C + c] += w[c * T + j] * from[(n - T + 1 + j) * C + c];
      }
    }
  }
  return sums;
}

TEST(CausalConvReference, IsTheDefinitionAndItsCentralDifferences) {
  const Place exact{at::kCPU, at::kDouble};
  for (const int64_t T : {1, 3, 4, 8}) {
    SCOPED_TRACE(T);
    ConvCase c(exact, 3, T, {2, 0, 7, 1, 4});
    const auto x = c.x.contiguous(), dy = c.dy.contiguous();
    at::Tensor none, dx = at::empty_like(x);
    const auto silu = [&](const at::Tensor& values, const at::Tensor& weight) {
      return at::silu(convolved(values, weight, c.sequences.cu_seqlens));
    };
    causal_conv_forward_reference(x, c.weight, c.sequences, none, c.y);
    EXPECT_CLOSE(c.y, silu(x, c.weight), 1e-14);
    causal_conv_backward_reference(dy, x, c.weight, c.sequences, dx, c.dweight);
    const auto of_x = [&](const at::Tensor& values) { return (silu(values, c.weight) * dy).sum().item<double>(); };
    const auto of_weight = [&](const at::Tensor& values) { return (silu(x, values) * dy).sum().item<double>(); };
    EXPECT_CLOSE(dx, central_differences(of_x, x), kDifferenceTolerance);
    EXPECT_CLOSE(c.dweight - 7, central_differences(of_weight, c.weight), kDifferenceTolerance);
  }
}

// Odd numbers of channels, several blocks of them; filters that a kernel is compiled for and shorter ones.
const std::vector<std::array<int64_t, 2>> kFilters = {{1, 4},  {7, 4},  {64, 4}, {33, 1},
                                                      {40, 2}, {24, 8}, {9, 5},  {1100, 4}};

void expect_reference(ConvCase& c) {
  const Place exact{at::kCPU, at::kDouble};
  ConvCase want(exact, 1, 1, {});
  want.sequences = c.sequences;
  want.x = f64(c.x);
  want.dy = f64(c.dy);
  want.weight = f64(c.weight);
  want.y = at::empty_like(want.x);
  want.dx = at::empty_like(want.x);
  want.dweight = at::zeros_like(want.weight);
  at::Tensor none;
  causal_conv_forward_reference(want.x, want.weight, want.sequences, none, want.y);
  causal_conv_backward_reference(want.dy, want.x, want.weight, want.sequences, want.dx, want.dweight);
  c.run();
  const double limit = c.place.dtype == at::kFloat ? kTightFloatTolerance : tolerance(c.place.dtype);
  EXPECT_TRUE(rows_are_close(c.y, want.y, limit));
  EXPECT_TRUE(rows_are_close(c.dx, want.dx, limit));
  EXPECT_CLOSE(c.dweight - 7, want.dweight, tolerance(c.place.dtype == at::kBFloat16 ? at::kFloat : c.place.dtype));
  for (const at::Tensor& t : {c.y, c.dx}) {
    EXPECT_TRUE((t.narrow(0, c.num_tokens - kPast, kPast) == 0).all().item<bool>()) << "past the last sequence";
  }
}

TEST_P(CausalConv, MatchesReferenceOverSequencesOfAllLengths) {
  for (const auto& [C, T] : kFilters) {
    SCOPED_TRACE(::testing::Message() << C << " channels, " << T << " taps");
    ConvCase c(place, C, T);
    expect_reference(c);
  }
}

TEST_P(CausalConv, MatchesReferenceWhereRunsAreLong) {
  for (const int64_t C : {8, 3}) {
    ConvCase c(place, C, 4, {700, 1, 1347, 2, 33});
    expect_reference(c);
  }
}

TEST_P(CausalConv, AFrozenFilterGetsNoGradient) {
  ConvCase c(place, 24, 4), frozen(place, 24, 4);
  frozen.dweight = at::Tensor();
  c.run();
  frozen.run();
  EXPECT_TRUE(rows_are_equal(frozen.dx, c.dx));
}

TEST_P(CausalConv, NothingAtAll) {
  ConvCase c(place, 8, 4, {0, 0});
  c.x = c.dy = place.put(at::zeros({0, 8}));
  c.y = c.dx = at::zeros({0, 8}, place.options());
  c.run();
  EXPECT_TRUE((c.dweight == 7).all().item<bool>());
}

TEST(CausalConvOnCpu, APackedSequenceHasTheBitsOfItAlone) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [C, T] : kFilters) {
      const Place cpu{at::kCPU, dtype};
      ConvCase packed(cpu, C, T);
      packed.run();
      for (std::size_t s = 0; s < kConvLengths.size(); ++s) {
        const auto piece = [&](const at::Tensor& t) {
          return t.narrow(0, packed.sequences.cu_seqlens[s], kConvLengths[s]);
        };
        ConvCase alone(cpu, C, T, {kConvLengths[s]});
        alone.x.narrow(0, 0, kConvLengths[s]).copy_(piece(packed.x));
        alone.dy.narrow(0, 0, kConvLengths[s]).copy_(piece(packed.dy));
        alone.run();
        EXPECT_TRUE(at::equal(alone.y.narrow(0, 0, kConvLengths[s]), piece(packed.y))) << C << " " << kConvLengths[s];
        EXPECT_TRUE(at::equal(alone.dx.narrow(0, 0, kConvLengths[s]), piece(packed.dx))) << C << " " << kConvLengths[s];
      }
    }
  }
}

TEST(CausalConvOnCpu, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const auto& [C, T] : {kFilters[2], kFilters[7]}) {
    std::vector<ConvCase> runs;
    for (const int threads : {1, 2, 7}) {
      at::set_num_threads(threads);
      runs.emplace_back(Place{at::kCPU, at::kFloat}, C, T).run();
    }
    at::set_num_threads(before);
    for (const ConvCase& c : runs) {
      EXPECT_TRUE(at::equal(c.y, runs[0].y) && at::equal(c.dx, runs[0].dx) && at::equal(c.dweight, runs[0].dweight));
    }
  }
}

/// The tokens of several sequences, piece by piece: round r of `rounds` has a piece of each, maybe empty.
void expect_same_in_pieces(const Place& place, int64_t C, int64_t T, const std::vector<Lengths>& rounds) {
  const int64_t S = std::ssize(rounds[0]);
  Lengths whole(rounds[0].size(), 0);
  for (const Lengths& round : rounds) {
    for (std::size_t s = 0; s < whole.size(); ++s) whole[s] += round[s];
  }
  ConvCase c(place, C, T, whole);
  at::Tensor none, state = place.put(at::zeros({S + 1, C, T - 1}));
  state[0].fill_(3);  // of no sequence
  causal_conv_forward(c.x, c.weight, c.sequences, none, c.y);
  Lengths done(whole.size(), 0);
  for (const Lengths& round : rounds) {
    std::vector<at::Tensor> inputs, outputs;
    for (std::size_t s = 0; s < whole.size(); ++s) {
      const int64_t begin = c.sequences.cu_seqlens[s] + done[s];
      inputs.push_back(c.x.narrow(0, begin, round[s]));
      outputs.push_back(c.y.narrow(0, begin, round[s]));
      done[s] += round[s];
    }
    Sequences pieces = make_sequences(conv_starts(round), place.device);
    pieces.state_rows = (S - at::arange(S, at::kLong)).to(place.device);
    const at::Tensor x = place.put(at::cat(inputs, 0)), old = state.clone();
    auto y = place.empty(x.sizes());
    causal_conv_forward(x, c.weight, pieces, state, y);
    const at::Tensor want = at::cat(outputs, 0);  // ATen's silu in fp64 has other bits elsewhere in memory
    if (place.dtype == at::kDouble) {
      EXPECT_TRUE(rows_are_close(y, want, 1e-14)) << C << " " << T;
    } else {
      EXPECT_TRUE(rows_are_equal(y, want)) << C << " " << T;
    }
    for (std::size_t s = 0; s < whole.size(); ++s) {
      const int64_t row = S - static_cast<int64_t>(s), kept = std::min(done[s], T - 1);
      const at::Tensor last = c.x.narrow(0, c.sequences.cu_seqlens[s] + done[s] - kept, kept).t();
      EXPECT_TRUE(at::equal(state[row].narrow(1, T - 1 - kept, kept), last));
      if (round[s] == 0) {
        EXPECT_TRUE(at::equal(state[row], old[row])) << "of a sequence without tokens";
      }
    }
    EXPECT_TRUE((state[0] == 3).all().item<bool>());
  }
  if (T > 1) {
    EXPECT_TRUE(gaps_are_untouched(state));
  }
}

TEST_P(CausalConv, PiecesWithStatesHaveTheBitsOfTheWhole) {
  const std::vector<Lengths> generated = {{5, 2, 0, 9}, {1, 1, 1, 1}, {1, 1, 1, 0}, {1, 1, 1, 1}, {1, 0, 1, 1}};
  const std::vector<Lengths> long_ones = {{70, 0, 1, 129}, {0, 150, 2, 64}, {3, 1, 130, 4}, {65, 2, 63, 3}};
  for (const auto& [C, T] : {kFilters[1], kFilters[2], kFilters[3], kFilters[4], kFilters[5], kFilters[6]}) {
    expect_same_in_pieces(place, C, T, generated);
    expect_same_in_pieces(place, C, T, long_ones);
  }
}

TEST(CausalConv, RefusesWhatDoesNotFit) {
  const auto refuses = [](const std::function<void(ConvCase&)>& change) {
    ConvCase c({at::kCPU, at::kFloat}, 6, 4, {2, 3});
    change(c);
    EXPECT_THROW(c.run(), ShapeError);
  };
  refuses([](ConvCase& c) { c.weight = at::ones({6, 9}); });
  refuses([](ConvCase& c) { c.weight = at::ones({5, 4}); });
  refuses([](ConvCase& c) { c.weight = at::ones({4, 6}).t(); });
  refuses([](ConvCase& c) { c.dweight = at::ones({6, 3}); });
  refuses([](ConvCase& c) { c.sequences.cu_seqlens = {}; });
  refuses([](ConvCase& c) { c.sequences.cu_seqlens = {0, 3, 2}; });
  refuses([](ConvCase& c) { c.sequences.cu_seqlens = {1, 3, 4}; });
  refuses([](ConvCase& c) { c.sequences.cu_seqlens = {0, 3, 11}; });
  refuses([](ConvCase& c) { c.sequences.state_rows = at::arange(2); });  // without a state
  ConvCase c({at::kCPU, at::kFloat}, 6, 4, {2, 3});
  c.sequences.state_rows = at::arange(2);
  at::Tensor state = at::zeros({2, 6, 3});
  causal_conv_forward(c.x, c.weight, c.sequences, state, c.y);
  EXPECT_THROW(causal_conv_backward(c.dy, c.x, c.weight, c.sequences, c.dx, c.dweight), ShapeError);
  c.sequences.state_rows = at::arange(3);
  EXPECT_THROW(causal_conv_forward(c.x, c.weight, c.sequences, state, c.y), ShapeError);
}

}  // namespace
}  // namespace lora_train::kernels
