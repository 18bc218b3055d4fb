#include <cmath>

#include "adapter_names.h"
#include "lora_train/base/file.h"
#include "lora_train/lora/merge.h"
#include "lora_train/lora/usage_section.h"
#include "lora_train/storage/output_folder.h"
#include "uniform_adapter.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;

/// Whether lora_alpha / r can be this scale with a whole lora_alpha.
bool has_whole_alpha(std::int64_t rank, double scale) {
  const double alpha = scale * static_cast<double>(rank);
  return std::floor(alpha) == alpha && alpha / static_cast<double>(rank) == scale;
}

/// The targets that the file names; for a regex, the linears that it matched.
std::vector<std::string> target_names(const AdapterSource& source) {
  const std::vector<std::string>& names = source.config.options.lora_target_modules.names;
  return names.empty() ? source.paths : names;
}

std::string portable_config(const AdapterSource& source, const PortableResult& result) {
  AdapterConfig config = source.config;
  config.options.lora_r = result.rank;
  config.options.lora_alpha = result.alpha;
  config.options.use_rslora = false;
  config.options.rank_pattern.clear();
  config.options.alpha_pattern.clear();
  return adapter_config_json(config, target_names(source));
}

void add_other_files(const PortableRequest& request, const AdapterSource& source, const PortableResult& result,
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
  const AdapterSource source = open_adapter_source(
      request.adapter,
      "servers that need --portable do not support trained token rows either: merge the adapter into the model instead "
      "(lora-train merge --model)");
  PortableResult result;
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kAdapter, {request.adapter}, request.overwrite);
  const UniformScale uniform = uniform_scale(source, has_whole_alpha);
  result.folder = output.path();
  result.num_linears = static_cast<std::int64_t>(source.paths.size());
  result.num_padded = uniform.num_padded;
  result.num_rescaled = uniform.num_rescaled;
  result.rank = uniform.rank;
  result.alpha = uniform.scale * static_cast<double>(uniform.rank);
  std::vector<UniformPair> pairs;
  for (std::size_t i = 0; i < source.paths.size(); ++i) pairs.push_back(uniform_pair(source, i, uniform));
  std::vector<storage::TensorToWrite> tensors;
  for (std::size_t i = 0; i < source.paths.size(); ++i) {
    tensors.push_back(pairs[i].a.to_write(tensor_name_a(source.paths[i])));
    tensors.push_back(pairs[i].b.to_write(tensor_name_b(source.paths[i])));
  }
  std::vector<storage::FileToWrite> files = {{kTensorFile, "", std::move(tensors)},
                                             {kConfigFile, portable_config(source, result)}};
  add_other_files(request, source, result, files);
  output.write(files);
  output.commit();
  return result;
}

}  // namespace lora_train::lora
