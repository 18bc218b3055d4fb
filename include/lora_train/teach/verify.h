// Which of an adapter and its base does an OpenAI-compatible server answer as? Asks for log-probabilities, and compares
// them with our own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora_train/hub/http/client.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::teach {

/// A prompt with a fixed continuation.
struct Continuation {
  std::vector<std::int32_t> prompt = {}, tokens = {};  ///< neither empty
  std::string messages = {};                           ///< the prompt as a chat, a JSON array; empty: it is a text
  std::int64_t max_tokens = 0;                         ///< of a continuation that the server chooses
};

/// Tokens that follow a prompt, with the server's log-probabilities.
struct ServedTokens {
  std::vector<std::int32_t> ids = {};                 ///< Continuation::tokens, or the server's own
  std::vector<std::optional<double>> log_probs = {};  ///< for each id; empty: the server gives none for this token
  std::int64_t num_left_out = 0;                      ///< those, and tokens whose ids the server does not tell
};

/// Reads the log-probabilities in an answer: those of a prompt that it repeats (`is_echo`; no ids if it does not), or of
/// the server's own continuation. A token is known by its id, or by its text if that leaves no doubt; own tokens after
/// an unknown one are left out. A number that is no log-probability, or at most -9999 (OpenAI's "not listed"), is none.
ServedTokens read_log_probs(const std::string& body, const Continuation& asked, bool is_echo,
                            const tokenizer::Tokenizer& tokenizer);

/// A model on a server; the key is in $OPENAI_API_KEY. Throws IoError if the server does not answer, or refuses the key.
class ServerModel {
 public:
  /// `url`: with or without /v1. Takes the model `name`, else the first of `own_names` that the server lists, else its
  /// only one. Throws ConfigError, which lists them, if there is no such model.
  ServerModel(std::string url, std::string name, const std::vector<std::string>& own_names,
              const tokenizer::Tokenizer& tokenizer);

  const std::string& name() const { return name_; }
  /// Numbers for the continuation, or, of a server that does not repeat prompts, for its own greedy one.
  ServedTokens ask(const Continuation& asked);
  /// Why ask() has brought no number yet.
  const std::string& problem() const { return problem_; }

 private:
  hub::Answer send(const std::string& path, const std::string& body);

  std::string url_, key_, name_, problem_;
  std::optional<std::size_t> way_;  ///< of asking, which has brought numbers
  const tokenizer::Tokenizer& tokenizer_;
  hub::Client client_;
};

struct Comparison {
  std::string verdict = "neither";             ///< or "adapter", "base"
  bool can_tell = true;                        ///< false: the adapter is within 0.02 of its base on these tokens
  double gap_to_adapter = 0, gap_to_base = 0;  ///< mean difference per token
  double max_gap = 0;                          ///< largest difference of a token to the adapter
  std::int64_t num_tokens = 0, num_left_out = 0;
};

/// `with_adapter` and `of_base`: our own log-probabilities of the ids. At least one has the server's number.
Comparison compare(const std::vector<ServedTokens>& served, const std::vector<std::vector<double>>& with_adapter,
                   const std::vector<std::vector<double>>& of_base);

}  // namespace lora_train::teach
