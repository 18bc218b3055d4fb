#include "lora_train/run_folder/checkpoint.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/record_fields.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/storage/run_names.h"
#include "manifest.h"

/// The state under our own key, but for times and tuning.
template <>
constexpr auto lora_train::record_fields<lora_train::run_folder::TrainState>() {
  using S = run_folder::TrainState;
  return std::tuple{field("best_eval_loss", &S::best_eval_loss, IfEmpty::kLater),
                    field("eval_loss", &S::eval_loss),
                    field("eval_step", &S::eval_step),
                    field("evals_without_gain", &S::evals_without_gain, IfEmpty::kLater),
                    field("global_batch_size", &S::global_batch_size, IfEmpty::kLater),
                    field("loss_chunk_rows", &S::loss_chunk_rows, IfEmpty::kLater),
                    field("loss_sum", &S::loss_sum),
                    field("loss_tokens", &S::loss_weight),
                    field("peak_memory_gib", &S::peak_memory_gib, IfEmpty::kLater),
                    field("started_at", &S::started_at),
                    field("supervised_tokens", &S::supervised_tokens),
                    field("tokens", &S::tokens),
                    field("total_loss_sum", &S::total_loss_sum, IfEmpty::kLater),
                    field("total_loss_weight", &S::total_loss_weight, IfEmpty::kLater)};
}

