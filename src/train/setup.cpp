#include "setup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::train {
namespace {

constexpr std::int64_t kAutoMicroBatchTokens = 4096;
constexpr std::int64_t kLargestUnaskedCpuModel = 1'000'000'000;

lora::LoraOptions lora_options(const Profile& profile) {
  lora::LoraOptions options;
  options.all_linear = profile.lora_target_modules.kind == LoraTargets::Kind::kAllLinear;
  options.target_names = profile.lora_target_modules.names;
  if (profile.lora_target_modules.kind == LoraTargets::Kind::kRegex) options.target_regex = profile.lora_target_modules.regex;
  options.r = profile.lora_r;
  options.alpha = profile.lora_alpha;
  options.dropout = profile.lora_dropout;
  options.use_rslora = profile.use_rslora;
  options.rank_pattern = profile.rank_pattern;
  options.alpha_pattern = profile.alpha_pattern;
  return options;
}

/// A key that was given beside init_adapter must say what the adapter says.
void refuse_contradiction(const Profile& profile, const lora::LoraOptions& loaded) {
  const lora::LoraOptions asked = lora_options(profile);
  std::vector<std::string> wrong;
  const auto check = [&](const char* key, bool is_equal) {
    if (profile.is_given(key) && !is_equal) wrong.emplace_back(key);
  };
  check("lora_r", asked.r == loaded.r);
  check("lora_alpha", asked.alpha == loaded.alpha);
  check("use_rslora", asked.use_rslora == loaded.use_rslora);
  check("rank_pattern", asked.rank_pattern == loaded.rank_pattern);
  check("alpha_pattern", asked.alpha_pattern == loaded.alpha_pattern);
  auto sorted = [](std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    return names;
  };
  check("lora_target_modules", asked.all_linear == loaded.all_linear && asked.target_regex == loaded.target_regex &&
                                   sorted(asked.target_names) == sorted(loaded.target_names));
  if (wrong.empty()) return;
  throw ConfigError("init_adapter", "the adapter in " + profile.init_adapter + " says otherwise than the profile about " +
                                        join(wrong) + "; leave these keys out, they come with the adapter");
}

std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (std::int64_t kib = 0; file >> key >> kib >> unit;) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::int64_t{8} << 30;
}

bool has_nvidia_device() { return std::filesystem::exists("/dev/nvidia0") || std::filesystem::exists("/dev/nvidiactl"); }

}  // namespace

ModelFiles open_model(const Profile& profile) {
  ModelFiles files;
  files.resolved = storage::resolve_model(profile.model);
  const auto& folder = files.resolved.folder;
  files.config = model::read_model_config(folder);
  if (tokenizer::has_tokenizer(folder)) {
    files.tokenizer = tokenizer::Tokenizer::load(folder);
    try {
      files.chat_template = tokenizer::ChatTemplate::load(folder);
    } catch (const FormatError& error) {
      log_info(std::string("no chat template is used: ") + error.what());
    }
  }
  return files;
}

data::PreparedData load_data(const Profile& profile, const ModelFiles& files, bool need_train) {
  const data::DataLimits limits{files.config.vocab_size, files.config.max_position_embeddings};
  return data::prepare_data(data::data_options(profile), files.tokenizer.get(), files.chat_template.get(), limits, need_train);
}

void check_device(const Profile& profile, const model::ModelConfig& config) {
  if (profile.device == Device::kCpu) return;
  if (profile.device == Device::kCuda || has_nvidia_device()) {
    throw DeviceError("device", "training on CUDA is not built yet in this version; set device: cpu to train on the CPU");
  }
  const std::int64_t count = model::num_parameters(config);
  if (count > kLargestUnaskedCpuModel) {
    throw DeviceError("device", "no NVIDIA device was found and the model has " + format_count(count) +
                                    " parameters, which is slow on a CPU; set device: cpu to do it all the same");
  }
}

AdapterSetup choose_adapters(const Profile& profile, const ModelFiles& files) {
  if (profile.adapter == AdapterKind::kNone) return {};
  AdapterSetup setup;
  if (profile.init_adapter.empty()) {
    setup.config.options = lora_options(profile);
  } else {
    setup.config = lora::read_adapter_config(profile.init_adapter);
    refuse_contradiction(profile, setup.config.options);
    setup.config.options.dropout = profile.lora_dropout;
  }
  setup.specs = lora::plan_adapters(setup.config.options, files.config);
  const std::string& hub_name = files.resolved.hub_name;
  setup.config.base_model_name_or_path =
      !hub_name.empty() ? hub_name : !profile.base_model_name.empty() ? profile.base_model_name : profile.model;
  return setup;
}

