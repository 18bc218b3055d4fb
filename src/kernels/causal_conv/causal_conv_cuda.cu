// A thread takes a pack of channels through a run of tokens, and keeps the inputs of the filter in registers. Threads
// of a block have the same run, so that none waits for another's sequence to end.
// Elements moved: forward 1 read, 1 written; backward 2 read, 1 written; weight gradient 2 read. Inputs before a run,
// and for the backward those after it, are read again from L2.
#include "causal_conv_parts.h"
#include "launch/elements.h"
#include "launch/launch.h"

namespace lora_train::kernels {
namespace {

constexpr unsigned kThreads = 128;
constexpr int kForwardAhead = 4, kBackwardAhead = 2;  // tokens that a thread loads together

/// The filter of a pack of channels, and the last kTaps inputs. A filter with fewer taps comes in single elements.
template <class T, int kSize, int kTaps>
struct Window {
  float filter[kTaps][kSize];
  Pack<T, kSize> inputs[kTaps] = {};  ///< oldest first
  int missing;                        ///< taps

  __device__ __forceinline__ Window(const ConvFilter<T>& from, std::int64_t c) : missing(kTaps - from.taps) {
    if constexpr (kSize > 1) {
      float values[kSize * kTaps];
      load_floats<kSize * kTaps>(from.weight + c * kTaps, values);
      LORA_TRAIN_UNROLL
      for (int j = 0; j < kTaps; ++j) {
        LORA_TRAIN_UNROLL
        for (int i = 0; i < kSize; ++i) filter[j][i] = values[i * kTaps + j];
      }
    } else {
      LORA_TRAIN_UNROLL
      for (int j = 0; j < kTaps; ++j) {
        filter[j][0] = j < missing ? 0.0F : to_float(from.weight[c * from.taps + j - missing]);
      }
    }
  }

  /// The inputs before token n of a sequence that begins at `start`; those before it come from a row of states, if
  /// there is one.
  __device__ __forceinline__ void begin(Rows<const T> x, std::int64_t c, std::int64_t n, std::int64_t start,
                                        const T* state) {
    const int kept = kTaps - missing - 1;
    LORA_TRAIN_UNROLL
    for (int j = 1; j < kTaps; ++j) {
      const std::int64_t at = n - kTaps + j;
      const int in_state = static_cast<int>(at - start) + kept;
      inputs[j] = {};
      if (at >= start) {
        inputs[j] = load_pack<kSize>(x[at] + c);
      } else if (state != nullptr && in_state >= 0) {
        LORA_TRAIN_UNROLL
        for (int i = 0; i < kSize; ++i) inputs[j].values[i] = state[(c + i) * kept + in_state];
      }
    }
  }

  __device__ __forceinline__ void push(const Pack<T, kSize>& next) {
    LORA_TRAIN_UNROLL
    for (int j = 1; j < kTaps; ++j) inputs[j - 1] = inputs[j];
    inputs[kTaps - 1] = next;
  }

  __device__ __forceinline__ float sum(int i) const {
    float sum = 0;
    LORA_TRAIN_UNROLL
    for (int j = 0; j < kTaps; ++j) {
      if (kSize > 1 || j >= missing) sum += filter[j][i] * to_float(inputs[j].values[i]);
    }
    return sum;
  }
};

/// The tokens of sequence s in [begin, end) of a run.
struct Piece {
  std::int64_t start, stop, first, last;
  __device__ __forceinline__ Piece(const std::int32_t* cu, std::int64_t s, std::int64_t begin, std::int64_t end)
      : start(cu[s]), stop(cu[s + 1]), first(start > begin ? start : begin), last(stop < end ? stop : end) {}

