#include "answer_relay.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "lora_train/base/ceil_div.h"

namespace lora_train::evaluate {

using nlohmann::json;

AnswerRelay::AnswerRelay(ranks::Communicator& ranks, GenerateSink& sink, std::size_t num_prompts)
    : ranks_(ranks), sink_(sink) {
  if (ranks.world_size() == 1) return;
  const std::int64_t of_rank_0 = ceil_div(static_cast<std::int64_t>(num_prompts), ranks.world_size());
  num_rounds_ = ceil_div(of_rank_0, kAnswersPerRound);
}

bool AnswerRelay::on_token(std::size_t prompt, std::size_t place, bool is_base, std::int32_t id) {
  if (ranks_.rank() > 0) tokens_[{place, is_base}].push_back(id);
  return sink_.on_token(prompt, is_base, id);
}

void AnswerRelay::on_done(std::size_t prompt, std::size_t place, bool is_base, bool is_cut) {
  sink_.on_done(prompt, is_base, is_cut);
  if (ranks_.rank() > 0) {
    const auto answer = tokens_.extract({place, is_base});
    sent_ += json{place, is_base, is_cut, answer ? answer.mapped() : std::vector<std::int32_t>()}.dump() + "\n";
  }
  if (is_base || num_rounds_ == 0) return;  // that of the adapter follows
  if (++num_done_ % kAnswersPerRound == 0) exchange();
}

void AnswerRelay::exchange() {
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

void AnswerRelay::finish() {
  while (num_exchanged_ < num_rounds_) exchange();
}

bool AnswerRelay::finish_after_stop() {
  if (num_rounds_ == 0) return false;
  if (num_exchanged_ == num_rounds_) return true;
  exchange();
  return false;
}

}  // namespace lora_train::evaluate
