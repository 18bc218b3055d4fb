#include "uniform_adapter.h"

#include <algorithm>
#include <set>

#include "adapter_names.h"
#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_tensors.h"
#include "merge_math.h"

namespace lora_train::lora {
namespace {

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

/// The size of the matrix along `axis`, the side that is not the rank.
std::int64_t other_size(const storage::SafetensorsFile& file, const std::string& name, std::size_t axis) {
  const storage::TensorEntry* entry = file.find(name);
  return entry == nullptr ? 0 : entry->shape[axis];  // open_adapter_tensors reports a missing one
}

AdapterConfig config_without_token_rows(const fs::path& folder, const std::string& refusal) {
  AdapterConfig config = read_adapter_config(folder);
  if (config.token_rows.empty()) return config;
  throw FormatError((folder / kConfigFile).string() + ": trainable_token_indices", refusal);
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
