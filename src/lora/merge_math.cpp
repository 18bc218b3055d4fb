// O rows, I columns, R rank.
#include "merge_math.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/half.h"
#include "lora_train/kernels/launch/parallel.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/adapter_tensors.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::lora {
namespace {

using storage::DType;

constexpr std::int64_t kRows = 4, kColumns = 1024;  // per tile: 16 KiB of sums

std::size_t element_bytes(DType dtype) { return static_cast<std::size_t>(storage::dtype_bits(dtype)) / 8; }

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
  const auto begin = static_cast<std::size_t>(first * I);
  load(job.weight.bytes.data() + begin * element_bytes(job.weight.dtype), job.weight.dtype, count, values.data());
  if (job.adapter != nullptr) add_product(*job.adapter, first, num_rows, I, values.data());
  store(values.data(), job.target, count, job.out + begin * element_bytes(job.target));
  return all_fit(values.data(), count, job.target);
}

std::size_t bytes_of(std::int64_t elements, storage::DType dtype) {
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(storage::dtype_bits(dtype)) / 8;
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
bool converted(const float* row, std::int64_t columns, storage::DType target, std::string& out) {
  const std::string_view bytes(reinterpret_cast<const char*>(row), bytes_of(columns, storage::DType::kF32));
  return merge_weight({bytes, storage::DType::kF32, 1, columns}, nullptr, target, out);
}

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kEndA = ".lora_A.weight", kEndB = ".lora_B.weight";

/// The module paths of the linears in the file, sorted.
std::vector<std::string> linear_paths(const storage::SafetensorsFile& file) {
  std::set<std::string> paths;
  for (const auto& entry : file.tensors()) {
    const bool is_pair = entry.name.starts_with(kPrefix) &&
                         (entry.name.ends_with(kEndA) || entry.name.ends_with(kEndB)) &&
                         entry.name.size() > kPrefix.size() + kEndA.size() && entry.shape.size() == 2;
    if (!is_pair) {
      throw FormatError(file.path().string() + ": " + entry.name,
                        "is " + storage::describe(entry) + ", not a LoRA matrix of a linear; it would be ignored");
    }
    paths.insert(entry.name.substr(kPrefix.size(), entry.name.size() - kPrefix.size() - kEndA.size()));
  }
  if (paths.empty()) throw FormatError(file.path().string(), "holds no tensors");
  return {paths.begin(), paths.end()};
}

/// The size of the matrix along `axis`, the non-rank side.
std::int64_t other_size(const storage::SafetensorsFile& file, const std::string& name, std::size_t axis) {
  const storage::TensorEntry* entry = file.find(name);
  return entry == nullptr ? 0 : entry->shape[axis];  // open_adapter_tensors reports missing tensors
}

AdapterConfig config_without_token_rows(const fs::path& folder, const std::string& refusal) {
  AdapterConfig config = read_adapter_config(folder);
  if (config.token_rows.empty()) return config;
  throw FormatError((folder / storage::kAdapterConfigFile).string() + ": trainable_token_indices", refusal);
}

Matrix read_matrix(const storage::SafetensorsFile& file, const std::string& name) {
  const storage::TensorEntry& entry = *file.find(name);
  Matrix matrix{read_floats(file.bytes(entry), entry.dtype), entry.shape[0], entry.shape[1]};
  if (!all_finite(matrix.values)) refuse_non_finite(file, name);
  return matrix;
}

/// Pads A with zero rows and B with zero columns up to `rank`.
void pad_a(std::int64_t rank, Matrix& a) {
  a.values.resize(static_cast<std::size_t>(rank * a.num_columns), 0);
  a.num_rows = rank;
}

void pad_b(std::int64_t rank, Matrix& b) {
  std::vector<float> padded(static_cast<std::size_t>(b.num_rows * rank), 0);
  for (std::int64_t row = 0; row < b.num_rows; ++row) {
    const auto from = b.values.begin() + row * b.num_columns;
    std::copy(from, from + b.num_columns, padded.begin() + row * rank);
  }
  b.values = std::move(padded);
  b.num_columns = rank;
}

}  // namespace