AdapterSetup adapters_of_folder(const std::filesystem::path& folder, const ModelFiles& files) {
  AdapterSetup setup;
  setup.config = lora::read_adapter_config(folder);
  setup.config.options.dropout = 0;
  setup.specs = lora::plan_adapters(setup.config.options, files.config);
  return setup;
}

LoadedModel load_model(const Profile& profile, const ModelFiles& files, const AdapterSetup& adapters,
                       bool train_all_weights, std::int64_t max_seq_len) {
  const at::ScalarType dtype = profile.precision == Precision::kFp32 ? at::kFloat : at::kBFloat16;
  const auto base = profile.base_precision == BasePrecision::kFp32 ? at::kFloat : at::kBFloat16;
  if (profile.is_given("base_precision") && base != dtype) {
    throw ConfigError("base_precision", "a base in another precision than the computation is not built yet; set precision and "
                                        "base_precision to the same value or leave base_precision out");
  }
  const storage::WeightFiles weight_files = storage::open_model_weights(files.resolved.folder);
  model::check_weights(files.config, weight_files);
  LoadedModel loaded;
  loaded.weights = std::make_unique<model::ResidentWeights>(
      files.config, weight_files, dtype, adapters.specs,
      train_all_weights ? model::TrainedWeights::kAll : model::TrainedWeights::kNone);
  if (!adapters.specs.empty()) {
    if (profile.init_adapter.empty()) {
      lora::init_adapter_values(adapters.specs, static_cast<std::uint64_t>(profile.seed), loaded.weights->parameters());
    } else {
      lora::load_adapter(profile.init_adapter, adapters.specs, loaded.weights->parameters());
    }
  }
  loaded.weights->refresh();
  const model::FirstNeeded first = train_all_weights ? model::FirstNeeded{0, true}
                                                     : model::FirstNeeded{lora::first_adapted_layer(adapters.specs), false};
  loaded.decoder = std::make_unique<model::Decoder>(
      model::make_decoder(files.config, *loaded.weights, dtype, max_seq_len, first));
  return loaded;
}

BatchSizes resolve_batch_sizes(const Profile& profile, std::int64_t max_seq_len) {
  const std::int64_t fitting = std::max<std::int64_t>(1, kAutoMicroBatchTokens / max_seq_len);
  BatchSizes sizes;
  if (profile.gradient_accumulation_steps) {
    sizes.micro = profile.micro_batch_size.value_or(fitting);
    sizes.global = sizes.micro * *profile.gradient_accumulation_steps;
    return sizes;
  }
  sizes.global = profile.global_batch_size.value_or(1);
  if (profile.micro_batch_size) {
    sizes.micro = std::min(*profile.micro_batch_size, sizes.global);
    return sizes;
  }
  sizes.micro = std::min(fitting, sizes.global);
  while (sizes.global % sizes.micro != 0) --sizes.micro;
  return sizes;
}

std::unique_ptr<model::Activations> plan_activations(const Profile& profile, const model::Decoder& decoder,
                                                     std::int64_t max_tokens, bool needs_backward) {
  model::ActivationShape shape;
  shape.max_tokens = max_tokens;
  shape.dtype = decoder.dtype;
  shape.needs_backward = needs_backward;
  shape.has_dropout = profile.lora_dropout > 0;
  model::Recompute mode = model::Recompute::kOff;
  switch (profile.gradient_checkpointing) {
    case GradientCheckpointing::kOff: break;
    case GradientCheckpointing::kCheap: mode = model::Recompute::kCheap; break;
    case GradientCheckpointing::kFull: mode = model::Recompute::kFull; break;
    case GradientCheckpointing::kAuto:
      mode = model::choose_recompute(decoder.config, decoder.weights, shape, available_memory() / 2);
      break;
  }
  const std::vector<model::Recompute> modes(static_cast<std::size_t>(decoder.config.num_layers), mode);
  return std::make_unique<model::Activations>(decoder.config, decoder.weights, shape, modes);
}

data::PlanOptions plan_options(const Profile& profile, const BatchSizes& sizes, std::int64_t max_seq_len) {
  data::PlanOptions options;
  options.max_seq_len = max_seq_len;
  options.packing = profile.packing;
  options.shuffle = profile.shuffle;
  options.seed = static_cast<std::uint64_t>(profile.seed);
  options.global_batch_size = sizes.global;
  options.micro_batch_size = sizes.micro;
  options.num_epochs = profile.num_epochs;
  options.max_steps = profile.max_steps;
  return options;
}

}  // namespace lora_train::train
