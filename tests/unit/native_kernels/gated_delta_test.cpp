// The gated delta rule by chunks, and token by token, against the recurrence in double: the lists that a recorded graph
// reads, ends of chunks, states, head sizes that are padded.
#include <cmath>
#include <vector>

#include "kernels/gated_delta/gated_delta_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;
using Doubles = std::vector<double>;

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

struct Case {
  GatedDeltaSizes shape;
  std::vector<std::int64_t> lengths;
  std::int64_t tail = 0;  ///< tokens of no sequence
  std::int64_t gap = 0;
  bool is_aligned = true;
  float decay = 1;  ///< exp(A_log) of the first head; the others are slow
};

/// The arguments of a pass, and where it writes.
template <class T>
struct Pass {
  const Case& c;
  GatedDeltaSizes s;
  std::int64_t N, qkv_width, out_width;
  std::vector<std::int32_t> cu{0}, chunks{0}, owners;
  Guarded<T> qkv, a, b, out, d_out, d_qkv, d_a, d_b;
  Guarded<float> a_log, dt_bias, d_a_log, d_dt_bias, state, initial_state, scratch;
  Guarded<std::int64_t> state_rows;

  static std::int64_t tokens_of(const Case& c) {
    std::int64_t sum = c.tail;
    for (const std::int64_t length : c.lengths) sum += length;
    return sum;
  }
  std::int64_t num_sequences() const { return std::ssize(c.lengths); }
  std::int64_t state_width() const { return s.value_heads * s.key_size * s.value_size; }

  explicit Pass(const Case& of)
      : c(of),
        s(of.shape),
        N(tokens_of(of)),
        qkv_width(2 * s.key_heads * s.key_size + s.value_heads * s.value_size),
        out_width(s.value_heads * s.value_size),
        qkv(N, qkv_width, of.gap, of.is_aligned),
        a(N, s.value_heads, 1),
        b(N, s.value_heads, 3),
        out(N, out_width, of.gap, of.is_aligned),
        d_out(N, out_width, of.gap, of.is_aligned),
        d_qkv(N, qkv_width, of.gap, of.is_aligned),
        d_a(N, s.value_heads, 2),
        d_b(N, s.value_heads),
        a_log(1, s.value_heads),
        dt_bias(1, s.value_heads),
        d_a_log(1, s.value_heads),
        d_dt_bias(1, s.value_heads),
        state(num_sequences() + 1, state_width()),
        initial_state(num_sequences() + 1, state_width()),
        scratch(N, gated_delta_scratch_width_cuda(s, sizeof(T))),
        state_rows(1, num_sequences()) {
    qkv.fill_uniform(1);
    a.fill_uniform(2);
    b.fill_uniform(3);
    d_out.fill_uniform(4);
    a_log.fill([&](auto, auto h) { return std::log(of.decay) - 3 * static_cast<float>(h); });
    dt_bias.fill([](auto, auto h) { return 0.25F * static_cast<float>(h) - 0.5F; });
    initial_state.fill_uniform(5);
    state_rows.fill([&](auto, auto i) { return static_cast<float>(num_sequences() - i); });  // row 0 is of nobody
    for (std::size_t i = 0; i < of.lengths.size(); ++i) {
      const auto num_chunks = static_cast<std::int32_t>((of.lengths[i] + kChunkTokens - 1) / kChunkTokens);
      cu.push_back(cu.back() + static_cast<std::int32_t>(of.lengths[i]));
      chunks.push_back(chunks.back() + num_chunks);
      owners.insert(owners.end(), static_cast<std::size_t>(num_chunks), static_cast<std::int32_t>(i));
    }
    owners.insert(owners.end(), 3, -1);
  }
  GatedDeltaRows<T> inputs() { return {qkv.read(), a.read(), b.read(), a_log.data(), dt_bias.data()}; }

