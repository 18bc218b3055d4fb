// merge --portable: an adapter of one rank and one scale for all linears. R rank; A is [R, in], B [out, R].
#include <algorithm>
#include <cmath>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/adapter_tensors.h"
#include "lora_train/lora/merge.h"
#include "lora_train/lora/usage_section.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/run_names.h"
#include "merge_math.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kEndA = ".lora_A.weight", kEndB = ".lora_B.weight";

std::string tensor_name(const std::string& path, std::string_view end) {
  return std::string(kPrefix) + path + std::string(end);
}

/// The module paths of the linears in the file, sorted: "model.layers.0.self_attn.q_proj".
std::vector<std::string> linear_paths(const storage::WeightFiles& file) {
  std::set<std::string> paths;
  for (const auto& [name, entry] : file.entries()) {
    const bool is_pair = entry.name.starts_with(kPrefix) &&
                         (entry.name.ends_with(kEndA) || entry.name.ends_with(kEndB)) &&
                         entry.name.size() > kPrefix.size() + kEndA.size() && entry.shape.size() == 2;
    if (!is_pair) {
      throw FormatError(file.where(entry), "is {}, not a LoRA matrix of a linear; it would be ignored",
                        storage::describe(entry));
    }
    paths.insert(entry.name.substr(kPrefix.size(), entry.name.size() - kPrefix.size() - kEndA.size()));
  }
  if (paths.empty()) throw FormatError(file.files().front().path().string(), "holds no tensors");
  return {paths.begin(), paths.end()};
}

/// The size of the matrix along `axis`, the non-rank side.
std::int64_t other_size(const storage::WeightFiles& file, const std::string& name, std::size_t axis) {
  const storage::TensorEntry* entry = file.find(name);
  return entry == nullptr ? 0 : entry->shape[axis];  // open_adapter_tensors reports missing tensors
}

/// The adapter to rewrite, with checked tensors.
struct AdapterSource {
  AdapterConfig config;
  std::vector<std::string> paths;     ///< to the linears
  std::vector<RankAndScale> linears;  ///< for each path
  storage::WeightFiles file;
};

AdapterSource open_adapter_source(const fs::path& folder) {
  AdapterConfig config = read_adapter_config(folder);
  if (!config.token_rows.empty()) {
    throw FormatError((folder / storage::kAdapterConfigFile).string() + ": trainable_token_indices",
                      "servers that need --portable do not support trained token rows either: merge the adapter into "
                      "the model instead (lora-train merge --model)");
  }
  const storage::WeightFiles file = open_adapter_file(folder);
  std::vector<std::string> paths = linear_paths(file);
  std::vector<RankAndScale> linears = ranks_and_scales(config, paths);
  std::vector<model::Parameter> expected;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string a = model::text_class_name(tensor_name(paths[i], kEndA));
    const std::string b = model::text_class_name(tensor_name(paths[i], kEndB));
    expected.push_back({a, {linears[i].rank, other_size(file, a, 1)}});
    expected.push_back({b, {other_size(file, b, 0), linears[i].rank}});
  }
  return {std::move(config), std::move(paths), std::move(linears), open_adapter_tensors(folder, expected)};
}

/// True if lora_alpha / r can be this scale with a whole lora_alpha.
bool has_whole_alpha(std::int64_t rank, double scale) {
  const double alpha = scale * static_cast<double>(rank);
  return std::floor(alpha) == alpha && alpha / static_cast<double>(rank) == scale;
}

/// The values of a matrix, kept alive until they are written.
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

/// Throws FormatError for NaN and infinity.
Matrix read_matrix(const storage::WeightFiles& file, const std::string& name) {
  const storage::TensorEntry& entry = *file.find(model::text_class_name(name));
  Matrix matrix{read_floats(file.bytes(entry), entry.dtype), entry.shape[0], entry.shape[1]};
  if (!all_finite(matrix.values)) refuse_non_finite(file, entry);
  return matrix;
}

/// A of a linear, with zero rows up to `rank`.
Matrix padded_a(const AdapterSource& source, std::size_t index, std::int64_t rank) {
  Matrix a = read_matrix(source.file, tensor_name(source.paths[index], kEndA));
  a.values.resize(static_cast<std::size_t>(rank * a.num_columns), 0);
  a.num_rows = rank;
  return a;
}

