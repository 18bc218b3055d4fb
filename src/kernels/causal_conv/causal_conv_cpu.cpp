#include <algorithm>

#include "causal_conv_parts.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

constexpr std::int64_t kColumns = 512;  // channels at a time: what is kept of them fits the first cache

/// [kTaps] rows of columns of the filter; the first are zero where it has fewer taps.
template <int kTaps>
using FilterRows = float[kTaps][kColumns];

template <int kTaps, class T>
void load_filter(const ConvFilter<T>& filter, std::int64_t c, std::int64_t width, FilterRows<kTaps>& rows) {
  const int missing = kTaps - filter.taps;
  for (int j = 0; j < kTaps; ++j) {
    for (std::int64_t i = 0; i < width; ++i) {
      rows[j][i] = j < missing ? 0.0F : load(filter.weight + (c + i) * filter.taps + j - missing);
    }
  }
}

/// The inputs of one output, oldest first.
template <int kTaps, class T>
using Inputs = const T* [kTaps];

/// Columns from c of the inputs of token n. `before` are those before the sequence begins. A tap that the filter lacks
/// reads the oldest of them: zeros.
template <int kTaps, class T>
void find_inputs(Rows<const T> x, std::int64_t c, std::int64_t n, std::int64_t start, const T (*before)[kColumns],
                 int taps, Inputs<kTaps, T>& inputs) {
  for (int j = 0; j < kTaps; ++j) {
    const std::int64_t at = n - kTaps + 1 + j, back = at - start;
    inputs[j] = j < kTaps - taps ? before[0] : back >= 0 ? x[at] + c : before[back + kTaps - 1];
  }
}

template <int kTaps, class T>
LORA_TRAIN_INLINE float convolve(const Inputs<kTaps, T>& inputs, const FilterRows<kTaps>& filter, std::int64_t i) {
  float sum = 0;
#pragma GCC unroll 8
  for (int j = 0; j < kTaps; ++j) sum += filter[j][i] * load(inputs[j] + i);
  return sum;
}

template <int kTaps, class T>
LORA_TRAIN_CLONES void forward_row(const Inputs<kTaps, T>& inputs, const FilterRows<kTaps>& filter, T* y,
                                   std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float c = convolve<kTaps, T>(inputs, filter, i);
    store(y + i, c * fast_sigmoid(c));
  }
}

/// The gradient of the sums of one token.
template <int kTaps, class T>
LORA_TRAIN_CLONES void sum_gradient_row(const Inputs<kTaps, T>& inputs, const FilterRows<kTaps>& filter, const T* dy,
                                        float* dc, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float c = convolve<kTaps, T>(inputs, filter, i), sigmoid = fast_sigmoid(c);
    dc[i] = load(dy + i) * sigmoid * (1.0F + c * (1.0F - sigmoid));
  }
}

/// dc: of a token and of those after it.
template <int kTaps, class T>
LORA_TRAIN_CLONES void input_gradient_row(const Inputs<kTaps, float>& dc, const FilterRows<kTaps>& filter, T* dx,
                                          std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    float sum = 0;
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) sum += filter[kTaps - 1 - j][i] * dc[j][i];
    store(dx + i, sum);
  }
}

template <int kTaps, class T>
LORA_TRAIN_CLONES void add_filter_gradient(const Inputs<kTaps, T>& inputs, const float* dc, FilterRows<kTaps>& sums,
                                           std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) sums[j][i] += dc[i] * load(inputs[j] + i);
  }
}

/// Calls run(s, first, last) for the tokens that each sequence has in [begin, end).
template <class Run>
void for_each_piece(const HostRanges& sequences, std::int64_t begin, std::int64_t end, const Run& run) {
  for (std::int64_t s = sequences.of_token(begin); s < sequences.count && sequences.cu[s] < end; ++s) {
    const std::int64_t first = std::max(begin, sequences.cu[s]), last = std::min(end, sequences.cu[s + 1]);
    if (first < last) run(s, first, last);
  }
}

template <int kTaps, class T>
void forward_range(Rows<const T> x, const ConvFilter<T>& filter, const HostRanges& sequences, Rows<T> state, Rows<T> y,
                   std::int64_t begin, std::int64_t end) {
  const int kept = filter.taps - 1;
  for (std::int64_t c = 0; c < filter.channels; c += kColumns) {
    const std::int64_t width = std::min(kColumns, filter.channels - c);
    FilterRows<kTaps> rows;
    load_filter<kTaps>(filter, c, width, rows);
    T before[kTaps - 1][kColumns] = {};
    for_each_piece(sequences, begin, end, [&](std::int64_t s, std::int64_t first, std::int64_t last) {
      const std::int64_t start = sequences.cu[s];
      if (sequences.state_rows != nullptr && first - start < kept) {
        const T* const from = state[sequences.state_rows[s]] + c * kept;
        for (std::int64_t i = 0; i < width * kept; ++i) before[kTaps - filter.taps + i % kept][i / kept] = from[i];
      }
      for (std::int64_t n = first; n < last; ++n) {
        Inputs<kTaps, T> inputs;
        find_inputs<kTaps>(x, c, n, start, before, filter.taps, inputs);
        forward_row<kTaps>(inputs, rows, y[n] + c, width);
      }
    });
  }
  clear_rest(sequences, begin, end, y, filter.channels);
}