  /// A state is read and replaced by one run: tokens that read it belong to that in which the sequence begins.
  __device__ __forceinline__ void take_readers_of_state(int kept) {
    const std::int64_t reach = start + kept < stop ? start + kept : stop;
    if (first == start) {
      if (last < reach) last = reach;
    } else if (first < reach) {
      first = reach;
    }
  }
};

/// The last inputs of a sequence, of which a short one leaves some of the old.
template <int kSize, class T>
__device__ __forceinline__ void keep_last_inputs(Rows<const T> x, std::int64_t c, const Piece& piece, int kept,
                                                 T* state) {
  for (int j = 0; j < kept; ++j) {
    const std::int64_t at = piece.stop - kept + j;
    const int in_state = static_cast<int>(at - piece.start) + kept;
    for (int i = 0; i < kSize; ++i) {
      T* const row = state + (c + i) * kept;
      row[j] = at >= piece.start ? x[at][c + i] : row[in_state];
    }
  }
}

/// Zeros for the tokens of no sequence in [begin, end).
template <int kSize, class T>
__device__ __forceinline__ void clear_rest(const DeviceRanges& sequences, std::int64_t begin, std::int64_t end,
                                           Rows<T> y, std::int64_t c) {
  const std::int64_t rest = sequences.cu[sequences.count];
  for (std::int64_t n = rest > begin ? rest : begin; n < end; ++n) store_pack(y[n] + c, Pack<T, kSize>{});
}

template <class T, int kSize, int kTaps>
__global__ void __launch_bounds__(kThreads)
    causal_conv_forward_kernel(Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences, Rows<T> state, Rows<T> y,
                               std::int64_t run) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kSize, begin = blockIdx.x * run;
  const std::int64_t end = begin + run < sequences.num_tokens ? begin + run : sequences.num_tokens;
  if (c >= filter.channels) return;
  Window<T, kSize, kTaps> window(filter, c);
  for (std::int64_t s = sequences.of_token(begin); s < sequences.count && sequences.cu[s] < end; ++s) {
    Piece piece(sequences.cu, s, begin, end);
    if (sequences.state_rows != nullptr) piece.take_readers_of_state(filter.taps - 1);
    if (piece.first >= piece.last) continue;
    const bool has_state = sequences.state_rows != nullptr && piece.first == piece.start;
    T* const own = has_state ? state[sequences.state_rows[s]] : nullptr;
    window.begin(x, c, piece.first, piece.start, own);
    if (has_state) keep_last_inputs<kSize>(x, c, piece, filter.taps - 1, own);
    for (std::int64_t n = piece.first; n < piece.last; n += kForwardAhead) {
      Pack<T, kSize> next[kForwardAhead] = {};
      LORA_TRAIN_UNROLL
      for (int k = 0; k < kForwardAhead; ++k) {
        if (n + k < piece.last) next[k] = load_pack<kSize>(x[n + k] + c);
      }
      LORA_TRAIN_UNROLL
      for (int k = 0; k < kForwardAhead; ++k) {
        if (n + k >= piece.last) continue;
        window.push(next[k]);
        LORA_TRAIN_UNROLL
        for (int i = 0; i < kSize; ++i) {
          const float sum = window.sum(i);
          store(&next[k].values[i], sum * sigmoid_for<T>(sum));
        }
        store_pack(y[n + k] + c, next[k]);
      }
    }
  }
  clear_rest<kSize>(sequences, begin, end, y, c);
}

/// Calls use(n, dc) for the tokens of a piece in order, and on to `last`, with the gradients of the sums; those after
/// the end of the sequence are zero.
template <class T, int kSize, int kTaps, class Use>
__device__ __forceinline__ void for_each_gradient(Window<T, kSize, kTaps>& window, Rows<const T> dy, Rows<const T> x,
                                                  std::int64_t c, const Piece& piece, std::int64_t last,
                                                  const Use& use) {
  window.begin(x, c, piece.first, piece.start, nullptr);
  for (std::int64_t n = piece.first; n < last; n += kBackwardAhead) {
    Pack<T, kSize> input[kBackwardAhead] = {}, gradient[kBackwardAhead] = {};
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kBackwardAhead; ++k) {
      if (n + k >= last || n + k >= piece.stop) continue;
      input[k] = load_pack<kSize>(x[n + k] + c);
      gradient[k] = load_pack<kSize>(dy[n + k] + c);
    }
    LORA_TRAIN_UNROLL
    for (int k = 0; k < kBackwardAhead; ++k) {
      if (n + k >= last) continue;
      float dc[kSize] = {};
      if (n + k < piece.stop) {
        window.push(input[k]);
        LORA_TRAIN_UNROLL
        for (int i = 0; i < kSize; ++i) {
          const float sum = window.sum(i), sigmoid = sigmoid_for<T>(sum);
          dc[i] = to_float(gradient[k].values[i]) * sigmoid * (1.0F + sum * (1.0F - sigmoid));
        }
      }
      use(n + k, dc);
    }
  }
}