  void expect_guarded_forward(bool with_states) {
    const KernelArray<std::int32_t> of_tokens(cu), of_chunks(chunks), of_owners(owners);
    const DeviceSequences sequences{{of_tokens.data(), num_sequences(), N, with_states ? state_rows.data() : nullptr},
                                    of_chunks.data(),
                                    of_owners.data(),
                                    std::ssize(owners)};
    std::vector<GuardedBytes*> outputs = {&out};
    if (with_states) outputs.push_back(&state);
    const auto launch = [&] {
      scratch.poison_values();
      state.fill([&](auto r, auto i) { return static_cast<float>(initial_state.at(r, i)); });
      gated_delta_forward_cuda(s, inputs(), sequences, with_states ? state.data() : nullptr, scratch.data(), out.rows(),
                               nullptr);
    };
    expect_guarded(launch, outputs, {&qkv, &a, &b, &a_log, &dt_bias, &state_rows});
    EXPECT_TRUE(scratch.is_intact());
  }
  void expect_guarded_backward(bool with_parameters) {
    const KernelArray<std::int32_t> of_tokens(cu), of_chunks(chunks), of_owners(owners);
    const DeviceSequences sequences{
        {of_tokens.data(), num_sequences(), N, nullptr}, of_chunks.data(), of_owners.data(), std::ssize(owners)};
    std::vector<GuardedBytes*> outputs = {&d_qkv, &d_a, &d_b};
    if (with_parameters) outputs.insert(outputs.end(), {&d_a_log, &d_dt_bias});
    const auto launch = [&] {
      scratch.poison_values();
      for (auto* sum : {&d_a_log, &d_dt_bias}) sum->fill([](auto, auto) { return 2.0F; });
      gated_delta_backward_cuda<T>(s, inputs(), sequences, d_out.read(), scratch.data(),
                                   {d_qkv.rows(), d_a.rows(), d_b.rows(), with_parameters ? d_a_log.data() : nullptr,
                                    with_parameters ? d_dt_bias.data() : nullptr},
                                   nullptr);
    };
    expect_guarded(launch, outputs, {&qkv, &a, &b, &a_log, &dt_bias, &d_out});
    EXPECT_TRUE(scratch.is_intact());
  }
};

/// The recurrence of gated_delta.h, and its derivative.
template <class T>
class Reference {
 public:
  Doubles out, state, d_qkv, d_a, d_b, d_a_log, d_dt_bias;  ///< as the rows of Pass, without gaps

  Reference(Pass<T>& pass, bool with_states)
      : out(size(pass.N * pass.out_width)),
        state(size(pass.state.num_rows() * pass.state_width())),
        d_qkv(size(pass.N * pass.qkv_width)),
        d_a(size(pass.N * pass.s.value_heads)),
        d_b(d_a),
        d_a_log(size(pass.s.value_heads), 2.0),
        d_dt_bias(d_a_log),
        p_(pass),
        dk_(pass.s.key_size),
        dv_(pass.s.value_size) {
    for (std::size_t i = 0; i < state.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      state[i] = pass.initial_state.at(at / pass.state_width(), at % pass.state_width());
    }
    for (std::int64_t i = 0; i < pass.num_sequences(); ++i) {
      for (std::int64_t h = 0; h < pass.s.value_heads; ++h) add_sequence(i, h, with_states);
    }
  }

 private:
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  struct Token {
    std::int64_t n, q_column, k_column, v_column;
    Doubles q, k, before, after, u;  ///< before: P
    double q_norm = 0, k_norm = 0, beta = 0, g = 0, x = 0;
  };

  Doubles normalised(std::int64_t n, std::int64_t column, double& norm) {
    Doubles x(size(dk_));
    double sum = 1e-6;
    for (std::int64_t i = 0; i < dk_; ++i) sum += std::pow(x[size(i)] = p_.qkv.at(n, column + i), 2);
    norm = std::sqrt(sum);
    for (double& value : x) value /= norm;
    return x;
  }

  Token token(std::int64_t n, std::int64_t h, const Doubles& m) {
    const std::int64_t key_head = h / (p_.s.value_heads / p_.s.key_heads), keys = p_.s.key_heads * dk_;
    Token t{n, key_head * dk_, keys + key_head * dk_, 2 * keys + h * dv_, {}, {}, m, {}, Doubles(size(dv_))};
    t.q = normalised(n, t.q_column, t.q_norm);
    for (double& value : t.q) value /= std::sqrt(static_cast<double>(dk_));
    t.k = normalised(n, t.k_column, t.k_norm);
    t.beta = sigmoid_of(p_.b.at(n, h));
    t.x = p_.a.at(n, h) + p_.dt_bias.at(0, h);
    t.g = -std::exp(p_.a_log.at(0, h)) * std::log1p(std::exp(t.x));
    for (double& value : t.before) value *= std::exp(t.g);
    t.after = t.before;
    for (std::int64_t j = 0; j < dv_; ++j) {
      double of_state = 0, o = 0;
      for (std::int64_t i = 0; i < dk_; ++i) of_state += t.before[size(i * dv_ + j)] * t.k[size(i)];
      t.u[size(j)] = t.beta * (p_.qkv.at(n, t.v_column + j) - of_state);
      for (std::int64_t i = 0; i < dk_; ++i) {
        t.after[size(i * dv_ + j)] += t.k[size(i)] * t.u[size(j)];
        o += t.after[size(i * dv_ + j)] * t.q[size(i)];
      }
      out[size(n * p_.out_width + h * dv_ + j)] = o;
    }
    return t;
  }

