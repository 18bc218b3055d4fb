// Generates completions of the base and of an adapter, from one copy of the weights on each rank.

#include "lora_train/evaluate/generation.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
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

/// Passes answers on to the sink. Every kAnswersPerRound answers, a rank takes part in a collective that passes the
/// other ranks' answers to rank 0's sink; decoding goes on with the rest of the batch. With one rank, there is no
/// collective.
class AnswerRelay : public generate::AnswerSink {
 public:
  static constexpr std::int64_t kAnswersPerRound = 16;

  /// `most`: the largest number of answers that a rank gives.
  AnswerRelay(ranks::Communicator& ranks, generate::AnswerSink& sink, std::int64_t most) : ranks_(ranks), sink_(sink) {
    if (ranks.world_size() > 1) num_rounds_ = ceil_div(most, kAnswersPerRound);
  }

  bool on_token(std::int64_t id, const generate::Token& token) override {
    if (ranks_.rank() > 0) tokens_[id].push_back(token.id);
    return sink_.on_token(id, token);
  }
  void on_done(std::int64_t id, bool is_cut) override {
    sink_.on_done(id, is_cut);
    if (ranks_.rank() > 0) {
      const auto answer = tokens_.extract(id);
      sent_ += json{id, is_cut, answer ? answer.mapped() : std::vector<std::int32_t>()}.dump() + "\n";
    }
    if (num_rounds_ > 0 && ++num_done_ % kAnswersPerRound == 0) exchange();
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
        for (const std::int32_t token : answer[2]) sink_.on_token(answer[0], {token});
        sink_.on_done(answer[0], answer[1]);
      }
    }
  }

  ranks::Communicator& ranks_;
  generate::AnswerSink& sink_;
  std::int64_t num_rounds_ = 0, num_exchanged_ = 0, num_done_ = 0;
  std::map<std::int64_t, std::vector<std::int32_t>> tokens_;  ///< unfinished answers, by id
  std::string sent_;                                          ///< lines
};

std::string hash_of(const generate::Prompt& prompt) {
  std::string text = std::to_string(prompt.max_new_tokens);
  for (const std::int32_t id : prompt.ids) text += fmt::format(" {}", id);
  return hash128_hex(text);
}

class Generation {
 public:
  Generation(const GenerateRequest& request, const std::vector<generate::Prompt>& prompts, generate::AnswerSink& sink,
             const std::shared_ptr<ranks::Communicator>& ranks)
      : request_(request), sink_(sink), connected_(ranks), ranks_(*ranks) {
    deal_out(prompts);
  }

  /// False if no prompt is left to answer.
  bool has_prompts() const { return num_prompts_ > 0; }

  generate::Totals run() {
    const InferenceModel model = load_for_inference(request_, longest_, connected_);
    if (ranks_.world_size() == 1 && model.device.num_gpus > 1 && num_prompts_ > 1) {
      const std::string num_gpus = std::to_string(model.device.num_gpus);
      log_info("using one of {} GPUs; --nproc {} uses all", num_gpus, num_gpus);
    }
    const auto generator = make_generator(model.device, model.model, request_.profile.run);
    sink_.on_start(longest_);
    AnswerRelay relay(ranks_, sink_, num_of_rank_0_);
    ranks_.begin_steps();
    try {
      for (auto begin = own_.begin(); begin != own_.end();) {
        const auto end = std::find_if(begin, own_.end(), [&](const auto& p) { return p.adapter != begin->adapter; });
        generator->run({begin, end}, relay);
        begin = end;
      }
      relay.finish();
    } catch (const StopError&) {
      ranks_.end_steps();
      if (!relay.finish_after_stop()) throw;
    }
    ranks_.end_steps();
    return totals_of_all(generator->totals());
  }