template <class T, int kSize, int kTaps>
__global__ void __launch_bounds__(kThreads)
    causal_conv_backward_kernel(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences,
                                Rows<T> dx, std::int64_t run) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kSize, begin = blockIdx.x * run;
  const std::int64_t end = begin + run < sequences.num_tokens ? begin + run : sequences.num_tokens;
  if (c >= filter.channels) return;
  Window<T, kSize, kTaps> window(filter, c);
  for (std::int64_t s = sequences.of_token(begin); s < sequences.count && sequences.cu[s] < end; ++s) {
    const Piece piece(sequences.cu, s, begin, end);
    if (piece.first >= piece.last) continue;
    float sums[kTaps][kSize] = {};  // of the gradients of the last inputs, as far as they are known
    for_each_gradient(window, dy, x, c, piece, piece.last + kTaps - 1, [&](std::int64_t n, const float(&dc)[kSize]) {
      Pack<T, kSize> whole;
      LORA_TRAIN_UNROLL
      for (int i = 0; i < kSize; ++i) {
        LORA_TRAIN_UNROLL
        for (int j = 1; j < kTaps; ++j) sums[j - 1][i] = sums[j][i] + window.filter[j - 1][i] * dc[i];
        sums[kTaps - 1][i] = window.filter[kTaps - 1][i] * dc[i];
        store(&whole.values[i], sums[0][i]);
      }
      if (n - kTaps + 1 >= piece.first) store_pack(dx[n - kTaps + 1] + c, whole);
    });
  }
  clear_rest<kSize>(sequences, begin, end, dx, c);
}

/// Row [kTaps, C] r of workspace: the sums over run r of the tokens.
template <class T, int kSize, int kTaps>
__global__ void __launch_bounds__(kThreads)
    causal_conv_partial_kernel(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences,
                               float* workspace, std::int64_t run) {
  const std::int64_t c = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kSize, begin = blockIdx.x * run;
  const std::int64_t end = begin + run < sequences.num_tokens ? begin + run : sequences.num_tokens;
  if (c >= filter.channels) return;
  Window<T, kSize, kTaps> window(filter, c);
  float sums[kTaps][kSize] = {};
  for (std::int64_t s = sequences.of_token(begin); s < sequences.count && sequences.cu[s] < end; ++s) {
    const Piece piece(sequences.cu, s, begin, end);
    if (piece.first >= piece.last) continue;
    for_each_gradient(window, dy, x, c, piece, piece.last, [&](std::int64_t, const float(&dc)[kSize]) {
      LORA_TRAIN_UNROLL
      for (int j = 0; j < kTaps; ++j) {
        LORA_TRAIN_UNROLL
        for (int i = 0; i < kSize; ++i) sums[j][i] += dc[i] * to_float(window.inputs[j].values[i]);
      }
    });
  }
  LORA_TRAIN_UNROLL
  for (int j = 0; j < kTaps; ++j) {
    store_floats<kSize>(workspace + (blockIdx.x * std::int64_t{kTaps} + j) * filter.channels + c, sums[j]);
  }
}

/// rows: of a partial sum, the last of which are those of the filter's taps.
__global__ void __launch_bounds__(kThreads)
    causal_conv_total_kernel(const float* workspace, std::int64_t num_runs, int rows, std::int64_t C, int taps,
                             float* dweight) {
  const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x, j = at / C, c = at - j * C;
  if (j >= taps) return;
  float sum = 0;
  for (std::int64_t r = 0; r < num_runs; ++r) sum += workspace[(r * rows + rows - taps + j) * C + c];
  dweight[c * taps + j] += sum;
}

