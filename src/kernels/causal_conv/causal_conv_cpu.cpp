#include <algorithm>

#include "causal_conv_parts.h"
#include "launch/elements.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::kernels {
namespace {

constexpr std::int64_t kColumns = 512;     // channels at a time: what is kept of them fits the first cache
constexpr std::int64_t kTileTokens = 512;  // at a time: many, beside the columns of the filter that a tile loads
constexpr std::int64_t kBlockTokens = 64;  // summed apart, which keeps long sums accurate

template <int kTaps>
using FilterRows = float[kTaps][kColumns];

/// The inputs of one output, oldest first.
template <int kTaps, class T>
using Inputs = const T* [kTaps];

/// Channels [c, c + width) of the filter, and their inputs before the sequence begins.
template <int kTaps, class T>
struct Columns {
  std::int64_t c, width;
  int missing;  ///< taps
  FilterRows<kTaps> filter;
  T before[kTaps - 1][kColumns] = {};

  Columns(const ConvFilter<T>& from, std::int64_t first)
      : c(first), width(std::min(kColumns, from.channels - first)), missing(kTaps - from.taps) {
    for (int j = 0; j < kTaps; ++j) {
      for (std::int64_t i = 0; i < width; ++i) {
        filter[j][i] = j < missing ? 0.0F : load(from.weight + (c + i) * from.taps + j - missing);
      }
    }
  }

  /// Of token n. A tap that the filter lacks reads the oldest inputs before the sequence: zeros.
  void find_inputs(Rows<const T> x, std::int64_t n, std::int64_t start, Inputs<kTaps, T>& inputs) const {
    for (int j = 0; j < kTaps; ++j) {
      const std::int64_t at = n - kTaps + 1 + j, back = at - start;
      inputs[j] = j < missing ? before[0] : back >= 0 ? x[at] + c : before[back + kTaps - 1];
    }
  }
};

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
void forward_tile(Rows<const T> x, const ConvFilter<T>& filter, const HostRanges& sequences, Rows<T> state, Rows<T> y,
                  std::int64_t c, std::int64_t begin, std::int64_t end) {
  const int kept = filter.taps - 1;
  Columns<kTaps, T> columns(filter, c);
  for_each_piece(sequences, begin, end, [&](std::int64_t s, std::int64_t first, std::int64_t last) {
    const std::int64_t start = sequences.cu[s];
    if (sequences.state_rows != nullptr && first - start < kept) {
      const T* const from = state[sequences.state_rows[s]] + c * kept;
      for (std::int64_t i = 0; i < columns.width * kept; ++i) {
        columns.before[columns.missing + i % kept][i / kept] = from[i];
      }
    }
    for (std::int64_t n = first; n < last; ++n) {
      Inputs<kTaps, T> inputs;
      columns.find_inputs(x, n, start, inputs);
      forward_row<kTaps>(inputs, columns.filter, y[n] + c, columns.width);
    }
  });
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

/// dweight is null or gets the gradients of all tokens.
template <int kTaps, class T>
void backward_tile(Rows<const T> dy, Rows<const T> x, const ConvFilter<T>& filter, const HostRanges& sequences,
                   Rows<T> dx, float* dweight, std::int64_t c, std::int64_t begin, std::int64_t end) {
  const Columns<kTaps, T> columns(filter, c);
  const std::int64_t width = columns.width;
  FilterRows<kTaps> sums = {}, last_dc;  // last_dc: of the last kTaps tokens
  const auto flush = [&] {
    for (int j = columns.missing; j < kTaps; ++j) {
      for (std::int64_t i = 0; i < width; ++i) dweight[(c + i) * filter.taps + j - columns.missing] += sums[j][i];
      std::fill_n(sums[j], width, 0.0F);
    }
  };
  for_each_piece(sequences, begin, end, [&](std::int64_t s, std::int64_t first, std::int64_t last) {
    for (std::int64_t n = first; n < last + kTaps - 1; ++n) {
      float* const dc = last_dc[n % kTaps];
      if (n < sequences.cu[s + 1]) {
        Inputs<kTaps, T> inputs;
        columns.find_inputs(x, n, sequences.cu[s], inputs);
        sum_gradient_row<kTaps>(inputs, columns.filter, dy[n] + c, dc, width);
        if (dweight != nullptr) {
          add_filter_gradient<kTaps>(inputs, dc, sums, width);
          if (n % kBlockTokens == kBlockTokens - 1) flush();
        }
      } else {
        std::fill_n(dc, width, 0.0F);
      }
      const std::int64_t done = n - kTaps + 1;  // all that it needs is there
      if (done < first) continue;
      Inputs<kTaps, float> after;
      for (int j = 0; j < kTaps; ++j) after[j] = last_dc[(done + j) % kTaps];
      input_gradient_row<kTaps>(after, columns.filter, dx[done] + c, width);
    }
  });
  if (dweight != nullptr) flush();
}

/// Calls run(number of taps, c, begin, end) in parallel for tiles of kColumns channels and block_tokens tokens; then
/// clears the rest of `to`.
template <class T, class Run>
void for_each_tile(const ConvFilter<T>& filter, const HostRanges& sequences, std::int64_t block_tokens, Rows<T> to,
                   const Run& run) {
  const std::int64_t num_tokens = sequences.num_tokens, num_tiles = (filter.channels + kColumns - 1) / kColumns;
  const std::int64_t num_blocks = num_tokens == 0 ? 0 : (num_tokens + block_tokens - 1) / block_tokens;
  const std::int64_t grain = row_grain(std::min(block_tokens, num_tokens) * filter.taps * kColumns);
  parallel_ranges(num_blocks * num_tiles, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t begin = i / num_tiles * block_tokens, end = std::min(begin + block_tokens, num_tokens);
      with_conv_taps(filter.taps, [&](auto taps) { run(taps, i % num_tiles * kColumns, begin, end); });
    }
  });
  clear_rest(sequences, to, filter.channels);
}

}  // namespace

template <class T>
void causal_conv_forward_cpu(Rows<const T> x, ConvFilter<T> filter, HostRanges sequences, Rows<T> state, Rows<T> y) {
  const auto run = [&]<int kTaps>(ConvTaps<kTaps>, std::int64_t c, std::int64_t begin, std::int64_t end) {
    forward_tile<kTaps>(x, filter, sequences, state, y, c, begin, end);
  };
  for_each_tile(filter, sequences, kTileTokens, y, run);
  if (sequences.state_rows != nullptr) keep_last_inputs(x, filter, sequences, state);
}

template <class T>
void causal_conv_backward_cpu(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, HostRanges sequences, Rows<T> dx,
                              float* dweight) {
  const auto run = [&]<int kTaps>(ConvTaps<kTaps>, std::int64_t c, std::int64_t begin, std::int64_t end) {
    backward_tile<kTaps>(dy, x, filter, sequences, dx, dweight, c, begin, end);
  };
  // Threads own columns of dweight, so that a sum has the same order for any number of them.
  for_each_tile(filter, sequences, dweight != nullptr ? sequences.num_tokens : kTileTokens, dx, run);
}

LORA_TRAIN_INSTANTIATE(causal_conv_forward_cpu);
LORA_TRAIN_INSTANTIATE(causal_conv_backward_cpu);

}  // namespace lora_train::kernels
