// R ranks of a linear, M the largest of them; A [R, in], B [out, R].
#include <algorithm>
#include <cmath>
#include <set>

#include "adapter_names.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/adapter_tensors.h"
#include "lora_train/lora/merge.h"
#include "lora_train/lora/usage_section.h"
#include "lora_train/storage/output_folder.h"
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

std::string tensor_name(const std::string& path, std::string_view end) {
  return std::string(kPrefix) + path + std::string(end);
}

/// The size of the matrix along `axis`, the side that is not the rank.
std::int64_t other_size(const storage::SafetensorsFile& file, const std::string& name, std::size_t axis) {
  const storage::TensorEntry* entry = file.find(name);
  return entry == nullptr ? 0 : entry->shape[axis];  // open_adapter_tensors reports a missing one
}

/// An adapter to rewrite, checked.
struct Source {
  AdapterConfig config;
  std::vector<std::string> paths;
  std::vector<RankAndScale> linears;
  storage::SafetensorsFile file;
};

Source open_source(const fs::path& folder) {
  AdapterConfig config = read_adapter_config(folder);
  if (!config.token_rows.empty()) {
    throw FormatError(
        (folder / kConfigFile).string() + ": trainable_token_indices",
        "servers that need --portable do not support trained token rows either: merge the adapter into the "
        "model instead (lora-train merge --model)");
  }
  const storage::SafetensorsFile file = open_adapter_file(folder);
  std::vector<std::string> paths = linear_paths(file);
  std::vector<RankAndScale> linears = ranks_and_scales(config.options, paths);
  std::vector<model::Parameter> expected;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string a = tensor_name(paths[i], kEndA), b = tensor_name(paths[i], kEndB);
    expected.push_back({a, {linears[i].rank, other_size(file, a, 1)}});
    expected.push_back({b, {other_size(file, b, 0), linears[i].rank}});
  }
  return {std::move(config), std::move(paths), std::move(linears), open_adapter_tensors(folder, expected)};
}

/// The rank and lora_alpha that all linears get.
void choose_scale(const Source& source, PortableResult& result) {
  const double first = source.linears.front().scale;
  bool is_one_scale = true;
  for (const auto& linear : source.linears) {
    result.rank = std::max(result.rank, linear.rank);
    is_one_scale = is_one_scale && linear.scale == first;
  }
  const double alpha = first * static_cast<double>(result.rank);
  const bool is_exact = is_one_scale && std::floor(alpha) == alpha && alpha / static_cast<double>(result.rank) == first;
  result.alpha = is_exact ? alpha : static_cast<double>(result.rank);
  for (const auto& linear : source.linears) {
    result.num_padded += linear.rank < result.rank ? 1 : 0;
    result.num_rescaled += !is_exact && linear.scale != 1 ? 1 : 0;
  }
}

/// The values of a tensor, kept alive until they are written.
struct Matrix {
  std::vector<float> values;
  std::int64_t num_rows = 0, num_columns = 0;

  storage::TensorToWrite to_write(std::string name) const {
    return {std::move(name),
            storage::DType::kF32,
            {num_rows, num_columns},
            {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)},
            nullptr};
  }
};

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

std::vector<Matrix> rewritten(const Source& source, const PortableResult& result) {
  const double new_scale = result.alpha / static_cast<double>(result.rank);
  std::vector<Matrix> matrices;
  for (std::size_t i = 0; i < source.paths.size(); ++i) {
    Matrix a = read_matrix(source.file, tensor_name(source.paths[i], kEndA));
    const std::string b_name = tensor_name(source.paths[i], kEndB);
    Matrix b = read_matrix(source.file, b_name);
    const double factor = source.linears[i].scale / new_scale;
    for (float& value : b.values) value = static_cast<float>(value * factor);
    if (!all_finite(b.values)) {
      throw NumericError(b_name,
                         "times its scale is beyond what F32 can hold; lower lora_alpha in adapter_config.json");
    }
    pad_a(result.rank, a);
    pad_b(result.rank, b);
    matrices.push_back(std::move(a));
    matrices.push_back(std::move(b));
  }
  return matrices;
}

/// The targets that the file names; for a regex, the linears that it matched.
std::vector<std::string> target_names(const Source& source) {
  const std::vector<std::string>& names = source.config.options.lora_target_modules.names;
  return names.empty() ? source.paths : names;
}

std::string portable_config(const Source& source, const PortableResult& result) {
  AdapterConfig config = source.config;
  config.options.lora_r = result.rank;
  config.options.lora_alpha = result.alpha;
  config.options.use_rslora = false;
  config.options.rank_pattern.clear();
  config.options.alpha_pattern.clear();
  return adapter_config_json(config, target_names(source));
}

void add_other_files(const PortableRequest& request, const Source& source, const PortableResult& result,
                     std::vector<storage::FileToWrite>& files) {
  for (const auto& name : storage::companion_files(request.adapter)) {
    if (name != kConfigFile) files.push_back(storage::copy_of(request.adapter / name));
  }
  if (!fs::exists(request.adapter / "README.md")) return;
  storage::FileToWrite card = storage::copy_of(request.adapter / "README.md");
  card.text = with_usage_section(
      card.text, {source.config.base_model_name_or_path, request.output_dir.string(), result.rank, true});
  files.push_back(std::move(card));
}

}  // namespace

PortableResult make_portable(const PortableRequest& request) {
  const Source source = open_source(request.adapter);
  PortableResult result;
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kAdapter, {request.adapter}, request.overwrite);
  result.folder = output.path();
  result.num_linears = static_cast<std::int64_t>(source.paths.size());
  choose_scale(source, result);
  const std::vector<Matrix> matrices = rewritten(source, result);
  std::vector<storage::TensorToWrite> tensors;
  for (std::size_t i = 0; i < source.paths.size(); ++i) {
    tensors.push_back(matrices[2 * i].to_write(tensor_name(source.paths[i], kEndA)));
    tensors.push_back(matrices[2 * i + 1].to_write(tensor_name(source.paths[i], kEndB)));
  }
  std::vector<storage::FileToWrite> files = {{kTensorFile, "", std::move(tensors)},
                                             {kConfigFile, portable_config(source, result)}};
  add_other_files(request, source, result, files);
  output.write(files);
  output.commit();
  return result;
}

}  // namespace lora_train::lora