std::vector<float> read_floats(std::string_view bytes, DType dtype) {
  const auto count = static_cast<std::int64_t>(bytes.size() / element_bytes(dtype));
  std::vector<float> values(static_cast<std::size_t>(count));
  load(bytes.data(), dtype, count, values.data());
  return values;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

bool merge_weight(const WeightToMerge& weight, const AdapterValues* adapter, DType target, std::string& out) {
  const std::int64_t O = weight.num_rows;
  out.resize(static_cast<std::size_t>(O * weight.num_columns) * element_bytes(target));
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

bool merge_token_rows(const WeightToMerge& weight, const TokenRowsToMerge& rows, storage::DType target,
                      std::string& out) {
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

std::string tensor_name_a(const std::string& path) { return std::string(kPrefix) + path + std::string(kEndA); }
std::string tensor_name_b(const std::string& path) { return std::string(kPrefix) + path + std::string(kEndB); }

AdapterSource open_adapter_source(const fs::path& folder, const std::string& refusal) {
  AdapterConfig config = config_without_token_rows(folder, refusal);
  const storage::SafetensorsFile file = open_adapter_file(folder);
  std::vector<std::string> paths = linear_paths(file);
  std::vector<RankAndScale> linears = ranks_and_scales(config.options, paths);
  std::vector<model::Parameter> expected;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string a = tensor_name_a(paths[i]), b = tensor_name_b(paths[i]);
    expected.push_back({a, {linears[i].rank, other_size(file, a, 1)}});
    expected.push_back({b, {other_size(file, b, 0), linears[i].rank}});
  }
  return {std::move(config), std::move(paths), std::move(linears), open_adapter_tensors(folder, expected)};
}

AdapterSource open_adapter_source(const fs::path& folder, const model::ModelConfig& model, const std::string& refusal) {
  AdapterConfig config = config_without_token_rows(folder, refusal);
  check_patterns(config.options, model);
  const std::vector<model::AdapterSpec> specs = plan_adapters(config.options, model);
  std::vector<std::string> paths;
  std::vector<RankAndScale> linears;
  for (const auto& spec : specs) {
    paths.push_back(model::linear_path(spec));
    linears.push_back({spec.rank, spec.scale});
  }
  return {std::move(config), std::move(paths), std::move(linears),
          open_adapter_tensors(folder, adapter_parameters(specs, model))};
}

UniformScale uniform_scale(const AdapterSource& source,
                           const std::function<bool(std::int64_t rank, double scale)>& can_say) {
  UniformScale uniform;
  const double first = source.linears.front().scale;
  bool is_one_scale = true;
  for (const auto& linear : source.linears) {
    uniform.rank = std::max(uniform.rank, linear.rank);
    is_one_scale = is_one_scale && linear.scale == first;
  }
  if (is_one_scale && can_say(uniform.rank, first)) uniform.scale = first;
  for (const auto& linear : source.linears) {
    uniform.num_padded += linear.rank < uniform.rank ? 1 : 0;
    uniform.num_rescaled += linear.scale != uniform.scale ? 1 : 0;
  }
  return uniform;
}

Matrix Matrix::transposed() const {
  Matrix result{std::vector<float>(values.size()), num_columns, num_rows};
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t column = 0; column < num_columns; ++column) {
      result.values[static_cast<std::size_t>(column * num_rows + row)] =
          values[static_cast<std::size_t>(row * num_columns + column)];
    }
  }
  return result;
}

storage::TensorToWrite Matrix::to_write(std::string name) const {
  return {std::move(name),
          storage::DType::kF32,
          {num_rows, num_columns},
          {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)},
          nullptr};
}

UniformPair uniform_pair(const AdapterSource& source, std::size_t index, const UniformScale& uniform) {
  const std::string b_name = tensor_name_b(source.paths[index]);
  UniformPair pair{read_matrix(source.file, tensor_name_a(source.paths[index])), read_matrix(source.file, b_name)};
  const double factor = source.linears[index].scale / uniform.scale;
  for (float& value : pair.b.values) value = static_cast<float>(value * factor);
  if (!all_finite(pair.b.values)) {
    throw NumericError(b_name, "times its scale is beyond what F32 can hold; lower lora_alpha in adapter_config.json");
  }
  pad_a(uniform.rank, pair.a);
  pad_b(uniform.rank, pair.b);
  return pair;
}

}  // namespace lora_train::lora
