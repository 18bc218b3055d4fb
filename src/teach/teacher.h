// A teacher behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, TGI, ...): questions out, answers in.
#pragma once

#include <string>

#include "lora_train/base/error.h"
#include "lora_train/hub/http/client.h"
#include "lora_train/teach/teach_run.h"

namespace lora_train::teach {

/// An error as "HTTP 404: " and OpenAI's {"error": {"message"}}, FastAPI's {"detail"}, or the text.
std::string server_message(const hub::Answer& answer);

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
  /// `model` empty: the first on the server's list. Asks the server for its models. Throws IoError if it does not
  /// answer, refuses the key, or lists none and `model` is empty. Request and sampling outlive the object.
  Teacher(std::string url, std::string model, const TeachRequest& request, const SamplingOptions& sampling);

  const std::string& model() const { return model_; }

  /// Throws RefusedQuestion, NoAnswer, StopError, and IoError for an error that no other question will get past (key,
  /// path, model).
  Answer ask(const Question& question);

 private:
  std::string body_of(const Question& question) const;
  Answer parse(const std::string& body) const;
  hub::Request request(const std::string& path) const;
  std::string send(hub::Request request, const std::string& source);
  /// Reads the server's list of models: sets asks_for_ids_, and the model unless one is named.
  void read_models();

  std::string url_;  ///< "http://host:8000/v1"
  std::string key_;  ///< sent as a bearer token; never in a message or a log
  std::string model_;
  const TeachRequest& request_;
  const SamplingOptions& sampling_;
  bool asks_for_ids_ = false;  ///< token ids instead of texts, several of which may be equal; from vLLM
  hub::Client client_;
};

}  // namespace lora_train::teach
