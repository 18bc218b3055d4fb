// A teacher behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, TGI, ...): questions out, answers in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/config/sampling.h"
#include "lora_train/hub/http/client.h"

namespace lora_train::teach {

struct TeacherOptions {
  std::string url;         ///< "http://host:8000/v1"
  std::string key = {};    ///< sent as a bearer token; never in a message or a log
  std::string model = {};  ///< empty: the first on the server's list
  bool is_raw = false;     ///< use /completions, with a text instead of messages
  SamplingOptions sampling = {};
  std::int64_t max_tokens = 1024;
  std::vector<std::string> stop = {};
  std::int64_t top_logprobs = 0;  ///< alternatives to request with each token; 0 = none
  bool asks_for_ids = false;  ///< token ids instead of texts, several of which may be equal; Teacher sets it for vLLM
  double timeout_s = 600;     ///< without a byte from the server
  int num_tries = 3;          ///< for answers that cannot be used
};

struct Question {
  std::string source;      ///< for messages: "prompts.jsonl:3"
  std::string prompt;      ///< JSON: the messages, or the text if raw
  std::string tools = {};  ///< JSON array; empty = none
  std::uint64_t seed = 0;
};

struct Answer {
  std::string message;        ///< JSON: the assistant's message {"role", "content", ...}, or the text if raw
  std::string finish_reason;  ///< "stop", "length", ...; "" if the server gives none
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
  std::string logprobs = {};  ///< JSON as the server gave it; empty unless requested
};

/// The server refuses this question, but answers others: it is too long, for example. `where` is the question's source.
class RefusedQuestion : public DataError {
 public:
  using DataError::DataError;
};

/// No usable answer came after all tries.
class NoAnswer : public IoError {
 public:
  using IoError::IoError;
};

/// Thread-safe: every thread that calls ask() has a question in flight.
class Teacher {
 public:
  /// Asks the server for its models. Throws IoError if it does not answer, refuses the key, or lists none and options
  /// name none.
  explicit Teacher(TeacherOptions options);

  const std::string& model() const { return options_.model; }

  /// Throws RefusedQuestion, NoAnswer, StopError, and IoError for an error that no other question will get past (key,
  /// path, model).
  Answer ask(const Question& question);

 private:
  hub::Request request(const std::string& path) const;
  std::string send(hub::Request request, const std::string& source);
  /// Reads the server's list of models: sets asks_for_ids, and the model unless one is named.
  void read_models();

  TeacherOptions options_;
  hub::Client client_;
};

}  // namespace lora_train::teach