  void add_sequence(std::int64_t sequence, std::int64_t h, bool with_states) {
    const std::int64_t row = p_.state_rows.data()[sequence];
    double* const own = state.data() + row * p_.state_width() + h * dk_ * dv_;
    Doubles m(size(dk_ * dv_));
    if (with_states) m.assign(own, own + dk_ * dv_);
    std::vector<Token> tokens;
    for (std::int64_t n = p_.cu[size(sequence)]; n < p_.cu[size(sequence) + 1]; ++n) {
      tokens.push_back(token(n, h, m));
      m = tokens.back().after;
    }
    std::copy(m.begin(), m.end(), own);
    Doubles d(size(dk_ * dv_));
    for (auto t = tokens.rbegin(); t != tokens.rend(); ++t) add_gradients(*t, h, d);
  }

  /// d: the gradient of the state after the token; then of the one before.
  void add_gradients(const Token& t, std::int64_t h, Doubles& d) {
    Doubles d_q(size(dk_)), d_k(size(dk_)), w(size(dv_));
    double d_beta = 0, d_g = 0;
    for (std::int64_t j = 0; j < dv_; ++j) {
      const double d_o = p_.d_out.at(t.n, h * dv_ + j);
      double d_u = 0, of_state = 0;
      for (std::int64_t i = 0; i < dk_; ++i) {
        const std::size_t at = size(i * dv_ + j);
        d[at] += t.q[size(i)] * d_o;
        d_q[size(i)] += t.after[at] * d_o;
        d_u += t.k[size(i)] * d[at];
        of_state += t.before[at] * t.k[size(i)];
      }
      d_beta += d_u * (p_.qkv.at(t.n, t.v_column + j) - of_state);
      w[size(j)] = t.beta * d_u;
      d_qkv[size(t.n * p_.qkv_width + t.v_column + j)] = w[size(j)];
    }
    for (std::int64_t i = 0; i < dk_; ++i) {
      for (std::int64_t j = 0; j < dv_; ++j) {
        const std::size_t at = size(i * dv_ + j);
        d_k[size(i)] += d[at] * t.u[size(j)] - t.before[at] * w[size(j)];
        d[at] -= t.k[size(i)] * w[size(j)];
        d_g += d[at] * t.before[at];
        d[at] *= std::exp(t.g);
      }
    }
    add_through_norm(t.n, t.q_column, d_q, t.q, t.q_norm, 1 / std::sqrt(static_cast<double>(dk_)));
    add_through_norm(t.n, t.k_column, d_k, t.k, t.k_norm, 1);
    const double d_x = -d_g * std::exp(p_.a_log.at(0, h)) * sigmoid_of(t.x);
    d_a[size(t.n * p_.s.value_heads + h)] = d_x;
    d_b[size(t.n * p_.s.value_heads + h)] = d_beta * t.beta * (1 - t.beta);
    d_a_log[size(h)] += d_g * t.g;
    d_dt_bias[size(h)] += d_x;
  }

  /// y = scale x / norm.
  void add_through_norm(std::int64_t n, std::int64_t column, const Doubles& d, const Doubles& y, double norm,
                        double scale) {
    double along = 0;
    for (std::size_t i = 0; i < y.size(); ++i) along += d[i] * y[i] / scale;
    for (std::size_t i = 0; i < y.size(); ++i) {
      d_qkv[size(n * p_.qkv_width + column) + i] += scale / norm * (d[i] - y[i] / scale * along);
    }
  }

  Pass<T>& p_;
  std::int64_t dk_, dv_;
};

/// |got - want| is at most `tolerance` times |want|; of a row, times twice the norm of the largest row.
template <class T>
::testing::AssertionResult is_close(Guarded<T>& got, const Doubles& want, std::int64_t width, double tolerance) {
  double error = 0, norm = 0, largest = 0, worst = 0;  // squares
  for (std::int64_t n = 0; n < got.num_rows(); ++n) {
    double of_row = 0, wanted = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double value = want[static_cast<std::size_t>(n * width + i)];
      wanted += value * value;
      of_row += std::pow(got.at(n, i) - value, 2);
    }
    error += of_row;
    norm += wanted;
    largest = std::max(largest, wanted);
    worst = std::max(worst, of_row);
  }
  if (norm > 0 && std::sqrt(error) <= tolerance * std::sqrt(norm) &&
      std::sqrt(worst) <= 2 * tolerance * std::sqrt(largest)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "off by " << std::sqrt(error / norm) << ", the worst row by "
                                       << std::sqrt(worst / largest) << " of the largest; tolerance " << tolerance;
}