/// Moves the last inputs of every sequence into its state, where a short one leaves some of the old.
template <class T>
void keep_last_inputs(Rows<const T> x, const ConvFilter<T>& filter, const HostRanges& sequences, Rows<T> state) {
  const std::int64_t kept = filter.taps - 1, C = filter.channels;
  parallel_ranges(sequences.count, row_grain(kept * C), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int64_t stop = sequences.cu[s + 1], length = stop - sequences.cu[s];
      if (length == 0) continue;
      T* const to = state[sequences.state_rows[s]];
      for (std::int64_t j = 0; j < kept; ++j) {
        const bool is_old = j + length < kept;
        const T* const from = is_old ? to + j + length : x[stop - kept + j];
        for (std::int64_t c = 0; c < C; ++c) to[c * kept + j] = from[is_old ? c * kept : c];
      }
    }
  });
}

constexpr std::int64_t kBlockTokens = 64;  // summed apart, which keeps long sums accurate

/// Gradients of tokens [begin, end) and channels [c, c + width); dweight is null or gets those of all tokens.
template <int kTaps, class T>
class BackwardColumns {
 public:
  BackwardColumns(const ConvFilter<T>& filter, std::int64_t c, float* dweight)
      : filter_(filter), c_(c), width_(std::min(kColumns, filter.channels - c)), dweight_(dweight) {
    load_filter<kTaps>(filter, c, width_, rows_);
  }

  void run(Rows<const T> dy, Rows<const T> x, const HostRanges& sequences, Rows<T> dx, std::int64_t begin,
           std::int64_t end) {
    for_each_piece(sequences, begin, end, [&](std::int64_t s, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last + kTaps - 1; ++n) {
        float* const dc = dc_[n % kTaps];
        if (n < sequences.cu[s + 1]) {
          Inputs<kTaps, T> inputs;
          find_inputs<kTaps>(x, c_, n, sequences.cu[s], zeros_, filter_.taps, inputs);
          sum_gradient_row<kTaps>(inputs, rows_, dy[n] + c_, dc, width_);
          if (dweight_ != nullptr) {
            add_filter_gradient<kTaps>(inputs, dc, sums_, width_);
            if (n % kBlockTokens == kBlockTokens - 1) flush();
          }
        } else {
          std::fill_n(dc, width_, 0.0F);
        }
        const std::int64_t done = n - kTaps + 1;  // all that it needs is there
        if (done < first) continue;
        Inputs<kTaps, float> after;
        for (int j = 0; j < kTaps; ++j) after[j] = dc_[(done + j) % kTaps];
        input_gradient_row<kTaps>(after, rows_, dx[done] + c_, width_);
      }
    });
    if (dweight_ != nullptr) flush();
  }

 private:
  void flush() {
    const int taps = filter_.taps;
    for (int j = 0; j < taps; ++j) {
      float* const sums = sums_[kTaps - taps + j];
      for (std::int64_t i = 0; i < width_; ++i) dweight_[(c_ + i) * taps + j] += sums[i];
      std::fill_n(sums, width_, 0.0F);
    }
  }

  const ConvFilter<T>& filter_;
  std::int64_t c_, width_;
  float* dweight_;
  FilterRows<kTaps> rows_, sums_ = {}, dc_;  ///< dc_: the gradients of the sums of the last kTaps tokens
  T zeros_[kTaps - 1][kColumns] = {};
};

}  // namespace

template <class T>
void causal_conv_forward_cpu(Rows<const T> x, ConvFilter<T> filter, HostRanges sequences, Rows<T> state, Rows<T> y) {
  with_conv_taps(filter.taps, [&]<int kTaps>(ConvTaps<kTaps>) {
    parallel_ranges(sequences.num_tokens, row_grain(filter.taps * filter.channels),
                    [&](std::int64_t begin, std::int64_t end) {
                      forward_range<kTaps>(x, filter, sequences, state, y, begin, end);
                    });
  });
  if (sequences.state_rows != nullptr) keep_last_inputs(x, filter, sequences, state);
}

template <class T>
void causal_conv_backward_cpu(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, HostRanges sequences, Rows<T> dx,
                              float* dweight) {
  const std::int64_t C = filter.channels, num_tokens = sequences.num_tokens;
  with_conv_taps(filter.taps, [&]<int kTaps>(ConvTaps<kTaps>) {
    const auto run = [&](std::int64_t begin, std::int64_t end, std::int64_t c) {
      BackwardColumns<kTaps, T>(filter, c, dweight).run(dy, x, sequences, dx, begin, end);
    };
    if (dweight != nullptr) {  // threads own columns, so that a sum has the same order for any number of them
      const std::int64_t num_tiles = (C + kColumns - 1) / kColumns;
      parallel_ranges(num_tiles, row_grain(kColumns * num_tokens), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t tile = begin; tile < end; ++tile) run(0, num_tokens, tile * kColumns);
      });
      return clear_rest(sequences, 0, num_tokens, dx, C);
    }
    parallel_ranges(num_tokens, row_grain(2 * filter.taps * C), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = 0; c < C; c += kColumns) run(begin, end, c);
      clear_rest(sequences, begin, end, dx, C);
    });
  });
}

LORA_TRAIN_INSTANTIATE(causal_conv_forward_cpu);
LORA_TRAIN_INSTANTIATE(causal_conv_backward_cpu);

}  // namespace lora_train::kernels
