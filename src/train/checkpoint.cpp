#include "checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/model/tensor_io.h"
#include "lora_train/storage/atomic_folder.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const char* const kPrefix = "checkpoint-";
const char* const kAdapterFile = "adapter_model.safetensors";
const char* const kWeightsFile = "model.safetensors";
const char* const kOptimizerFile = "optimizer.safetensors";
const char* const kStateFile = "trainer_state.json";
const char* const kManifestFile = "manifest.json";
const std::string kFirstMoment = "exp_avg.", kSecondMoment = "exp_avg_sq.";

std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* begin = name.data() + std::string_view(kPrefix).size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

void write_moments(const fs::path& path, const model::Parameters& parameters) {
  std::vector<storage::TensorToWrite> tensors;
  for (const auto& parameter : parameters.list()) {
    const std::string& name = parameter.name;
    tensors.push_back(model::tensor_to_write(kFirstMoment + name, parameters.view(parameters.exp_avg, name)));
    tensors.push_back(model::tensor_to_write(kSecondMoment + name, parameters.view(parameters.exp_avg_sq, name)));
  }
  storage::write_safetensors(path, tensors);
}

void read_flat(const fs::path& path, const model::Parameters& parameters,
               const std::vector<std::pair<std::string, at::Tensor>>& buffers) {
  const storage::SafetensorsFile file(path);
  std::size_t num_read = 0;
  for (const auto& [prefix, flat] : buffers) {
    for (const auto& parameter : parameters.list()) {
      const std::string name = prefix + parameter.name, where = path.string() + ": " + name;
      const storage::TensorEntry* entry = file.find(name);
      if (entry == nullptr) throw FormatError(where, "is missing; the checkpoint belongs to another adapter or model");
      if (entry->shape != parameter.shape) throw FormatError(where, "has another shape than this run needs: " + storage::describe(*entry));
      model::copy_elements(*entry, file.bytes(*entry), where, parameters.view(flat, parameter.name));
      ++num_read;
    }
  }
  if (num_read != file.tensors().size()) {
    throw FormatError(path.string(), "holds tensors that this run does not train; the checkpoint belongs to another run");
  }
}

template <typename Value>
json optional_json(const std::optional<Value>& value) {
  return value ? json(*value) : json(nullptr);
}

void write_state(const fs::path& folder, const TrainState& state, const CheckpointContext& context) {
  const json object = {{"best_global_step", optional_json(state.best_step)},
                       {"best_metric", optional_json(state.best_eval_loss)},
                       {"epoch", state.epoch},
                       {"global_step", state.step},
                       {"log_history", json::array()},
                       {"max_steps", context.total_steps},
                       {"num_train_epochs", context.num_epochs},
                       {"lora_train",
                        {{"data_fingerprint", context.data_fingerprint},
                         {"eval_loss", optional_json(state.eval_loss)},
                         {"eval_step", optional_json(state.eval_step)},
                         {"loss_sum", state.loss_sum},
                         {"loss_tokens", state.loss_tokens},
                         {"profile_hash", context.profile_hash},
                         {"supervised_tokens", state.supervised_tokens},
                         {"tokens", state.tokens},
                         {"world_size", 1}}}};
  write_file_atomic(folder / kStateFile, object.dump(2) + "\n");
}

void write_manifest(const fs::path& folder) {
  json files = json::object();
  for (const auto& entry : fs::directory_iterator(folder)) {
    const FileHash content = hash_file(entry.path());
    files[entry.path().filename().string()] = {{"bytes", content.num_bytes}, {"xxh128", content.hash}};
  }
  write_file_atomic(folder / kManifestFile, json({{"files", files}, {"version", 1}}).dump(2) + "\n");
}

json read_json(const fs::path& path) {
  try {
    return json::parse(read_file(path));
  } catch (const json::exception&) {
    throw FormatError(path.string(), "is not valid JSON");
  }
}

void delete_checkpoint(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) log_warning(folder.string() + ": cannot be deleted: " + error.message());
}

template <typename Value>
std::optional<Value> optional_value(const json& object, const char* key) {
  return object.at(key).is_null() ? std::nullopt : std::optional<Value>(object.at(key).get<Value>());
}

}  // namespace

