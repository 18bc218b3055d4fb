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
  std::string key = {};    ///< sent as a bearer token; in no message and no log
  std::string model = {};  ///< empty: the first that the server lists
  bool is_raw = false;     ///< /completions, with a text in place of messages
  SamplingOptions sampling = {};
  std::int64_t max_tokens = 1024;
  std::vector<std::string> stop = {};
  std::int64_t top_logprobs = 0;  ///< alternatives asked for with each token; 0 = none
  bool asks_for_ids = false;  ///< of tokens in place of texts, several of which may be equal; Teacher sets it for vLLM
  double timeout_s = 600;     ///< without a byte from the server
  int num_tries = 3;          ///< where an answer comes that is none
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
  std::string logprobs = {};  ///< JSON as the server gave it; empty if it was not asked for
};

/// The server answers others, but not this question: it is too long, for example. `where` is the question's source.
class RefusedQuestion : public DataError {
 public:
  using DataError::DataError;
};

/// No answer came, or none that can be read, after all tries.
class NoAnswer : public IoError {
 public:
  using IoError::IoError;
};

/// Thread-safe: as many questions are asked at a time as threads call ask().
class Teacher {
 public:
  /// Asks the server for its models unless options name one. Throws IoError where it does not answer, refuses the key, or has none.
  explicit Teacher(TeacherOptions options);

  const std::string& model() const { return options_.model; }

  /// Throws RefusedQuestion, NoAnswer, StopError, and IoError for what no other question will get past either (key, path, model).
  Answer ask(const Question& question);

 private:
  hub::Request request(const std::string& path) const;
  std::string send(hub::Request request, const std::string& source);
  /// Sets what the server's list of models says: the model, unless one is named, and asks_for_ids.
  void read_models();

  TeacherOptions options_;
  hub::Client client_;
};

}  // namespace lora_train::teach
