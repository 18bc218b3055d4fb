#include "lora_train/run/background_saver.h"

#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::run {
namespace {

namespace fs = std::filesystem;

/// A tensor in a file: its name there, and a view of the memory to write it from or read it into.
struct NamedView {
  std::string name;
  at::Tensor view;
};

std::vector<NamedView> values_of(const model::Trainables& parameters) {
  std::vector<NamedView> views;
  for (const auto& parameter : parameters.list()) views.push_back({parameter.name, parameters.value(parameter.name)});
  return views;
}

/// State with one element per parameter gets the parameters' names and shapes; other state stays flat. Constants and
/// tensors without elements are left out.
std::vector<NamedView> state_of(const model::Trainables& parameters, const optim::OptimizerState& optimizer) {
  std::vector<NamedView> views;
  for (std::size_t i = 0; i < optimizer.tensors.size(); ++i) {
    const optim::StateTensor& kept = optimizer.optimizer->state[i];
    if (kept.constant != nullptr || optimizer.tensors[i].numel() == 0) continue;
    if (kept.size != nullptr) {
      views.push_back({kept.name, optimizer.tensors[i]});
      continue;
    }
    for (const auto& parameter : parameters.list()) {
      views.push_back({kept.name + "." + parameter.name, parameters.view(optimizer.tensors[i], parameter.name)});
    }
  }
  return views;
}

storage::FileToWrite state_file(const model::Trainables& parameters, const optim::OptimizerState& optimizer) {
  storage::FileToWrite file{storage::kOptimizerFile, ""};
  for (const auto& [name, view] : state_of(parameters, optimizer)) {
    file.tensors.push_back(view.is_floating_point() ? model::finite_tensor_to_write(name, view)
                                                    : model::tensor_to_write(name, view));
  }
  return file;
}

void read_views(const fs::path& path, const std::vector<NamedView>& views) {
  // Reads, so that a failing disk gives an error; maps only if reading would take memory that the run needs.
  const auto num_bytes = static_cast<std::int64_t>(fs::file_size(path));
  const bool has_room = num_bytes <= report::available_host_memory() / 2;
  storage::WeightFiles file({storage::SafetensorsFile(has_room ? MappedFile::read(path) : MappedFile(path))});
  file.rename(model::text_class_name);
  for (const auto& [name, view] : views) {
    throw_if_stop_requested();
    const std::string where = fmt::format("{}: {}", path.string(), name);
    const storage::TensorEntry* entry = file.find(name);
    if (entry == nullptr)
      throw FormatError(where, "is missing; the checkpoint belongs to a different adapter or model");
    if (at::IntArrayRef(entry->shape) != view.sizes()) {
      throw FormatError(where, "does not have the shape that this run needs: " + storage::describe(*entry));
    }
    model::copy_elements(*entry, file.bytes(*entry), where, view);
  }
  if (views.size() != file.entries().size()) {
    throw FormatError(path.string(),
                      "holds tensors that this run does not train; the checkpoint belongs to a different run");
  }
}

run_folder::CheckpointWriter::Options saver_options(const RunSection& section) {
  const std::filesystem::path metrics = std::filesystem::path(section.output_dir) / storage::kMetricsFile;
  run_folder::CheckpointWriter::Options options{section.output_dir, section.save_total_limit, {}};
  if (path_kind(metrics) == PathKind::kFile) options.sync_first.push_back(metrics);
  return options;
}

}  // namespace

std::vector<storage::FileToWrite> checkpoint_files(const lora::AdapterConfig* adapter,
                                                   const model::Trainables& parameters,
                                                   const optim::OptimizerState& optimizer) {
  std::vector<storage::FileToWrite> files;
  if (adapter != nullptr) {
    files = lora::adapter_files(*adapter, parameters, Precision::kFp32);
  } else {
    files.push_back({storage::kWeightsFile, "", model::values_to_write(parameters, at::kFloat)});
  }
  files.push_back(state_file(parameters, optimizer));
  return files;
}

void load_checkpoint_tensors(const fs::path& checkpoint, bool is_adapter, model::Trainables& parameters,
                             optim::OptimizerState& optimizer) {
  load_checkpoint_parameters(checkpoint, is_adapter, parameters);
  read_views(checkpoint / storage::kOptimizerFile, state_of(parameters, optimizer));
}

void load_checkpoint_parameters(const fs::path& checkpoint, bool is_adapter, model::Trainables& parameters) {
  read_views(checkpoint / (is_adapter ? storage::kAdapterFile : storage::kWeightsFile), values_of(parameters));
}

BackgroundSaver::BackgroundSaver(SavedParts parts, std::int64_t free_memory)
    : parts_(std::move(parts)), saver_(saver_options(parts_.section)) {
  const model::Trainables& parameters = parts_.parameters;
  const optim::OptimizerState& optimizer = parts_.optimizer;
  const std::int64_t bytes = static_cast<std::int64_t>(parameters.values.nbytes()) + optimizer.bytes();
  if (parameters.values.is_cuda() || bytes <= free_memory / 2) {
    snapshot_.emplace(parameters.host_copy(), optimizer.host_copy());
  } else {
    log_info("training will pause while a checkpoint is written: not enough memory for a copy of " +
             format_bytes(bytes));
  }
}

void BackgroundSaver::start(const run_folder::TrainState& state) {
  if (snapshot_) {
    snapshot_->parameters.values.copy_(parts_.parameters.values);
    snapshot_->optimizer.copy_from(parts_.optimizer);
  }
  run_folder::Contents contents = parts_.contents;
  contents.state = state;
  contents.files = checkpoint_files(parts_.adapter, snapshot_ ? snapshot_->parameters : parts_.parameters,
                                    snapshot_ ? snapshot_->optimizer : parts_.optimizer);
  saver_.start(std::move(contents));
  if (!snapshot_) saver_.settle();
}

}  // namespace lora_train::run