// Seen: 1.2e-6 and 4.4e-3, which is 2^-8: q, k, U, W, N and weights between products are bf16.
template <class T>
constexpr double kTolerance = sizeof(T) == 2 ? 6e-3 : 4e-6;

template <class T>
void expect_forward(const Case& c, bool with_states) {
  SCOPED_TRACE(testing::Message() << sizeof(T) << " bytes, states: " << with_states);
  Pass<T> pass(c);
  pass.expect_guarded_forward(with_states);
  const Reference<T> want(pass, with_states);
  EXPECT_TRUE(is_close(pass.out, want.out, pass.out_width, kTolerance<T>));
  for (std::int64_t n = pass.N - c.tail; n < pass.N; ++n) EXPECT_EQ(pass.out.at(n, 0), 0);
  if (!with_states) return;
  EXPECT_TRUE(is_close(pass.state, want.state, pass.state_width(), kTolerance<T>)) << "state";
}

template <class T>
void expect_backward(const Case& c, bool with_parameters) {
  SCOPED_TRACE(testing::Message() << sizeof(T) << " bytes");
  Pass<T> pass(c);
  pass.expect_guarded_backward(with_parameters);
  const Reference<T> want(pass, false);
  EXPECT_TRUE(is_close(pass.d_qkv, want.d_qkv, pass.qkv_width, kTolerance<T>)) << "qkv";
  EXPECT_TRUE(is_close(pass.d_a, want.d_a, pass.s.value_heads, kTolerance<T>)) << "a";
  EXPECT_TRUE(is_close(pass.d_b, want.d_b, pass.s.value_heads, kTolerance<T>)) << "b";
  if (!with_parameters) return;
  EXPECT_TRUE(is_close(pass.d_a_log, want.d_a_log, pass.s.value_heads, kTolerance<T>)) << "A_log";
  EXPECT_TRUE(is_close(pass.d_dt_bias, want.d_dt_bias, pass.s.value_heads, kTolerance<T>)) << "dt_bias";
}

// Ends of chunks and sequences without tokens; rows that allow no packs; sizes that fill the padded ones; decays that
// leave nothing.
const std::vector<std::int64_t> kLengths = {0, 1, 2, 63, 64, 65, 0, 150, 0};
const std::vector<Case> kCases = {{{1, 2, 16, 24}, kLengths, 3},
                                  {{2, 4, 24, 16}, {65, 3}, 0, 1},
                                  {{2, 2, 9, 11}, {70}, 1, 0, false},
                                  {{1, 3, 32, 32}, {130}, 0, 8, true, 400.0F}};
const std::vector<Case> kWideCases = {{{1, 1, 128, 128}, {70}}, {{1, 1, 40, 72}, {65}, 2, 8}};

TEST(GatedDeltaCuda, ForwardIsTheRecurrence) {
  for_each_element_type([]<class T>(T) {
    for (const Case& c : kCases) {
      for (const bool with_states : {false, true}) expect_forward<T>(c, with_states);
    }
  });
}

TEST(GatedDeltaCuda, ForwardOfWideHeadsIsTheRecurrence) {
  for_each_element_type([]<class T>(T) {
    for (const Case& c : kWideCases) expect_forward<T>(c, true);
  });
}

TEST(GatedDeltaCuda, FewTokensGoOneByOne) {
  for (const Case& c : {Case{{1, 2, 16, 24}, {1, 1, 0, 1}, 2}, Case{{2, 2, 128, 40}, {4, 0, 5}, 0, 3, false},
                        Case{{1, 1, 9, 7}, {3}, 0}}) {
    for_each_element_type([&]<class T>(T) { expect_forward<T>(c, true); });
  }
}

TEST(GatedDeltaCuda, BackwardIsItsDerivative) {
  for_each_element_type([]<class T>(T) {
    for (const Case& c : kCases) expect_backward<T>(c, c.tail == 0);
  });
}

TEST(GatedDeltaCuda, BackwardOfWideHeadsIsItsDerivative) {
  for_each_element_type([]<class T>(T) {
    for (const Case& c : kWideCases) expect_backward<T>(c, c.tail > 0);
  });
}

}  // namespace
}  // namespace lora_train::kernels
