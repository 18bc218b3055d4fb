#include "result_folder.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "evaluation_schedule.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/version.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/adapter_file.h"
#include "lora_train/lora/adapter_tensors.h"
#include "lora_train/lora/usage_section.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/run/background_saver.h"
#include "lora_train/run_folder/output_folder.h"
#include "lora_train/storage/atomic_folder.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::run {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemplateFile = "chat_template.jinja";

using Files = std::vector<storage::FileToWrite>;

void copy_if_there(const fs::path& source, Files& files) {
  if (fs::exists(source)) files.push_back({source.filename().string(), read_file(source)});
}

/// The model's generation_config.json with `end_of_turn` as the first end token. Without that file, Hugging Face takes
/// the end tokens from config.json; the file is written if they lack `end_of_turn`.
void add_generation_config(const lora::ModelFiles& model, std::optional<std::int32_t> end_of_turn, Files& files) {
  const fs::path source = model.resolved.folder / storage::kGenerationFile;
  if (!end_of_turn) return copy_if_there(source, files);
  std::vector<std::int64_t> ends = model.config.eos_token_ids;
  auto config = nlohmann::ordered_json::object();
  if (fs::exists(source)) {
    config = nlohmann::ordered_json::parse(read_file(source));
    const auto named = config.value("eos_token_id", nlohmann::ordered_json());
    ends = named.is_number()  ? std::vector{named.get<std::int64_t>()}
           : named.is_array() ? named.get<std::vector<std::int64_t>>()
                              : std::vector<std::int64_t>{};
  }
  if (std::ranges::count(ends, *end_of_turn) > 0) return copy_if_there(source, files);
  ends.insert(ends.begin(), *end_of_turn);
  config["eos_token_id"] = ends;
  files.push_back({storage::kGenerationFile, config.dump(2) + "\n"});
}

/// Adds the tokenizer, the chat template used in training, and generation_config.json, which names the end tokens.
void add_tokenizer(const lora::ModelFiles& model, std::optional<std::int32_t> end_of_turn, Files& files) {
  static const std::map<std::string, std::string> kNone;
  const auto& changed = model.tokenizer ? model.tokenizer->changed_files() : kNone;
  for (const auto& [name, text] : changed) {
    if (!text.empty()) files.push_back({name, text});
  }
  for (const char* name : storage::kTokenizerFiles) {
    const bool is_template_of_run = name == kTemplateFile && model.chat_template;
    if (!is_template_of_run && !changed.contains(name)) copy_if_there(model.tokenizer_folder / name, files);
  }
  add_generation_config(model, end_of_turn, files);
  if (!model.chat_template) return;
  files.push_back({std::string(kTemplateFile), model.chat_template->source()});
  const tokenizer::ChatTemplate& for_tools = model.chat_template->for_tools();
  if (&for_tools != model.chat_template.get()) storage::add_tool_template(for_tools.source(), files);
}

std::string model_card(const Run& run, const run_folder::TrainState& state) {
  const RunSection& section = run.profile().run;
  const lora::ModelFiles& model = run.files;
  const plan::AdapterSetup& adapters = run.adapters;
  const std::string& base = adapters.config.base_model_name_or_path;
  std::string card = fmt::format("{}tags: [lora, lora-train]\n---\n\n# {}\n\nTrained with lora-train {}: {}, r {}.\n",
                                 lora::card_head(base, "peft"),
                                 lora::one_line(run_folder::run_name(section) + ": LoRA adapter for " + base),
                                 version(), count_of(state.step, "step"), adapters.config.lora_r);
  if (state.eval_loss) card += fmt::format("Loss on held-out data: {:f}.\n", *state.eval_loss);
  if (!model.base.empty()) card += "The base was quantised during training: " + model::describe(model.base) + ".\n";
  const lora::AdapterConfig& config = adapters.config;
  lora::AdapterUse use{base, section.output_dir + "/adapter", 0,
                       !config.use_rslora && config.rank_pattern.empty() && config.alpha_pattern.empty()};
  use.has_token_rows = !config.token_rows.empty();
  use.base_class = config.base_class;
  if (model.config.added_rows > 0) use.vocab_size = model.config.vocab_size;
  for (const auto& spec : adapters.specs) use.largest_rank = std::max(use.largest_rank, spec.rank);
  card += "\n";
  card += lora::usage_section(use);
  return card;
}

