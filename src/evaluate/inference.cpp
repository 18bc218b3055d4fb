#include "inference.h"

#include "lora_train/metrics/host_memory.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::evaluate {

void load_without_plan(const Profile& profile, const runtime::RunDevice& device, const runtime::ModelFiles& files,
                       const runtime::AdapterSetup& adapters, std::int64_t max_seq_len, runtime::LoadedModel& loaded) {
  const std::int64_t free = device.is_cuda() ? runtime::device_room(device).free : metrics::available_host_memory();
  const model::ModelShape shape = model::model_shape(files.config, adapters.specs, adapters.columns);
  const std::int64_t fitting = model::choose_decoded_layers(
      files.config, shape, runtime::compute_bytes(profile.model.precision), files.base, free / 2);
  runtime::load_model(profile, device, files, adapters,
                      {false, max_seq_len, profile.model.decoded_layers.value_or(fitting)}, loaded);
}

InferenceModel load_for_inference(const Profile& requested, const std::filesystem::path& adapter,
                                  std::int64_t max_seq_len) {
  Profile profile = requested;
  runtime::ModelFiles files;
  files.resolved = storage::resolve_model(profile.model.path);
  files.config = model::read_model_config(files.resolved.folder);
  files.base = runtime::base_storage(profile.model, files.config, storage::open_model_weights(files.resolved.folder));
  runtime::AdapterSetup adapters;
  if (!adapter.empty()) {
    lora::token_rows_of(lora::read_adapter_config(adapter), adapter, files.config);
    adapters = runtime::adapters_of_folder(adapter, files);
    profile.adapter.init_adapter = adapter.string();
  }
  InferenceModel loaded;
  loaded.device = runtime::start_device(profile, files.config);
  load_without_plan(profile, loaded.device, files, adapters, max_seq_len, loaded.model);
  return loaded;
}

std::unique_ptr<generate::Generator> make_generator(const InferenceModel& model, const RunSection& run) {
  constexpr std::int64_t kSequencesOnGpu = 64;
  generate::GeneratorLimits limits;
  limits.use_graphs = run.cuda_graphs != CudaGraphs::kOff;
  if (model.device.is_cuda()) {
    limits.max_sequences = kSequencesOnGpu;
    limits.cache_bytes = runtime::device_room(model.device).free / 2;
  }
  return std::make_unique<generate::Generator>(model.model.decoder->config, model.model.decoder->shape,
                                               *model.model.weights, limits,
                                               runtime::attention_backend(run.attn_implementation));
}

}  // namespace lora_train::evaluate
