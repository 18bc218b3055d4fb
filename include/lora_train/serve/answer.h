// The answer to one request: tokens in, JSON or server-sent events out.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/data/encode/prompts.h"
#include "lora_train/serve/api_request.h"
#include "lora_train/serve/outbox.h"
#include "lora_train/serve/request_queue.h"
#include "lora_train/serve/served_model.h"

namespace lora_train::serve {

/// Choice i belongs to prompt i / n. The calls on_... come from one thread; `outbox` and the counts may be read from another.
class Answer {
 public:
  /// `model` must outlive the answer. `id` and `created` (seconds since 1970) appear in it.
  Answer(ApiRequest request, const ServedModel& model, std::vector<data::Prompt> prompts, std::string id,
         std::int64_t created);
  ~Answer();

  std::size_t num_choices() const;
  /// What a choice asks of the model; `id` is left to the caller.
  ServedRequest ask(std::size_t choice, std::int64_t max_new_tokens) const;

  /// False: the choice has met a stop string, or the client has gone.
  bool on_token(std::size_t choice, const ServedToken& token);
  void on_done(std::size_t choice, bool is_cut);
  /// Ends the whole answer with an error.
  void on_failure(int status, const std::string& message);

  const ApiRequest& request() const { return request_; }
  const std::vector<data::Prompt>& prompts() const { return prompts_; }
  std::int64_t num_prompt_tokens() const;
  std::int64_t num_new_tokens() const { return num_new_; }

  Outbox outbox;

 private:
  struct Choice;
  void send_text(std::size_t index, const std::string& text);
  void send_event(const std::string& json);
  void finish();

  ApiRequest request_;
  const ServedModel& model_;
  std::vector<data::Prompt> prompts_;
  std::string id_;
  std::int64_t created_;
  std::vector<Choice> choices_;
  std::size_t num_done_ = 0;
  std::atomic<std::int64_t> num_new_ = 0;
};

}  // namespace lora_train::serve
