#include "inference.h"

#include <algorithm>

#include "lora_train/model/activation_plan.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::evaluate {
namespace {

constexpr std::int64_t kSequencesOnGpu = 64;

lora::ModelFiles files_for_inference(const ModelSection& section) {
  lora::ModelFiles files;
  files.resolved = storage::resolve_model(section.path);
  files.config = model::read_model_config(files.resolved.folder);
  files.base = plan::base_storage(section, files.config, storage::open_model_weights(files.resolved.folder));
  return files;
}

/// The limits of a generator on this device now: half of a GPU's free memory for its cache.
generate::GeneratorLimits generator_limits(const plan::RunDevice& device, const RunSection& run) {
  generate::GeneratorLimits limits;
  limits.use_graphs = run.cuda_graphs != CudaGraphs::kOff;
  if (device.is_cuda()) {
    limits.max_sequences = kSequencesOnGpu;
    limits.cache_bytes = plan::device_room(device).free / 2;
  }
  return limits;
}

}  // namespace

void load_without_plan(const Profile& profile, const plan::RunDevice& device, const lora::ModelFiles& files,
                       const plan::AdapterSetup& adapters, plan::LoadOptions options, plan::LoadedModel& loaded) {
  const std::int64_t free = device.is_cuda() ? plan::device_room(device).free : report::available_host_memory();
  const model::ModelShape shape = model::model_shape(files.config, adapters.specs, adapters.columns);
  const std::int64_t fitting = model::choose_decoded_layers(
      files.config, shape, plan::compute_bytes(profile.model.precision), files.base, free / 2);
  options.decoded_layers = profile.model.decoded_layers.value_or(fitting);
  const bool is_bf16 =
      options.keeps_bf16 && model::has_bf16_matrices(files.config, storage::open_model_weights(files.resolved.folder));
  const auto plan_with = [&](const Profile& other, const model::BaseStorage& base) {
    const std::int64_t bytes = is_bf16 && base.empty() ? 2 : plan::compute_bytes(other.model.precision);
    const std::int64_t decoded_layers = other.model.decoded_layers.value_or(0);
    return plan::MemoryPlan{.weights = model::weight_bytes(files.config, shape, bytes, base, decoded_layers)};
  };
  if (!device.is_cuda()) plan::require_host_memory(profile, files.config, files.base, free, 0, plan_with);
  plan::load_model(profile, device, files, adapters, options, loaded);
}

InferenceModel load_for_inference(const GenerateRequest& request, std::int64_t max_seq_len,
                                  const std::shared_ptr<ranks::Communicator>& ranks) {
  Profile profile = request.profile;
  lora::ModelFiles files = files_for_inference(profile.model);
  plan::AdapterSetup adapters;
  if (!request.several.empty()) {
    adapters = plan::adapters_of_folders(request.several, files);
  } else if (!request.adapter.empty()) {
    lora::token_rows_of(lora::read_adapter_config(request.adapter), request.adapter, files.config);
    adapters = plan::adapters_of_folder(request.adapter, files);
    profile.adapter.init_adapter = request.adapter.string();
  }
  InferenceModel loaded;
  loaded.device = plan::start_device(profile, files.config, request.world, ranks);
  load_without_plan(profile, loaded.device, files, adapters, {.max_seq_len = max_seq_len, .keeps_bf16 = true},
                    loaded.model);
  return loaded;
}

std::int64_t generator_bytes(const Profile& profile, const model::ModelConfig& config, std::int64_t longest) {
  const generate::GeneratorLimits limits;
  const std::int64_t most_rows = std::max(kSequencesOnGpu, limits.max_pass_tokens);
  const model::ActivationPlan activations =
      model::plan_activations(model::model_shape(config, {}), {.max_tokens = most_rows, .needs_backward = false}, {});
  const at::ScalarType dtype = plan::compute_dtype(profile.model.precision);
  const std::int64_t cache = longest * generate::cache_bytes_per_token(config, dtype) +
                             (kSequencesOnGpu + 1) * generate::state_bytes(config, dtype);
  constexpr std::int64_t kCopies = 2;  // logits: while choosing tokens, and in captured graphs
  const std::int64_t logits = kCopies * kSequencesOnGpu * config.vocab_size * static_cast<std::int64_t>(sizeof(float));
  return cache + logits + activations.bytes(plan::compute_bytes(profile.model.precision));
}

std::unique_ptr<generate::Generator> make_generator(const plan::RunDevice& device, const plan::LoadedModel& model,
                                                    const RunSection& run) {
  return std::make_unique<generate::Generator>(model.decoder->config, model.decoder->shape, *model.weights,
                                               generator_limits(device, run),
                                               plan::attention_backend(run.attn_implementation));
}

}  // namespace lora_train::evaluate