/// Gives trained weights their names in the files of the base, and adds the towers that stand beside the text there.
void complete_wrapper(const fs::path& base, std::vector<storage::TensorToWrite>& tensors) {
  const auto files = std::make_shared<const storage::WeightFiles>(storage::open_model_weights(base));
  for (storage::TensorToWrite& tensor : tensors) tensor.name = files->find(tensor.name)->name;
  for (const auto& [name, entry] : files->entries()) {
    if (storage::part_beside_text(entry.name).empty()) continue;
    tensors.push_back({entry.name, entry.dtype, entry.shape, {}, [files, at = &entry] { return files->bytes(*at); }});
  }
}

/// The weights of full fine-tuning in save_dtype, and a config.json that names this dtype.
Files full_model(const Run& run, const model::Trainables& parameters) {
  const bool as_bf16 = run.profile().run.save_dtype == Precision::kBf16;
  std::vector<storage::TensorToWrite> tensors =
      model::values_to_write(parameters, as_bf16 ? at::kBFloat16 : at::kFloat);
  if (run.files.config.is_in_wrapper()) complete_wrapper(run.files.resolved.folder, tensors);
  auto config = nlohmann::ordered_json::parse(read_file(run.files.config.path));
  config.erase("torch_dtype");
  config["dtype"] = as_bf16 ? "bfloat16" : "float32";
  Files files = {{storage::kWeightsFile, "", std::move(tensors)},
                 {storage::kConfigFile, model::with_own_head(run.files.config, config.dump(2) + "\n")}};
  for (const char* name : storage::kProcessorFiles) copy_if_there(run.files.resolved.folder / name, files);
  return files;
}

Files adapter(const Run& run, const model::Trainables& parameters, const run_folder::TrainState& state) {
  Files files = lora::adapter_files(run.adapters.config, parameters, run.profile().run.save_dtype);
  files.push_back({storage::kCardFile, model_card(run, state)});
  return files;
}

/// Reads the new tokens and their rows back from the folder: nothing else would notice a row under the wrong id before
/// the adapter is used.
void check_new_tokens(const fs::path& folder, const Run& run, const model::Trainables& parameters) {
  const lora::ModelFiles& model = run.files;
  const model::TokenRows& token_rows = run.adapters.config.token_rows;
  if (model.new_rows.empty()) return;
  const auto fail = [&](const std::string& what) {
    throw FormatError(folder.string(), "was read back after writing, and {} differs from what was written", what);
  };
  const auto tokenizer = tokenizer::Tokenizer::load(folder);
  for (const data::NewRow& row : model.new_rows) {
    const std::string token = model.tokenizer->id_to_token(row.id);
    if (tokenizer->token_to_id(token) != row.id) fail("the id of " + token);
  }
  if (lora::read_adapter_config(folder).token_rows != token_rows) fail("trainable_token_indices");
  const auto type = run.profile().run.save_dtype == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
  const storage::WeightFiles file = lora::open_adapter_file(folder);
  for (const auto& tensor : model::token_row_tensors(token_rows, model.config.hidden_size)) {
    const storage::TensorEntry* entry = file.find(tensor.name);
    const at::Tensor written = parameters.value(tensor.name).to(type), read = at::empty_like(written);
    if (entry == nullptr || at::IntArrayRef(entry->shape) != written.sizes()) fail(tensor.name);
    model::copy_elements(*entry, file.bytes(*entry), tensor.name, read);
    if (!at::equal(read, written)) fail(tensor.name);
  }
}

std::int64_t disk_bytes(const Files& files) {
  std::int64_t bytes = 0;
  for (const auto& [name, text, tensors] : files) {
    const std::size_t size = tensors.empty() ? text.size() : storage::SafetensorsLayout(tensors).num_bytes();
    bytes += round_up(static_cast<std::int64_t>(size), 4096);  // a block of most file systems
  }
  return bytes;
}

