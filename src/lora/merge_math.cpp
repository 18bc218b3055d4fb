// O rows, I columns, R rank.
#include "merge_math.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/half.h"
#include "lora_train/kernels/launch/parallel.h"
#include "lora_train/lora/adapter_config.h"

namespace lora_train::lora {
namespace {

using storage::DType;

constexpr std::int64_t kRows = 4, kColumns = 1024;  // per tile: 16 KiB of sums

std::size_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(storage::dtype_bits(dtype)) / 8;
}

std::uint16_t half_at(const char* bytes, std::int64_t i) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes + 2 * i, 2);
  return bits;
}

LORA_TRAIN_CLONES void load_bf16(const char* bytes, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = from_bf16(half_at(bytes, i));
}

void load(const char* bytes, DType dtype, std::int64_t count, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, bytes, static_cast<std::size_t>(count) * 4);
  } else if (dtype == DType::kBF16) {
    load_bf16(bytes, count, out);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = from_f16(half_at(bytes, i));
  }
}

LORA_TRAIN_CLONES void store_bf16(const float* values, std::int64_t count, char* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = to_bf16(values[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

void store(const float* values, DType dtype, std::int64_t count, char* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, values, static_cast<std::size_t>(count) * 4);
  } else if (dtype == DType::kBF16) {
    store_bf16(values, count, out);
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint16_t bits = to_f16(values[i]);
      std::memcpy(out + 2 * i, &bits, 2);
    }
  }
}

/// True if all values stay finite when rounded to this type. NaN fails too.
LORA_TRAIN_CLONES bool all_fit(const float* values, std::int64_t count, DType dtype) {
  // The smallest values that round to infinity.
  const float limit = dtype == DType::kBF16 ? 0x1.FFp127F : dtype == DType::kF16 ? 65520.0F : INFINITY;
  int num_beyond = 0;
  for (std::int64_t i = 0; i < count; ++i) num_beyond += std::fabs(values[i]) < limit ? 0 : 1;
  return num_beyond == 0;
}

/// sums [kRows, kColumns] = rows of B times columns of A. The last tile is padded with rows of zeros.
LORA_TRAIN_CLONES void multiply(const float* b, std::int64_t b_stride, const float* a, std::int64_t a_stride,
                                std::int64_t rank, std::int64_t num_columns, float* sums) {
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) sums[i] = 0;
  for (std::int64_t k = 0; k < rank; ++k) {
    const float* row = a + k * a_stride;
    const float b0 = b[k], b1 = b[b_stride + k], b2 = b[2 * b_stride + k], b3 = b[3 * b_stride + k];
    for (std::int64_t i = 0; i < num_columns; ++i) {
      sums[i] += b0 * row[i];
      sums[kColumns + i] += b1 * row[i];
      sums[2 * kColumns + i] += b2 * row[i];
      sums[3 * kColumns + i] += b3 * row[i];
    }
  }
}

// Separate from the addition: in one expression, a compiler might contract them and round once, but PEFT rounds twice.
LORA_TRAIN_CLONES void scale_all(float* values, float scale, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= scale;
}

LORA_TRAIN_CLONES void add(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

struct Job {
  const WeightToMerge& weight;
  const AdapterValues* adapter;
  DType target;
  char* out;
};

/// Adds scale B A to rows [first, first + num_rows) of the weight, held in `values`: summed over R in ascending order,
/// times the scale, plus the weight.
void add_product(const AdapterValues& adapter, std::int64_t first, std::int64_t num_rows, std::int64_t I,
                 float* values) {
  const std::int64_t R = adapter.spec.rank;
  std::vector<float> sums(static_cast<std::size_t>(kRows * kColumns)), last;
  const float* b = adapter.tensors[model::kLoraB].data() + first * R;
  if (num_rows < kRows) {
    last.assign(static_cast<std::size_t>(kRows * R), 0);
    std::copy(b, b + num_rows * R, last.begin());
    b = last.data();
  }
  for (std::int64_t column = 0; column < I; column += kColumns) {
    const std::int64_t width = std::min(kColumns, I - column);
    multiply(b, R, adapter.tensors[model::kLoraA].data() + column, I, R, width, sums.data());
    scale_all(sums.data(), static_cast<float>(adapter.spec.scale), kRows * kColumns);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      add(sums.data() + row * kColumns, width, values + row * I + column);
    }
  }
}