 private:
  /// Takes this rank's part of rank 0's prompts: the others may have more, because an earlier command answered some.
  /// Prompts with the same index go to the same rank.
  void deal_out(const std::vector<generate::Prompt>& prompts) {
    std::vector<std::int64_t> ids;
    std::map<std::int64_t, const generate::Prompt*> by_id;
    for (const generate::Prompt& prompt : prompts) {
      ids.push_back(prompt.id);
      by_id[prompt.id] = &prompt;
      longest_ = std::max(longest_, prompt.length());
    }
    const auto wanted = json::parse(ranks_.broadcast(json(ids).dump())).get<std::vector<std::int64_t>>();
    std::string hashes;
    std::map<std::int64_t, std::int64_t> ranks_by_index;
    for (const std::int64_t id : wanted) {
      const auto found = by_id.find(id);
      if (found == by_id.end()) continue;  // then the hashes differ
      const generate::Prompt& prompt = *found->second;
      if (ranks_.world_size() > 1) hashes += hash_of(prompt);
      const std::int64_t next = std::ssize(ranks_by_index) % ranks_.world_size();
      const std::int64_t rank = ranks_by_index.try_emplace(prompt.index, next).first->second;
      num_of_rank_0_ += rank == 0 ? 1 : 0;
      if (rank == ranks_.rank()) own_.push_back(prompt);
    }
    num_prompts_ = wanted.size();
    if (ranks_.world_size() > 1) plan::require_equal(ranks_, {{"set of prompts", hash128_hex(hashes)}});
  }

  generate::Totals totals_of_all(const generate::Totals& own) const {
    generate::Totals all;
    for (const std::string& text : ranks_.all_gather(
             json{own.prompt_tokens, own.new_tokens, own.decoded_tokens, own.prompt_s, own.decode_s}.dump())) {
      const json of_rank = json::parse(text);
      all.prompt_tokens += of_rank[0].get<std::int64_t>();
      all.new_tokens += of_rank[1].get<std::int64_t>();
      all.decoded_tokens += of_rank[2].get<std::int64_t>();
      all.prompt_s = std::max(all.prompt_s, of_rank[3].get<double>());
      all.decode_s = std::max(all.decode_s, of_rank[4].get<double>());
    }
    return all;
  }

  const GenerateRequest& request_;
  generate::AnswerSink& sink_;
  const std::shared_ptr<ranks::Communicator>& connected_;
  ranks::Communicator& ranks_;
  std::vector<generate::Prompt> own_;
  std::size_t num_prompts_ = 0;     ///< on all ranks
  std::int64_t num_of_rank_0_ = 0;  ///< no rank has more
  std::int64_t longest_ = 1;        ///< tokens of a prompt with its answer
};

constexpr std::int64_t kNoPositions = 1;  // for load_for_inference: the generator has its own, as many as it needs

}  // namespace

generate::Totals run_generation(const GenerateRequest& request, const std::vector<generate::Prompt>& prompts,
                                generate::AnswerSink& sink) {
  const std::shared_ptr<ranks::Communicator> ranks = ranks::connect(request.world, {});
  generate::Totals totals;
  plan::work_as_rank(*ranks, [&] {
    if (request.failure) std::rethrow_exception(request.failure);
    Generation generation(request, prompts, sink, ranks);
    if (generation.has_prompts()) totals = generation.run();
    return 0;
  });
  return totals;
}

generate::Totals answer_turns(const GenerateRequest& request, generate::PromptQueue& queue) {
  const InferenceModel model = load_for_inference(request, kNoPositions, std::make_shared<ranks::OneRank>());
  const auto generator = make_generator(model.device, model.model, request.profile.run);
  queue.on_start(model.model.decoder->config.supported_length());
  while (const auto prompt = queue.next(/*may_wait=*/true)) {
    try {
      generator->run({&*prompt, 1}, queue, /*is_turn=*/true);
    } catch (const StopError&) {
      queue.on_stop();
    }
  }
  return generator->totals();
}

generate::Totals serve(const GenerateRequest& request, generate::PromptQueue& queue) {
  const InferenceModel model = load_for_inference(request, kNoPositions, std::make_shared<ranks::OneRank>());
  const auto generator = make_generator(model.device, model.model, request.profile.run);
  generator->serve(queue);
  return generator->totals();
}

}  // namespace lora_train::evaluate
