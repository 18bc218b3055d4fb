#include "rank_agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "evaluation_schedule.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/version.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::run_folder {
/// Without the checkpoint, whose path nlohmann cannot write.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OutputDecision, is_complete, goes_back, overwrites, changes, summary_json)
}  // namespace lora_train::run_folder

namespace lora_train::run {
namespace {

using nlohmann::json;
using ranks::Communicator;

constexpr std::int64_t kHashChunk = 1 << 20;  // elements; the temporaries of a chunk take 24 MiB

/// Depends on every bit and its position. Computed on the tensor's device.
std::int64_t checksum(const at::Tensor& values) {
  const at::Tensor bits = values.view(at::kInt);
  at::Tensor sum = at::zeros({}, bits.options().dtype(at::kLong));
  const at::Tensor place =
      at::arange(1, 2 * std::min(kHashChunk, bits.numel()), 2, bits.options().dtype(at::kLong));  // odd: no bit is lost
  for (std::int64_t begin = 0; begin < bits.numel(); begin += kHashChunk) {
    const std::int64_t length = std::min(kHashChunk, bits.numel() - begin);
    const at::Tensor part = bits.narrow(0, begin, length).to(at::kLong).mul_(place.narrow(0, 0, length));
    sum = sum.mul_(1000003).add_(part.sum());
  }
  return sum.item<std::int64_t>();
}

std::int64_t num_parameters(const OpenedRun& run) {
  const model::ModelShape shape =
      model::model_shape(run.files.config, run.adapters.specs, {}, run.adapters.config.token_rows);
  const model::TrainedWeights trained = plan::trained_weights(run.profile());
  return model::make_trainables(run.files.config, shape, trained, at::kMeta).size();
}

}  // namespace

run_folder::OutputDecision share(Communicator& ranks, const run_folder::OutputDecision& decision, Profile& profile) {
  if (ranks.world_size() == 1) return decision;
  const json sent = {decision, decision.checkpoint ? decision.checkpoint->string() : "",
                     profile.data.max_seq_len.value_or(0), profile.schedule.micro_batch_size.value_or(0),
                     profile.model.template_date};
  std::string bytes;  // not as text: paths need not be UTF-8
  json::to_cbor(sent, bytes);
  const json received = json::from_cbor(ranks.broadcast(bytes));
  const auto number = [&](std::size_t i) {
    return received[i] == 0 ? std::nullopt : std::optional(received[i].get<std::int64_t>());
  };
  profile.data.max_seq_len = number(2);
  profile.schedule.micro_batch_size = number(3);
  profile.model.template_date = received[4];
  auto result = received[0].get<run_folder::OutputDecision>();
  if (const std::string checkpoint = received[1]; !checkpoint.empty()) result.checkpoint = checkpoint;
  return result;
}

run_folder::Description share_description(Communicator& ranks, const std::filesystem::path& checkpoint) {
  const std::string bytes = ranks.rank() == 0 ? run_folder::describing_bytes(checkpoint) : "";
  return run_folder::parse_description(ranks.broadcast(bytes), checkpoint);
}

std::int64_t share_start(Communicator& ranks, std::int64_t started_at) {
  return std::stoll(ranks.broadcast(std::to_string(started_at)));
}

bool share_best(const Run& run) {
  if (!run.profile().run.load_best_model_at_end || !run.state.best_step) return true;
  const std::filesystem::path best =
      std::filesystem::path(run.profile().run.output_dir) / storage::checkpoint_name(*run.state.best_step);
  const std::string problem =
      run.ranks().broadcast(run.is_leader() ? run_folder::verify(best, throw_if_stop_requested) : "");
  if (problem.empty()) return true;
  if (run.state.step == run.plan->total_steps()) refuse_best_checkpoint(best, problem);
  log_warning(best.string() + " was the best step so far, but cannot be used (" + problem +
              "); from now on, only later steps can be the best");
  return false;
}

void share_parameters(Run& run) {
  std::vector<at::Tensor> tensors = {run.model.parameters->values};
  for (const at::Tensor& tensor : run.optimizer->tensors) {
    if (tensor.numel() > 0) tensors.push_back(tensor);
  }
  run.ranks().broadcast(tensors);
}

void connect_gpus(const OpenedRun& run) {
  if (!run.device.is_cuda() || run.ranks().world_size() == 1) return;
  {
    const auto options = at::TensorOptions(run.device.device);
    const at::Tensor grads = at::zeros({num_parameters(run)}, options);
    const at::Tensor scalar = at::zeros({}, options.dtype(at::kDouble));
    const at::Tensor figures = at::zeros({run.ranks().world_size(), kNumRankFigures}, scalar.options());
    run.ranks().all_reduce(std::array{grads, scalar, figures});
    run.ranks().broadcast(std::array{grads});
    plan::wait_for(run.device);
  }
  plan::release_unused_memory(run.device);
}

void share_facts(Communicator& ranks, plan::RunFacts& facts) {
  facts.num_ranks = ranks.world_size();
  for (const std::string& text : ranks.all_gather(json{facts.memory_bytes, facts.host_bytes}.dump())) {
    const json bytes = json::parse(text);
    facts.memory_bytes = std::min<std::int64_t>(facts.memory_bytes, bytes[0]);
    facts.host_bytes = std::min<std::int64_t>(facts.host_bytes, bytes[1]);
  }
}

void share_spec(Communicator& ranks, plan::RunSpec& spec) {
  if (ranks.world_size() > 1) spec = plan::parse_run_spec(ranks.broadcast(plan::to_json(spec)));
}

void share_tuning(Run& run) {
  if (run.ranks().world_size() == 1 || !plan::makes_choices(run.profile().run, run.device)) return;
  const std::string text = run.ranks().broadcast(run.tuning ? run.tuning->text() : "");
  if (!run.is_leader()) run.tuning = plan::adopt_tuning(run.device, text);
}

void check_equal_starts(const OpenedRun& run) {
  if (run.ranks().world_size() == 1) return;
  plan::require_equal(run.ranks(), {{"program", fmt::format("{} {}", version(), commit())},
                                    {"profile", run.request.profile_hash},
                                    {"number of trained parameters", std::to_string(num_parameters(run))}});
}

void check_equal_runs(const Run& run) {
  const run_folder::Fingerprints& prints = run.checkpoint.fingerprints;
  plan::require_equal(run.ranks(), {{"model", prints.model},
                                    {"tokenizer", prints.tokenizer},
                                    {"chat template", prints.chat_template},
                                    {"template_date", run.files.trained_with.template_date},
                                    {"data", prints.data},
                                    {"examples of eval_tasks", run.tasks ? run.tasks->fingerprint() : ""},
                                    {"number of steps", std::to_string(run.plan->total_steps())}});
}

void check_equal_parameters(Communicator& ranks, const at::Tensor& values, std::int64_t step) {
  if (ranks.world_size() == 1) return;
  const std::vector<std::string> all = ranks.all_gather(std::to_string(checksum(values)));
  std::string different;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) different += fmt::format("{}{}", different.empty() ? "" : ", ", rank);
  }
  if (different.empty()) return;
  try {
    ranks.all_gather("");  // all learn of it before one ends and takes the others with it
  } catch (const Error&) {
  }
  throw UnequalRanks("rank " + different,
                     "has different parameters than rank 0 after step " + std::to_string(step) +
                         ": a device or a node's memory produced wrong bits, or this is a bug. Nothing of this step "
                         "was saved; the same command continues from the last checkpoint");
}