std::filesystem::path save_checkpoint(const fs::path& output_dir, const TrainState& state,
                                      const model::Parameters& parameters, const CheckpointContext& context) {
  const fs::path target = output_dir / (kPrefix + std::to_string(state.step));
  storage::AtomicFolder folder(target);  // takes the place of one of the same step, of an earlier process
  if (context.adapter != nullptr) {
    lora::save_adapter(folder.path(), *context.adapter, context.target_modules, parameters, lora::SaveDtype::kFloat32);
  } else {
    model::write_values(folder.path() / kWeightsFile, parameters, at::kFloat);
  }
  write_moments(folder.path() / kOptimizerFile, parameters);
  write_state(folder.path(), state, context);
  write_file_atomic(folder.path() / "profile.yaml", context.profile_yaml);
  write_manifest(folder.path());
  folder.commit();
  return target;
}

std::vector<fs::path> list_checkpoints(const fs::path& output_dir) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  if (!fs::is_directory(output_dir)) return {};
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    if (!entry.is_directory()) continue;
    if (const auto step = step_of(entry.path())) found.emplace_back(*step, entry.path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::string verify_checkpoint(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestFile;
  if (!fs::exists(path)) return "has no " + std::string(kManifestFile);
  try {
    const json manifest = read_json(path);
    for (const auto& [name, expected] : manifest.at("files").items()) {
      const FileHash content = hash_file(checkpoint / fs::path(name).filename());
      if (content.num_bytes != expected.at("bytes").get<std::size_t>())
        return name + " has another size than the manifest says";
      if (content.hash != expected.at("xxh128").get<std::string>())
        return name + " has other content than the manifest says";
    }
    if (!manifest.at("files").contains(kStateFile)) return "the manifest lists no " + std::string(kStateFile);
  } catch (const json::exception&) {
    return std::string(kManifestFile) + " is not a manifest";
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

LoadedCheckpoint read_checkpoint_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kStateFile;
  try {
    const json object = read_json(path);
    const json& own = object.at("lora_train");
    LoadedCheckpoint loaded;
    loaded.state.step = object.at("global_step").get<std::int64_t>();
    loaded.state.epoch = object.at("epoch").get<double>();
    loaded.state.tokens = own.at("tokens").get<std::int64_t>();
    loaded.state.supervised_tokens = own.at("supervised_tokens").get<std::int64_t>();
    loaded.state.eval_loss = optional_value<double>(own, "eval_loss");
    loaded.state.eval_step = optional_value<std::int64_t>(own, "eval_step");
    loaded.state.loss_sum = own.at("loss_sum").get<double>();
    loaded.state.loss_tokens = own.at("loss_tokens").get<std::int64_t>();
    loaded.state.best_eval_loss = optional_value<double>(object, "best_metric");
    loaded.state.best_step = optional_value<std::int64_t>(object, "best_global_step");
    loaded.data_fingerprint = own.at("data_fingerprint").get<std::string>();
    return loaded;
  } catch (const json::exception& error) {
    throw FormatError(path.string(), std::string("is not a state of lora-train: ") + error.what());
  }
}

void load_checkpoint_tensors(const fs::path& checkpoint, bool is_adapter, model::Parameters& parameters) {
  read_flat(checkpoint / (is_adapter ? kAdapterFile : kWeightsFile), parameters, {{"", parameters.values}});
  read_flat(checkpoint / kOptimizerFile, parameters,
            {{kFirstMoment, parameters.exp_avg}, {kSecondMoment, parameters.exp_avg_sq}});
}

void rotate_checkpoints(const fs::path& output_dir, std::int64_t keep, std::optional<std::int64_t> best_step) {
  std::int64_t kept = 0;
  for (const auto& folder : list_checkpoints(output_dir)) {
    if (kept++ < std::max<std::int64_t>(keep, 1) || step_of(folder) == best_step) continue;
    delete_checkpoint(folder);
  }
}

void delete_checkpoints_after(const fs::path& output_dir, std::int64_t step) {
  for (const auto& folder : list_checkpoints(output_dir)) {
    if (step_of(folder) <= step) continue;
    log_warning(folder.string() + " is deleted: the run goes on from step " + std::to_string(step));
    delete_checkpoint(folder);
  }
}

}  // namespace lora_train::train