namespace lora_train::run_folder {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

template <typename Value>
json optional_json(const std::optional<Value>& value) {
  return value ? json(*value) : json(nullptr);
}

std::optional<double> optional_number(const json& object, const char* key) {
  return object.at(key).is_null() ? std::nullopt : std::optional(object.at(key).get<double>());
}

void put_times(json& own, const report::RunTimes& times) {
  for (const auto& [name, seconds] : times.named()) own["phases_s"][name] = seconds;
  own["cost_usd"] = optional_json(times.cost_usd);
  put_fields(own, times.usage);
}

/// Older checkpoints lack the times, or the usage.
report::RunTimes times_of(const json& own) {
  if (!own.contains("phases_s")) return {};
  report::NamedSeconds phases;
  for (const auto& [name, seconds] : own.at("phases_s").items()) phases.emplace_back(name, seconds.get<double>());
  report::Usage usage;
  if (own.contains("cpu_s")) get_fields(own, usage);
  return report::RunTimes::of(phases, optional_number(own, "cost_usd"), usage);
}

/// json's get<>() accepts 1e300 too.
void check_whole_numbers(const json& own, const std::string& where) {
  for_each_field<TrainState>([&](const auto& field) {
    using Value = std::remove_cvref_t<decltype(TrainState().*field.member)>;
    constexpr bool is_maybe_whole = std::is_same_v<Value, std::optional<std::int64_t>>;
    if (!is_maybe_whole && !std::is_same_v<Value, std::int64_t>) return;
    const auto found = own.find(field.key);
    if (found != own.end() && !(is_maybe_whole && found->is_null())) whole_number(own, field.key, where);
  });
}

/// The format of Hugging Face's Trainer, with our additional state under a key of its own.
std::string state_json(const Contents& contents) {
  const TrainState& state = contents.state;
  json own;
  put_fields(own, state);
  put_times(own, state.times);
  if (!state.tuning.empty()) own["tuning"] = json::parse(state.tuning);
  const json object = {{"best_global_step", optional_json(state.best_step)},
                       {"best_metric", optional_json(state.best_metric)},
                       {"epoch", state.epoch},
                       {"global_step", state.step},
                       {"log_history", json::array()},
                       {"max_steps", contents.total_steps},
                       {"num_train_epochs", contents.num_epochs},
                       {"lora_train", own}};
  return object.dump(2) + "\n";
}

TrainState parse_state(const std::string& text, const std::string& where) {
  try {
    const json object = parse_json(text, where);
    const json& own = object.at("lora_train");
    TrainState state;
    state.step = whole_number(object, "global_step", where);
    state.epoch = object.at("epoch").get<double>();
    state.best_metric = optional_number(object, "best_metric");
    if (!object.at("best_global_step").is_null()) state.best_step = whole_number(object, "best_global_step", where);
    state.best_eval_loss = state.best_metric;  // older checkpoints only have the lowest loss, as the best metric
    check_whole_numbers(own, where);
    get_fields(own, state);
    state.times = times_of(own);
    if (own.contains("tuning")) state.tuning = own.at("tuning").dump();
    return state;
  } catch (const json::exception& error) {
    throw FormatError(where, std::string("was not written by lora-train: ") + error.what());
  }
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / storage::kManifestFile;
  switch (path_kind(path)) {
    case PathKind::kNone: throw FormatError(path.string(), "is missing: the checkpoint is incomplete");
    case PathKind::kFile: return parse_manifest(read_file(path), path.string());
    default: throw FormatError(path.string(), "is not a file");
  }
}

void check_files(const fs::path& checkpoint, const Manifest& manifest, const std::function<void()>& after_each_mib) {
  for (const char* name : {storage::kStateFile, storage::kProfileFile, storage::kOptimizerFile}) {
    if (!manifest.files.contains(name)) throw FormatError(storage::kManifestFile, "does not list " + std::string(name));
  }
  for (const auto& [name, expected] : manifest.files) {
    if (path_kind(checkpoint / name) != PathKind::kFile) throw FormatError(name, "is missing or not a file");
    const FileHash content = hash_file(checkpoint / name, after_each_mib);
    if (content.num_bytes != expected.num_bytes) {
      throw FormatError(name, "has {} bytes, but the manifest says {}", content.num_bytes, expected.num_bytes);
    }
    if (content.hash != expected.hash) throw FormatError(name, "does not match its hash in the manifest");
  }
}

/// Neither a log that cannot be synced nor an old checkpoint that cannot be deleted may prevent a checkpoint.
template <class Call>
void or_warn(const Call& call) {
  try {
    call();
  } catch (const IoError& error) {
    log_warning(error.what());
  }
}

/// Deletes the checkpoints for which is_wanted(folder) does not hold, newest first.
template <class Predicate>
void delete_unless(const fs::path& output_dir, const Predicate& is_wanted) {
  or_warn([&] {
    for (const auto& folder : list(output_dir)) {
      if (!is_wanted(folder)) or_warn([&] { storage::delete_folder(folder, checkpoint_entries); });
    }
  });
}

/// True if the start of a checkpoint's file contains `text`; nullopt if it cannot be read.
std::optional<bool> starts_with_text(const fs::path& file, std::string_view text) {
  constexpr std::size_t kMaxBytes = 65536;
  if (path_kind(file) != PathKind::kFile) return false;
  try {
    return read_start(file, kMaxBytes).find(text) != std::string::npos;
  } catch (const IoError&) {
    return std::nullopt;
  }
}

/// True if this program wrote the folder, even if it is incomplete or damaged. Hugging Face's folders have a
/// trainer_state.json too, but no manifest.
bool is_ours(const fs::path& folder) {
  if (path_kind(folder) != PathKind::kFolder) return false;
  return starts_with_text(folder / storage::kManifestFile, "\"fingerprints\"").value_or(true) ||
         starts_with_text(folder / storage::kStateFile, "\"lora_train\"").value_or(false);
}

/// The folders checkpoint-<step> that satisfy is_wanted(path), newest first.
template <class Predicate>
std::vector<fs::path> list_if(const fs::path& output_dir, Predicate is_wanted) {
  if (path_kind(output_dir) == PathKind::kNone) return {};
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (const auto& name : list_folder(output_dir)) {
    const auto step = storage::checkpoint_step(name);
    if (step && is_wanted(output_dir / name)) found.emplace_back(*step, output_dir / name);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

using Clock = std::chrono::steady_clock;

SaveResult save_and_rotate(const CheckpointWriter::Options& options, const Contents& contents,
                           Clock::time_point start) {
  SaveResult result;
  result.step = contents.state.step;
  try {
    result.folder = save(options.output_dir, contents, options.sync_first);
    result.durable_s = std::chrono::duration<double>(Clock::now() - start).count();
    if (options.keep) rotate(options.output_dir, result.step, *options.keep, contents.state.best_step);
  } catch (...) {
    result.error = std::current_exception();
  }
  return result;
}

}  // namespace

fs::path save(const fs::path& output_dir, const Contents& contents, const std::vector<fs::path>& sync_first) {
  const fs::path target = output_dir / storage::checkpoint_name(contents.state.step);
  if (path_kind(target) != PathKind::kNone && !is_ours(target)) {
    throw IoError(target.string(), "is not a lora-train checkpoint, so it was not replaced: move it");
  }
  storage::AtomicFolder folder(target, checkpoint_entries);  // replaces one for the same step from an earlier process
  std::vector<storage::FileToWrite> files = contents.files;
  files.push_back({storage::kStateFile, state_json(contents)});
  files.push_back({storage::kProfileFile, contents.profile_yaml});
  if (!contents.trained_with_json.empty()) files.push_back({storage::kTrainedWithFile, contents.trained_with_json});
  assert(std::ranges::all_of(files, storage::is_checkpoint_file, &storage::FileToWrite::name));
  folder.write(files);
  folder.write({{storage::kManifestFile,
                 to_json({contents.state.step, contents.world_size, contents.fingerprints, folder.files()})}});
  for (const auto& file : sync_first) or_warn([&] { sync_file(file); });
  if (!sync_first.empty()) sync_folder(output_dir);  // makes their names durable
  folder.commit();
  if (const std::string problem = verify(target); !problem.empty()) {
    folder.take_back();
    throw IoError(target.string(), "was read back and differs from what was written: " + problem);
  }
  return target;
}

std::vector<fs::path> list(const fs::path& output_dir) { return list_if(output_dir, is_ours); }

std::vector<std::string> checkpoint_entries(const fs::path& checkpoint) {
  return storage::own_files(checkpoint, storage::is_checkpoint_file);
}

std::vector<fs::path> list_others(const fs::path& output_dir) {
  return list_if(output_dir, [](const fs::path& path) { return !is_ours(path); });
}

std::string verify(const fs::path& checkpoint, const std::function<void()>& after_each_mib) {
  try {
    const Manifest manifest = read_manifest(checkpoint);
    check_files(checkpoint, manifest, after_each_mib);
    const std::int64_t step = parse_state(read_file(checkpoint / storage::kStateFile), storage::kStateFile).step;
    if (step != manifest.step) return std::string(storage::kStateFile) + " has a different step than the manifest";
  } catch (const StopError&) {
    throw;
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::optional<fs::path> newest_good(const fs::path& output_dir) {
  for (const auto& checkpoint : list(output_dir)) {
    std::string problem = verify(checkpoint, throw_if_stop_requested);
    if (problem.empty()) {
      const std::int64_t step = read_manifest(checkpoint).step;
      if (step == storage::checkpoint_step(checkpoint)) return checkpoint;
      problem = fmt::format("it is a copy of step {} under another name", step);
    }
    log_warning("{} is skipped: {}", checkpoint.string(), problem);
  }
  return std::nullopt;
}

Description describe(const fs::path& checkpoint) { return parse_description(describing_bytes(checkpoint), checkpoint); }

std::string describing_bytes(const fs::path& checkpoint) {
  std::string bytes;  // the state may be damaged and not valid UTF-8
  json::to_cbor(json::array({to_json(read_manifest(checkpoint)), read_file(checkpoint / storage::kStateFile)}), bytes);
  return bytes;
}

Description parse_description(const std::string& bytes, const fs::path& checkpoint) {
  const json parts = json::from_cbor(bytes);
  const Manifest manifest = parse_manifest(parts[0], (checkpoint / storage::kManifestFile).string());
  return {parse_state(parts[1], (checkpoint / storage::kStateFile).string()), manifest.fingerprints,
          manifest.world_size};
}

void rotate(const fs::path& output_dir, std::int64_t newest, std::int64_t keep, std::optional<std::int64_t> best_step) {
  std::int64_t kept = 0;
  delete_unless(output_dir, [&](const fs::path& folder) {
    const auto step = storage::checkpoint_step(folder);
    return step > newest || kept++ < std::max<std::int64_t>(keep, 1) || step == best_step;
  });
}

void delete_after(const fs::path& output_dir, std::int64_t step) {
  delete_unless(output_dir, [&](const fs::path& folder) {
    if (storage::checkpoint_step(folder) <= step) return true;
    log_warning("{}: deleted because the run resumes from step {}", folder.string(), step);
    return false;
  });
}

void CheckpointWriter::start(Contents contents) {
  pending_ = std::async(std::launch::async, [this, contents = std::move(contents), start = Clock::now()] {
    return save_and_rotate(options_, contents, start);
  });
}

void CheckpointWriter::settle() const {
  if (is_busy()) pending_.wait();
}

std::optional<SaveResult> CheckpointWriter::poll() {
  if (!is_busy() || pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return pending_.get();
}

std::optional<SaveResult> CheckpointWriter::wait() {
  if (!is_busy()) return std::nullopt;
  return pending_.get();
}

}  // namespace lora_train::run_folder