DiskNeed disk_need(const Run& run, bool overwrites) {
  const RunSection& section = run.profile().run;
  const SavedParts parts = run.saved_parts();
  Files checkpoint = checkpoint_files(parts.adapter, parts.parameters, parts.optimizer), result(1);
  for (const char* name : {storage::kStateFile, storage::kManifestFile, storage::kProfileFile})
    checkpoint.push_back({name, "{}"});
  if (parts.adapter == nullptr && run.files.config.is_in_wrapper())
    complete_wrapper(run.files.resolved.folder, result.front().tensors);
  add_tokenizer(run.files, run.data.stop_token_id, result);
  const std::int64_t weights = parts.parameters.size() * plan::compute_bytes(section.save_dtype);
  const std::int64_t existing = overwrites ? 0 : std::ssize(run_folder::list(section.output_dir));
  const std::int64_t last = run.plan->total_steps(), left = last - run.state.step;
  const std::int64_t kept = section.save_total_limit.value_or(last) + (section.load_best_model_at_end ? 1 : 0);
  const DueSteps due(section.save_steps, *run.plan);
  std::int64_t saves = section.save_total_limit && section.save_interval ? left : std::min<std::int64_t>(left, 1);
  for (std::int64_t step = run.state.step + 1; step < last && saves < left; ++step) saves += due.is_due(step) ? 1 : 0;
  return {disk_bytes(checkpoint), disk_bytes(result) + weights,
          std::min(saves, std::max<std::int64_t>(1, kept + 1 - existing)), overwrites || existing >= kept};
}

}  // namespace

std::string check_disk_space(const fs::path& output_dir, const DiskNeed& need, std::int64_t free) {
  const std::int64_t one = need.num_checkpoints > 0 ? need.checkpoint : 0;
  const std::int64_t most = need.num_checkpoints * need.checkpoint + need.result;
  if (free < (need.makes_room ? std::max(one, need.result) : one + need.result)) {
    throw IoError(output_dir.string(),
                  "not even one checkpoint ({}) and the result ({}) fit on this disk, of which {} are free. Free some "
                  "space, or choose an output_dir on a larger disk: {}",
                  format_bytes(one), format_bytes(need.result), format_bytes(free), std::strerror(ENOSPC));
  }
  if (free >= most) return {};
  return fmt::format(
      "{}: the run will write up to {} ({} of {}, the one being written included, and the result, {}), but only {} are "
      "free. Free some space, or lower save_total_limit",
      output_dir.string(), format_bytes(most), count_of(need.num_checkpoints, "checkpoint"),
      format_bytes(need.checkpoint), format_bytes(need.result), format_bytes(free));
}

void check_disk_space(const Run& run, bool overwrites) {
  fs::path folder = fs::absolute(run.profile().run.output_dir);
  while (!fs::exists(folder) && folder.has_relative_path()) folder = folder.parent_path();  // a dry run creates none
  const fs::space_info space = fs::space(folder);
  if (space.capacity == 0) return;  // some network file systems do not say it
  const std::string warning = check_disk_space(run.profile().run.output_dir, disk_need(run, overwrites),
                                               static_cast<std::int64_t>(space.available));
  if (!warning.empty()) log_warning(warning);
}

void write_result(const Run& run, report::RunSummary& summary) {
  const RunSection& section = run.profile().run;
  const bool takes_best = section.load_best_model_at_end && run.state.best_step;
  const std::int64_t step = takes_best ? *run.state.best_step : run.state.step;
  const bool is_earlier = step != run.state.step;
  const model::Trainables& own = *run.model.parameters;
  model::Trainables parameters = is_earlier || run.device.is_cuda() ? own.host_copy() : own;
  run_folder::TrainState state = run.state;
  if (is_earlier) {
    const fs::path best = fs::path(section.output_dir) / storage::checkpoint_name(step);
    if (const std::string problem = run_folder::verify(best); !problem.empty()) refuse_best_checkpoint(best, problem);
    load_checkpoint_parameters(best, !run.adapters.specs.empty(), parameters);
    state = run_folder::describe(best).state;
    log_info("the result is from step {}, the best of {}", step, section.metric_for_best_model);
  }
  const bool is_model = run.adapters.specs.empty();
  Files files = is_model ? full_model(run, parameters) : adapter(run, parameters, state);
  add_tokenizer(run.files, run.data.stop_token_id, files);
  files.push_back({storage::kTrainedWithFile, lora::to_json(run.files.trained_with)});
  const fs::path target =
      fs::path(section.output_dir) / run_folder::result_name(is_model ? AdapterKind::kNone : AdapterKind::kLora);
  storage::AtomicFolder folder(target, run_folder::own_entries);
  folder.write(files);
  check_new_tokens(folder.temporary(), run, parameters);  // before it replaces an older one
  folder.commit();
  summary.adapter = target.string();
  summary.adapter_step = step;
}

}  // namespace lora_train::run