void share_usage(const Run& run) {
  if (run.ranks().world_size() == 1) return;
  if (!run.is_leader()) run.resources->stop();  // after a last reading; rank 0 reads until it has written the result
  RankFigures figures;
  run.resources->put(figures);
  std::vector<RankFigures> all;
  for (const std::string& bytes :
       run.ranks().all_gather(std::string(reinterpret_cast<const char*>(&figures), sizeof figures))) {
    std::memcpy(&figures, bytes.data(), std::min(bytes.size(), sizeof figures));
    all.push_back(figures);
  }
  run.resources->take(all, run.ranks().rank());
}

std::string ranks_in_words(const Run& run) {
  const launch::World& world = run.request.world;
  const plan::RunSpec& spec = run.spec;
  const bool has_documents = run.facts.rows_of_rank > 0;
  const std::int64_t of_rank = has_documents ? run.facts.rows_of_rank : ceil_div(spec.global_batch_size, world.size);
  const std::int64_t accumulation = ceil_div(of_rank, spec.micro_batch_size);
  const int num_nodes = std::max(1, world.size / std::max(1, world.local_size));
  const bool is_even = !has_documents && spec.micro_batch_size * accumulation * world.size == spec.global_batch_size;
  return fmt::format(
      "training with {} processes ({}{}{}, {}), global batch {}{}{}{} rows x {} micro-batches x {} ranks", world.size,
      num_nodes, num_nodes == 1 ? " node x " : " nodes x ", world.local_size, to_string(world.launcher),
      spec.global_batch_size, has_documents ? " documents in " : " = ", is_even ? "" : "at most ",
      spec.micro_batch_size, accumulation, world.size);
}

}  // namespace lora_train::run
