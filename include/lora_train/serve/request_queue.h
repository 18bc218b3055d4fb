// Requests that come and go while others are answered (continuous batching), as plain data without torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/sampling.h"

namespace lora_train::serve {

struct ServedRequest {
  std::int64_t id = 0;  ///< identifies it in the calls of RequestQueue
  std::vector<std::int32_t> ids;
  std::int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  std::int64_t index = 0;  ///< part of the sampler's key, with sampling.seed
  std::vector<std::int32_t> stop_ids;
  /// Index of the adapter to use, or -1 for the base model. Empty: the model as it was loaded.
  std::optional<std::int64_t> owner;
  std::optional<std::int64_t> num_top;  ///< log-probabilities: of the token, and of this many of the most likely ones
};

/// A new token. Its log-probabilities, if requested, are those before temperature and filters.
struct ServedToken {
  std::int32_t id = 0;
  double log_probability = 0;
  std::vector<std::pair<std::int32_t, double>> top = {};  ///< most likely first
};

/// Source of requests and sink of tokens. Called in the thread of generate::Generator::serve(), between two passes.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;
  /// Called once, before next(). A request may have at most this many tokens, new ones included.
  virtual void on_start(std::int64_t max_tokens) = 0;
  /// The next request. With `may_wait`, nothing is being computed: waits for one, and returns nothing only to end
  /// serve().
  virtual std::optional<ServedRequest> next(bool may_wait) = 0;
  /// True if a client still waits for the answer; asked before each pass over its prompt. False ends it, without
  /// on_done().
  virtual bool is_wanted(std::int64_t id) = 0;
  /// Return false to end the answer; on_done() follows.
  virtual bool on_token(std::int64_t id, const ServedToken& token) = 0;
  /// is_cut: neither a stop token nor on_token() ended it.
  virtual void on_done(std::int64_t id, bool is_cut) = 0;
  /// The answer cannot be computed; the others go on.
  virtual void on_failure(std::int64_t id, const std::string& message) = 0;
};

}  // namespace lora_train::serve
