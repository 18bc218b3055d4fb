#include "lora_train/plan/setup/setup.h"

#include <algorithm>
#include <filesystem>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::plan {

at::ScalarType compute_dtype(Precision precision) { return precision == Precision::kFp32 ? at::kFloat : at::kBFloat16; }

std::int64_t compute_bytes(Precision precision) {
  return static_cast<std::int64_t>(c10::elementSize(compute_dtype(precision)));
}

std::vector<model::Recompute> recompute_modes(GradientCheckpointing mode) {
  switch (mode) {
    case GradientCheckpointing::kOff: return {model::Recompute::kOff};
    case GradientCheckpointing::kCheap: return {model::Recompute::kCheap};
    case GradientCheckpointing::kGateUp: return {model::Recompute::kGateUp};
    case GradientCheckpointing::kFull: return {model::Recompute::kFull};
    case GradientCheckpointing::kAuto: break;
  }
  return {model::Recompute::kOff, model::Recompute::kCheap, model::Recompute::kGateUp, model::Recompute::kFull};
}

kernels::AttentionBackend attention_backend(AttnImplementation implementation) {
  switch (implementation) {
    case AttnImplementation::kFa2: return kernels::AttentionBackend::kFa2;
    case AttnImplementation::kCudnn: return kernels::AttentionBackend::kCudnn;
    case AttnImplementation::kReference: return kernels::AttentionBackend::kReference;
    case AttnImplementation::kAuto: break;
  }
  return kernels::AttentionBackend::kAuto;
}

model::TrainedWeights trained_weights(const Profile& profile) {
  return profile.adapter.kind == AdapterKind::kNone ? model::TrainedWeights::kAll : model::TrainedWeights::kNone;
}

std::string ignored_double_quant(const Profile& profile, const lora::ModelFiles& files) {
  const bool requested = profile.model.double_quant;
  const auto is_other = [&](const auto& linear) {
    return linear.second.format == model::LinearFormat::k4Bit && (linear.second.nested_block_size > 0) != requested;
  };
  if (!profile.is_given("double_quant") || std::none_of(files.base.begin(), files.base.end(), is_other)) return {};
  return fmt::format("double_quant: {} has no effect: {} is already quantised, with scales in {}, and stays that way",
                     requested ? "true" : "false", files.resolved.folder.string(), requested ? "fp32" : "8 bits");
}

data::DataContext data_context(const Profile& profile, const lora::ModelFiles& files) {
  return {.tokenizer = files.tokenizer.get(),
          .chat_template = files.chat_template.get(),
          .vocab_size = files.config.vocab_size,
          .max_position_embeddings = files.config.context_length(),
          .seed = profile.run.seed,
          .cache_folder = data::token_cache_folder(profile.data),
          .reads_soft_labels = profile.objective.loss_type == LossType::kKl,
          .model_folder = files.resolved.folder};
}

namespace {

/// Sets the rows of the adapter in `folder` (if any), then the profile's new ones.
void set_token_rows(const std::filesystem::path& folder, const lora::ModelFiles& files, AdapterSetup& setup) {
  model::ModelConfig config = files.config;  // has room for all of them
  model::TokenRows& rows = setup.config.token_rows;
  rows = lora::token_rows_of(setup.config, folder, config);
  for (const data::NewRow& row : files.new_rows) {
    rows.embedding.push_back(row.id);
    if (!config.tie_word_embeddings) rows.head.push_back(row.id);
  }
}

/// Sets the rows of new tokens in a matrix [V, D] as token_init says.
void init_rows(const std::vector<data::NewRow>& rows, TokenInit init, const at::Tensor& matrix, at::Tensor values) {
  if (rows.empty()) return;
  if (init == TokenInit::kZeros) return void(values.zero_());
  if (init == TokenInit::kMean) return void(values.copy_(model::mean_of_rows(matrix.narrow(0, 0, rows.front().id))));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor ids = at::tensor(at::ArrayRef<std::int32_t>(rows[i].from), at::kInt).to(matrix.device());
    values[static_cast<std::int64_t>(i)].copy_(model::mean_of_rows(matrix.index_select(0, ids)));
  }
}

/// The same for embedding and head.
void init_new_rows(const Profile& profile, const lora::ModelFiles& files, const AdapterSetup& adapters,
                   LoadedModel& loaded) {
  const model::OuterWeights& outer = loaded.weights->acquire_outer(model::Pass::kForward);
  const auto num_new = std::ssize(files.new_rows);
  const auto init = [&](const std::vector<std::int64_t>& ids, const at::Tensor& matrix, const char* name) {
    if (ids.empty()) return;
    const at::Tensor values = loaded.parameters->value(name);
    init_rows(files.new_rows, profile.model.token_init, matrix, values.narrow(0, values.size(0) - num_new, num_new));
  };
  init(adapters.config.token_rows.embedding, outer.embedding, model::kEmbeddingRows);
  init(adapters.config.token_rows.head, outer.head, model::kHeadRows);
  loaded.weights->release_outer(model::Pass::kForward);
}

