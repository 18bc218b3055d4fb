// Brings the answers of all ranks to rank 0.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/evaluate/generate_request.h"
#include "lora_train/ranks/communicator.h"

namespace lora_train::evaluate {

/// Prompts are dealt out to the ranks one after the other, and named by their place in the list of rank 0. Every kAnswersPerRound
/// answers a rank takes part in a collective, which passes the answers of the others on to the sink of rank 0: decoding goes on
/// with what is in the batch. With one rank, there is no collective.
class AnswerRelay {
 public:
  static constexpr std::int64_t kAnswersPerRound = 16;

  AnswerRelay(ranks::Communicator& ranks, GenerateSink& sink, std::size_t num_prompts);

  /// As GenerateSink, of the prompts of this rank. `prompt` is the index in its own request, `place` in that of rank 0.
  bool on_token(std::size_t prompt, std::size_t place, bool is_base, std::int32_t id);
  void on_done(std::size_t prompt, std::size_t place, bool is_base, bool is_cut);

  /// After the last answer: takes part in the collectives that other ranks still need.
  void finish();
  /// After an agreed stop (Communicator::end_steps): one more collective, for the answers since the last. True if there was nothing
  /// left to do: the stop came too late.
  bool finish_after_stop();

 private:
  void exchange();

  ranks::Communicator& ranks_;
  GenerateSink& sink_;
  std::int64_t num_rounds_ = 0, num_exchanged_ = 0, num_done_ = 0;
  std::map<std::pair<std::size_t, bool>, std::vector<std::int32_t>> tokens_;  ///< of answers under way
  std::string sent_;                                                          ///< lines
};

}  // namespace lora_train::evaluate
