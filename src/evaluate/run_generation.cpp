// Generates completions of the base and of an adapter, from one copy of the weights on each rank.
#include "lora_train/evaluate/run_generation.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "answer_relay.h"
#include "inference.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/generate/generator.h"
#include "lora_train/ranks/connect.h"

namespace lora_train::evaluate {
namespace {

/// Prompts in a group that runs on the adapter and then, if requested, on the base.
constexpr std::size_t kPromptsPerBatch = 64;

std::int64_t longest_sequence(const GenerateRequest& request) {
  std::int64_t longest = 1;
  for (const auto& prompt : request.prompts) {
    longest = std::max(longest, static_cast<std::int64_t>(prompt.ids.size()) + prompt.max_new_tokens);
  }
  return longest;
}

/// A prompt of this rank.
struct OwnPrompt {
  std::size_t index = 0;  ///< in the request of this rank
  std::size_t place = 0;  ///< in that of rank 0
};

/// On rank 0, the prompts of its request; they may be fewer than the others have, because an earlier command answered some.
std::string prompts_of_leader(const GenerateRequest& request) {
  std::vector<std::int64_t> indices;
  for (const auto& prompt : request.prompts) indices.push_back(prompt.index);
  return nlohmann::json(indices).dump();
}

std::string hash_of(const GeneratePrompt& prompt) {
  std::string text = std::to_string(prompt.max_new_tokens);
  for (const std::int32_t id : prompt.ids) text += ' ' + std::to_string(id);
  return hash128_hex(text);
}

class Generation {
 public:
  Generation(const GenerateRequest& request, GenerateSink& sink, const RankPlace& place)
      : request_(request), sink_(sink), place_(place), ranks_(*place.ranks) {
    deal_out();
  }

  /// False if no prompt is left to answer.
  bool has_prompts() const { return num_prompts_ > 0; }

  GenerateTotals run() {
    const InferenceModel model =
        load_for_inference(request_.profile, request_.adapter, longest_sequence(request_), place_);
    if (ranks_.world_size() == 1 && model.device.num_gpus > 1 && num_prompts_ > 1) {
      const std::string num_gpus = std::to_string(model.device.num_gpus);
      log_info("one of " + num_gpus + " GPUs is used; --nproc " + num_gpus + " answers on all");
    }
    const auto generator = make_generator(model, request_.profile.run);
    sink_.on_start();
    AnswerRelay relay(ranks_, sink_, num_prompts_);
    ranks_.begin_steps();
    try {
      run_parts(*generator, relay);
      relay.finish();
    } catch (const StopError&) {
      ranks_.end_steps();
      if (!relay.finish_after_stop()) throw;
    }
    ranks_.end_steps();
    return totals_of_all(totals_of(generator->stats()));
  }

 private:
  void deal_out() {
    const auto wanted =
        nlohmann::json::parse(ranks_.broadcast(prompts_of_leader(request_))).get<std::vector<std::int64_t>>();
    std::map<std::int64_t, std::size_t> by_index;
    for (std::size_t i = 0; i < request_.prompts.size(); ++i) by_index[request_.prompts[i].index] = i;
    std::string hashes;
    for (std::size_t place = 0; place < wanted.size(); ++place) {
      const auto found = by_index.find(wanted[place]);
      if (found == by_index.end()) continue;  // then the hashes differ
      if (ranks_.world_size() > 1) hashes += hash_of(request_.prompts[found->second]);
      if (place % static_cast<std::size_t>(ranks_.world_size()) != static_cast<std::size_t>(ranks_.rank())) continue;
      own_.push_back({found->second, place});
    }
    num_prompts_ = wanted.size();
    if (ranks_.world_size() > 1) plan::require_equal(ranks_, {{"set of prompts", hash128_hex(hashes)}});
  }

  void run_parts(generate::Generator& generator, AnswerRelay& relay) const {
    const std::size_t part = request_.compare ? kPromptsPerBatch : std::max<std::size_t>(1, own_.size());
    for (std::size_t begin = 0; begin < own_.size(); begin += part) {
      const auto prompts = std::span(own_).subspan(begin, std::min(part, own_.size() - begin));
      if (request_.compare) run_part(prompts, true, generator, relay);
      run_part(prompts, false, generator, relay);
    }
  }

  void run_part(std::span<const OwnPrompt> own, bool is_base, generate::Generator& generator,
                AnswerRelay& relay) const {
    std::vector<generate::Prompt> prompts;
    for (const OwnPrompt& one : own) {
      const GeneratePrompt& prompt = request_.prompts[one.index];
      prompts.push_back({prompt.ids, prompt.index, prompt.max_new_tokens, prompt.name});
    }
    const generate::GenerateOptions options{
        .sampling = request_.sampling, .stop_ids = request_.stop_ids, .use_adapter = !is_base};
    generate::GenerateCallbacks callbacks;
    callbacks.on_token = [&](std::size_t i, std::int32_t id) {
      return relay.on_token(own[i].index, own[i].place, is_base, id);
    };
    callbacks.on_done = [&](std::size_t i, const generate::Completion& completion) {
      relay.on_done(own[i].index, own[i].place, is_base, completion.reason == generate::StopReason::kLength);
    };
    generator.run(prompts, options, callbacks);
  }

  GenerateTotals totals_of_all(const GenerateTotals& own) const {
    GenerateTotals all;
    for (const std::string& text : ranks_.all_gather(
             nlohmann::json{own.prompt_tokens, own.new_tokens, own.decoded_tokens, own.prompt_s, own.decode_s}
                 .dump())) {
      const auto of_rank = nlohmann::json::parse(text);
      all.prompt_tokens += of_rank[0].get<std::int64_t>();
      all.new_tokens += of_rank[1].get<std::int64_t>();
      all.decoded_tokens += of_rank[2].get<std::int64_t>();
      all.prompt_s = std::max(all.prompt_s, of_rank[3].get<double>());
      all.decode_s = std::max(all.decode_s, of_rank[4].get<double>());
    }
    return all;
  }

  const GenerateRequest& request_;
  GenerateSink& sink_;
  const RankPlace& place_;
  ranks::Communicator& ranks_;
  std::vector<OwnPrompt> own_;
  std::size_t num_prompts_ = 0;  ///< of all ranks
};

}  // namespace

GenerateTotals run_generation(const GenerateRequest& request, GenerateSink& sink) {
  const RankPlace place{request.world, ranks::connect(request.world, {})};
  GenerateTotals totals;
  plan::work_as_rank(*place.ranks, [&] {
    if (request.failure) std::rethrow_exception(request.failure);
    generate::check_sampling(request.sampling);
    Generation generation(request, sink, place);
    if (generation.has_prompts()) totals = generation.run();
    return 0;
  });
  return totals;
}

}  // namespace lora_train::evaluate