/// The tokens of a run: few for short passes (a token per sequence when generating), else many, whose thread reads few
/// inputs twice.
std::int64_t run_for(std::int64_t num_tokens) {
  constexpr std::int64_t kShortest = 1, kLongest = 32, kRuns = 64;
  const std::int64_t run = num_tokens / kRuns;
  return run < kShortest ? kShortest : run > kLongest ? kLongest : run;
}

/// Calls run() with the sizes of packs and of filters that the kernels are compiled for.
template <class T, class Run>
void with_sizes(const ConvFilter<T>& filter, bool are_packs_allowed, const Run& run) {
  constexpr int kPackedTaps = 4;
  const bool is_packed =
      are_packs_allowed && filter.taps == kPackedTaps && fits_packs(Rows<const T>{filter.weight, 0}, filter.channels);
  if (is_packed) return run(PackSize<kFullPack<T>>(), ConvTaps<kPackedTaps>());
  with_conv_taps(filter.taps, [&](auto taps) { run(PackSize<1>(), taps); });
}

/// Blocks for `num_runs` runs, and threads for all channels, kSize each.
template <int kSize, class Kernel, class... Arguments>
void launch_runs(const char* name, Kernel kernel, std::int64_t num_runs, std::int64_t channels, Stream stream,
                 Arguments... arguments) {
  const std::int64_t packs = channels / kSize;
  if (packs == 0) return;
  const unsigned threads = even_threads_for(packs, kThreads);
  launch(name, kernel, {num_runs, blocks_for(packs, threads)}, threads, stream, arguments...);
}

}  // namespace

template <class T>
void causal_conv_forward_cuda(Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences, Rows<T> state, Rows<T> y,
                              Stream stream) {
  const std::int64_t C = filter.channels, run = run_for(sequences.num_tokens);
  with_sizes(filter, all_fit_packs(C, x, y), [&]<int kSize, int kTaps>(PackSize<kSize>, ConvTaps<kTaps>) {
    launch_runs<kSize>("causal_conv_forward", causal_conv_forward_kernel<T, kSize, kTaps>,
                       blocks_for(sequences.num_tokens, run), C, stream, x, filter, sequences, state, y, run);
  });
}

template <class T>
void causal_conv_backward_cuda(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences,
                               Rows<T> dx, Stream stream) {
  const std::int64_t C = filter.channels, run = run_for(sequences.num_tokens);
  with_sizes(filter, all_fit_packs(C, dy, x, dx), [&]<int kSize, int kTaps>(PackSize<kSize>, ConvTaps<kTaps>) {
    launch_runs<kSize>("causal_conv_backward", causal_conv_backward_kernel<T, kSize, kTaps>,
                       blocks_for(sequences.num_tokens, run), C, stream, dy, x, filter, sequences, dx, run);
  });
}

template <class T>
void causal_conv_weight_gradient_cuda(Rows<const T> dy, Rows<const T> x, ConvFilter<T> filter, DeviceRanges sequences,
                                      float* dweight, float* workspace, Stream stream) {
  const std::int64_t C = filter.channels, run = blocks_for(sequences.num_tokens, kConvChunks);
  if (run == 0) return;
  const std::int64_t num_runs = blocks_for(sequences.num_tokens, run);
  with_sizes(filter, all_fit_packs(C, dy, x), [&]<int kSize, int kTaps>(PackSize<kSize>, ConvTaps<kTaps>) {
    launch_runs<kSize>("causal_conv_partial", causal_conv_partial_kernel<T, kSize, kTaps>, num_runs, C, stream, dy, x,
                       filter, sequences, workspace, run);
    launch("causal_conv_total", causal_conv_total_kernel, {blocks_for(C * filter.taps, kThreads)}, kThreads, stream,
           workspace, num_runs, kTaps, C, filter.taps, dweight);
  });
}

LORA_TRAIN_INSTANTIATE(causal_conv_forward_cuda);
LORA_TRAIN_INSTANTIATE(causal_conv_backward_cuda);
LORA_TRAIN_INSTANTIATE(causal_conv_weight_gradient_cuda);

}  // namespace lora_train::kernels
