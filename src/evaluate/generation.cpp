// Generates completions of the base and of an adapter, from one copy of the weights on each rank.

#include "lora_train/evaluate/generation.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "inference.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/generate/generator.h"
#include "lora_train/ranks/communicator.h"
#include "lora_train/ranks/connect.h"

namespace lora_train::evaluate {
namespace {

using nlohmann::json;

/// Deals prompts out to the ranks in turn, and names them by their place in rank 0's list. Every kAnswersPerRound
/// answers, a rank takes part in a collective that passes the other ranks' answers to rank 0's sink; decoding goes on
/// with the rest of the batch. With one rank, there is no collective.
class AnswerRelay {
 public:
  static constexpr std::int64_t kAnswersPerRound = 16;

  AnswerRelay(ranks::Communicator& ranks, GenerateSink& sink, std::size_t num_prompts) : ranks_(ranks), sink_(sink) {
    if (ranks.world_size() == 1) return;
    const std::int64_t of_rank_0 = ceil_div(static_cast<std::int64_t>(num_prompts), ranks.world_size());
    num_rounds_ = ceil_div(of_rank_0, kAnswersPerRound);
  }

  /// Like GenerateSink, for this rank's prompts. `prompt` is the index in its own request, `place` in rank 0's.
  bool on_token(std::size_t prompt, std::size_t place, bool is_base, std::int32_t id) {
    if (ranks_.rank() > 0) tokens_[{place, is_base}].push_back(id);
    return sink_.on_token(prompt, is_base, id);
  }
  void on_done(std::size_t prompt, std::size_t place, bool is_base, bool is_cut) {
    sink_.on_done(prompt, is_base, is_cut);
    if (ranks_.rank() > 0) {
      const auto answer = tokens_.extract({place, is_base});
      sent_ += json{place, is_base, is_cut, answer ? answer.mapped() : std::vector<std::int32_t>()}.dump() + "\n";
    }
    if (is_base || num_rounds_ == 0) return;  // the adapter's answer follows
    if (++num_done_ % kAnswersPerRound == 0) exchange();
  }

  /// Call it after the last answer: takes part in the collectives that other ranks still need.
  void finish() {
    while (num_exchanged_ < num_rounds_) exchange();
  }
  /// Call it after an agreed stop (Communicator::end_steps): one more collective, for the answers since the last. True
  /// if nothing was left to do: the stop came too late.
  bool finish_after_stop() {
    if (num_rounds_ == 0) return false;
    if (num_exchanged_ == num_rounds_) return true;
    exchange();
    return false;
  }

 private:
  void exchange() {
    const std::vector<std::string> all = ranks_.all_gather(sent_);
    ++num_exchanged_;
    sent_.clear();
    if (ranks_.rank() > 0) return;
    for (const std::string& text : all) {
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        const json answer = json::parse(line);
        const std::size_t place = answer[0];
        const bool is_base = answer[1];
        for (const std::int32_t id : answer[3]) sink_.on_token(place, is_base, id);
        sink_.on_done(place, is_base, answer[2]);
      }
    }
  }

  ranks::Communicator& ranks_;
  GenerateSink& sink_;
  std::int64_t num_rounds_ = 0, num_exchanged_ = 0, num_done_ = 0;
  std::map<std::pair<std::size_t, bool>, std::vector<std::int32_t>> tokens_;  ///< unfinished answers
  std::string sent_;                                                          ///< lines
};

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
  std::size_t index = 0;  ///< in this rank's request
  std::size_t place = 0;  ///< in rank 0's request
};

/// On rank 0, the prompts of its request; it may have fewer than the others, because an earlier command answered some.
std::string prompts_of_leader(const GenerateRequest& request) {
  std::vector<std::int64_t> indices;
  for (const auto& prompt : request.prompts) indices.push_back(prompt.index);
  return nlohmann::json(indices).dump();
}

std::string hash_of(const GeneratePrompt& prompt) {
  std::string text = std::to_string(prompt.max_new_tokens);
  for (const std::int32_t id : prompt.ids) text += fmt::format(" {}", id);
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
      log_info("using one of {} GPUs; --nproc {} uses all", num_gpus, num_gpus);
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
  std::size_t num_prompts_ = 0;  ///< on all ranks
};

void answer(const GenerateRequest& request, const ConversationTurn& turn, generate::Generator& generator,
            Conversation& conversation) {
  const generate::Prompt prompt{turn.prompt.ids, turn.prompt.index, turn.prompt.max_new_tokens, turn.prompt.name};
  const generate::GenerateOptions options{
      .sampling = request.sampling, .stop_ids = request.stop_ids, .use_adapter = turn.use_adapter, .reuse_cache = true};
  const bool is_base = !turn.use_adapter;
  generate::GenerateCallbacks callbacks;
  callbacks.on_token = [&](std::size_t, std::int32_t id) { return conversation.on_token(0, is_base, id); };
  callbacks.on_done = [&](std::size_t, const generate::Completion& completion) {
    conversation.on_done(0, is_base, completion.reason == generate::StopReason::kLength);
  };
  try {
    generator.run({&prompt, 1}, options, callbacks);
  } catch (const StopError&) {
    conversation.on_stop();
  }
}

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

GenerateTotals answer_turns(const GenerateRequest& request, Conversation& conversation) {
  generate::check_sampling(request.sampling);
  constexpr std::int64_t kNoPositions = 1;  // the generator has its own, as many as the conversation needs
  const InferenceModel model = load_for_inference(request.profile, request.adapter, kNoPositions);
  const auto generator = make_generator(model, request.profile.run);
  conversation.on_start();
  while (const auto turn = conversation.next_turn()) answer(request, *turn, *generator, conversation);
  return totals_of(generator->stats());
}

GenerateTotals serve(const ServeRequest& request, serve::RequestQueue& queue) {
  constexpr std::int64_t kNoPositions = 1;  // the generator has its own
  std::vector<plan::NamedAdapter> adapters;
  for (const auto& [name, folder] : request.adapters) adapters.push_back({name, folder});
  const InferenceModel model = adapters.empty()
                                   ? load_for_inference(request.profile, request.only_adapter, kNoPositions)
                                   : load_several(request.profile, adapters, kNoPositions);
  const auto generator = make_generator(model, request.profile.run);
  generator->serve(queue);
  return totals_of(generator->stats());
}

}  // namespace lora_train::evaluate