void fill_adapters(const Profile& profile, const lora::ModelFiles& files, const AdapterSetup& adapters,
                   model::Trainables& parameters) {
  for (const auto& [name, folder] : adapters.several) {
    lora::load_adapter(folder, parameters, /*num_new_rows=*/0, name);
  }
  if (!adapters.several.empty()) return;
  if (profile.adapter.init_adapter.empty()) {
    lora::init_adapter_values(static_cast<std::uint64_t>(profile.run.seed), parameters);
  } else {
    lora::load_adapter(profile.adapter.init_adapter, parameters, std::ssize(files.new_rows));
  }
}

}  // namespace

AdapterSetup choose_adapters(const Profile& profile, const lora::ModelFiles& files) {
  AdapterSetup setup{lora::choose_adapters(profile, files.config)};
  if (setup.specs.empty()) return setup;
  set_token_rows(profile.adapter.init_adapter, files, setup);
  if (!setup.config.file.empty()) lora::check_patterns(setup.config, files.config);
  lora::spell_for_class(files.config, setup.specs, setup.config);
  const std::string& hub_name = files.resolved.hub_name;
  setup.config.base_model_name_or_path = !hub_name.empty()                        ? hub_name
                                         : !profile.model.base_model_name.empty() ? profile.model.base_model_name
                                                                                  : profile.model.path;
  return setup;
}

AdapterSetup adapters_of_folder(const std::filesystem::path& folder, const lora::ModelFiles& files) {
  AdapterSetup setup;
  setup.config = lora::read_adapter_config(folder);
  setup.config.lora_dropout = 0;
  setup.specs = lora::plan_adapters(setup.config, files.config);
  lora::check_patterns(setup.config, files.config);
  set_token_rows(folder, files, setup);
  return setup;
}

AdapterSetup adapters_of_folders(const std::vector<lora::NamedAdapter>& adapters, const lora::ModelFiles& files) {
  AdapterSetup all;
  all.several = adapters;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    for (model::AdapterSpec& spec : adapters_of_folder(adapters[i].folder, files).specs) {
      spec.owner = static_cast<std::int64_t>(i);
      spec.owner_name = adapters[i].name;
      all.specs.push_back(std::move(spec));
    }
  }
  return all;
}

void assemble_model(const Profile& profile, const RunDevice& device, const lora::ModelFiles& files,
                    const AdapterSetup& adapters, const LoadOptions& request, const storage::WeightFiles* weight_files,
                    LoadedModel& loaded) {
  const model::ModelConfig& config = files.config;
  const at::ScalarType dtype = compute_dtype(profile.model.precision);
  const model::ModelShape shape =
      model::model_shape(config, adapters.specs, adapters.columns, adapters.config.token_rows);
  const auto trained = request.train_all_weights ? model::TrainedWeights::kAll : model::TrainedWeights::kNone;
  loaded.parameters =
      std::make_unique<model::Trainables>(model::make_trainables(config, shape, trained, device.device));
  const model::WeightOptions options{dtype,      device.device,          trained,
                                     files.base, request.decoded_layers, request.keeps_bf16};
  loaded.weights = std::make_unique<model::ResidentWeights>(config, shape, *loaded.parameters, options, weight_files);
  const bool trains_embedding = request.train_all_weights || !adapters.config.token_rows.embedding.empty();
  const model::FirstNeeded first = trains_embedding
                                       ? model::FirstNeeded{0, true}
                                       : model::FirstNeeded{lora::first_adapted_layer(adapters.specs), false};
  loaded.decoder = std::make_unique<model::Decoder>(
      model::make_decoder(config, shape, *loaded.weights, dtype, request.max_seq_len, first));
  loaded.decoder->attention = loaded.decoder->windowed_attention = attention_backend(profile.run.attn_implementation);
}

void load_model(const Profile& profile, const RunDevice& device, const lora::ModelFiles& files,
                const AdapterSetup& adapters, const LoadOptions& options, LoadedModel& loaded) {
  model::check_rope_supported(files.config, options.max_seq_len);
  const storage::WeightFiles weight_files = storage::open_model_weights(files.resolved.folder);
  model::log_parts_beside_text(files.config, weight_files);
  loaded.weights_fingerprint = weight_files.fingerprint();
  loaded.fingerprint = hash128_hex(hash_file(files.config.path).hash + loaded.weights_fingerprint);
  assemble_model(profile, device, files, adapters, options, &weight_files, loaded);
  if (!adapters.specs.empty()) {
    fill_adapters(profile, files, adapters, *loaded.parameters);
    init_new_rows(profile, files, adapters, loaded);
  }
  loaded.weights->refresh();
  release_unused_memory(device);
}

std::unique_ptr<model::LossHead> plan_loss_head(const model::Decoder& decoder, std::int64_t max_tokens,
                                                bool needs_backward, std::int64_t chunk_bytes, bool has_weights) {
  return std::make_unique<model::LossHead>(
      model::lm_head_of(decoder.config, decoder.weights.acquire_outer(model::Pass::kForward)),
      model::LossHeadOptions{max_tokens, needs_backward, chunk_bytes, has_weights});
}

}  // namespace lora_train::plan