bool merge_rows(const Job& job, std::int64_t first, std::int64_t num_rows, std::vector<float>& values) {
  const std::int64_t I = job.weight.num_columns, count = num_rows * I;
  values.resize(static_cast<std::size_t>(count));
  load(job.weight.bytes.data() + bytes_of(first * I, job.weight.dtype), job.weight.dtype, count, values.data());
  if (job.adapter != nullptr) add_product(*job.adapter, first, num_rows, I, values.data());
  store(values.data(), job.target, count, job.out + bytes_of(first * I, job.target));
  return all_fit(values.data(), count, job.target);
}

/// Summed in fp64, a piece at a time.
std::vector<float> mean_of_rows(const WeightToMerge& weight) {
  constexpr std::int64_t kPiece = 1024;  // rows
  const std::int64_t columns = weight.num_columns;
  std::vector<double> sums(static_cast<std::size_t>(columns), 0);
  for (std::int64_t begin = 0; begin < weight.num_rows; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, weight.num_rows - begin);
    const auto values = read_floats(
        weight.bytes.substr(bytes_of(begin * columns, weight.dtype), bytes_of(count * columns, weight.dtype)),
        weight.dtype);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += static_cast<double>(values[i]);
  }
  std::vector<float> mean;
  for (const double sum : sums) mean.push_back(static_cast<float>(sum / static_cast<double>(weight.num_rows)));
  return mean;
}

/// One row in dtype `target`.
bool converted(const float* row, std::int64_t columns, DType target, std::string& out) {
  const std::string_view bytes(reinterpret_cast<const char*>(row), bytes_of(columns, DType::kF32));
  return merge_weight({bytes, DType::kF32, 1, columns}, nullptr, target, out);
}

}  // namespace

std::vector<float> read_floats(std::string_view bytes, DType dtype) {
  const auto count = static_cast<std::int64_t>(bytes.size() / bytes_of(1, dtype));
  std::vector<float> values(static_cast<std::size_t>(count));
  load(bytes.data(), dtype, count, values.data());
  return values;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

bool merge_weight(const WeightToMerge& weight, const AdapterValues* adapter, DType target, std::string& out) {
  const std::int64_t O = weight.num_rows;
  out.resize(bytes_of(O * weight.num_columns, target));
  const Job job{weight, adapter, target, out.data()};
  std::atomic<bool> is_finite = true;
  std::atomic<std::int64_t> next = 0;
  const auto work = [&] {
    std::vector<float> values;
    for (std::int64_t first = next.fetch_add(kRows); first < O; first = next.fetch_add(kRows)) {
      if (!merge_rows(job, first, std::min(kRows, O - first), values)) is_finite = false;
    }
  };
  const std::int64_t num_threads = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, 16);
  constexpr std::int64_t kWorthAThread = 1 << 18;  // elements
  std::vector<std::jthread> threads;
  for (std::int64_t i = 1; i < num_threads && i * kWorthAThread < O * weight.num_columns; ++i)
    threads.emplace_back(work);
  work();
  threads.clear();
  return is_finite;
}

bool merge_token_rows(const WeightToMerge& weight, const TokenRowsToMerge& rows, DType target, std::string& out) {
  bool is_finite = merge_weight(weight, nullptr, target, out);
  const std::int64_t columns = weight.num_columns;
  std::string row;
  if (rows.num_rows > weight.num_rows) {
    is_finite = converted(mean_of_rows(weight).data(), columns, target, row) && is_finite;
    out.reserve(bytes_of(rows.num_rows * columns, target));
    for (std::int64_t i = weight.num_rows; i < rows.num_rows; ++i) out += row;
  }
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {
    const float* values = rows.values.data() + static_cast<std::int64_t>(i) * columns;
    is_finite = converted(values, columns, target, row) && is_finite;
    out.replace(bytes_of(rows.ids[i] * columns, target), row.size(), row);
  }
  return is_finite;
}

}  // namespace lora_train::lora