/// B of a linear for this scale, with zero columns up to `rank`. Throws NumericError beyond F32.
Matrix padded_b(const AdapterSource& source, std::size_t index, std::int64_t rank, double scale) {
  const std::string name = tensor_name(source.paths[index], kEndB);
  Matrix b = read_matrix(source.file, name);
  const double factor = source.linears[index].scale / scale;
  for (float& value : b.values) value = static_cast<float>(value * factor);
  if (!all_finite(b.values)) {
    throw NumericError(name, "times its scale is beyond what F32 can hold; lower lora_alpha in adapter_config.json");
  }
  std::vector<float> padded(static_cast<std::size_t>(b.num_rows * rank), 0);
  for (std::int64_t row = 0; row < b.num_rows; ++row) {
    const auto from = b.values.begin() + row * b.num_columns;
    std::copy(from, from + b.num_columns, padded.begin() + row * rank);
  }
  return {std::move(padded), b.num_rows, rank};
}

std::string portable_config(const AdapterSource& source, const PortableResult& result) {
  AdapterConfig config = source.config;
  config.lora_r = result.rank;
  config.lora_alpha = result.alpha;
  config.use_rslora = false;
  config.rank_pattern.clear();
  config.alpha_pattern.clear();
  // The targets named in the file; for a regex, and with some left out, the linears of the file.
  const bool has_all = !config.layers && config.excluded == LoraTargets{LoraTargets::Kind::kList, {}, {}};
  if (config.lora_target_modules.names.empty() || !has_all) {
    config.lora_target_modules = {LoraTargets::Kind::kList, source.paths, ""};
  }
  return adapter_config_json(config);
}

void add_other_files(const PortableRequest& request, const AdapterSource& source, const PortableResult& result,
                     std::vector<storage::FileToWrite>& files) {
  for (const auto& name : storage::companion_files(request.adapter)) {
    if (name != storage::kAdapterConfigFile) files.push_back(storage::copy_of(request.adapter / name));
  }
  if (!fs::exists(request.adapter / storage::kCardFile)) return;
  storage::FileToWrite card = storage::copy_of(request.adapter / storage::kCardFile);
  card.text = with_usage_section(card.text, {source.config.base_model_name_or_path, request.output_dir.string(),
                                             result.rank, true, false, source.config.base_class});
  files.push_back(std::move(card));
}

}  // namespace

PortableResult make_portable(const PortableRequest& request) {
  const AdapterSource source = open_adapter_source(request.adapter);
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kAdapter, {request.adapter}, request.overwrite);
  PortableResult result{.folder = output.path(), .num_linears = std::ssize(source.linears)};
  for (const auto& linear : source.linears) result.rank = std::max(result.rank, linear.rank);
  const double first = source.linears.front().scale;
  const bool is_one_scale =
      std::ranges::all_of(source.linears, [&](const auto& linear) { return linear.scale == first; });
  const double scale = is_one_scale && has_whole_alpha(result.rank, first) ? first : 1;
  result.alpha = scale * static_cast<double>(result.rank);
  std::vector<Matrix> matrices;
  for (std::size_t i = 0; i < source.paths.size(); ++i) {
    result.num_padded += source.linears[i].rank < result.rank ? 1 : 0;
    result.num_rescaled += source.linears[i].scale != scale ? 1 : 0;
    matrices.push_back(padded_a(source, i, result.rank));
    matrices.push_back(padded_b(source, i, result.rank, scale));
  }
  std::vector<storage::TensorToWrite> tensors;
  for (std::size_t i = 0; i < source.paths.size(); ++i) {
    tensors.push_back(matrices[2 * i].to_write(tensor_name(source.paths[i], kEndA)));
    tensors.push_back(matrices[2 * i + 1].to_write(tensor_name(source.paths[i], kEndB)));
  }
  std::vector<storage::FileToWrite> files = {{storage::kAdapterFile, "", std::move(tensors)},
                                             {storage::kAdapterConfigFile, portable_config(source, result)}};
  add_other_files(request, source, result, files);
  output.write(files);
  output.commit();
  return result;
}

}  // namespace lora_train::lora
