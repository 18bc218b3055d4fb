// The answer to one request: tokens in, JSON or server-sent events out, through an outbox that a slow client cannot
// fill.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/data/encode/prompts.h"
#include "lora_train/generate/prompt.h"
#include "lora_train/serve/api_request.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::serve {

/// Thread-safe. The writer never waits for the reader, which is suspended when there is nothing to read. Suspending and
/// waking happen under the lock, so no wake-up is lost.
class Outbox {
 public:
  using Call = std::function<void()>;

  /// For the writer. `status` is that of the whole answer, once known; only the first one counts.
  void write(std::string_view bytes);
  void finish(int status);

  /// For the reader: how to wake it. Call it before the first wait.
  void set_resume(Call resume);
  /// Copies up to `most` bytes. Returns 0 if there are none, and then calls `suspend` unless is_finished().
  std::size_t read(char* to, std::size_t most, const Call& suspend);
  /// True once the answer is whole; otherwise calls `suspend`.
  bool is_whole_or(const Call& suspend);
  /// Drops the rest: the client has gone or is given up. Wakes a suspended reader.
  void cancel();
  /// The same, called by the reader itself: it is not woken, now or later.
  void abandon();

  bool is_cancelled() const { return locked(is_cancelled_); }
  bool is_finished() const { return locked(is_finished_); }
  int status() const { return locked(status_); }

 private:
  template <class Value>
  Value locked(const Value& member) const {
    const std::lock_guard lock(mutex_);
    return member;
  }
  void wake();

  mutable std::mutex mutex_;
  std::string bytes_;
  std::size_t num_read_ = 0;
  int status_ = 0;
  bool is_finished_ = false, is_cancelled_ = false, is_suspended_ = false;
  Call resume_;
};

/// The text of an answer, token by token, up to the first stop string.
class AnswerText {
 public:
  /// `tokenizer` must outlive it.
  AnswerText(const tokenizer::Tokenizer& tokenizer, const std::vector<std::string>& stop_strings)
      : stream_(tokenizer), stops_(stop_strings) {}

  /// The text that may be shown now.
  std::string push(std::int32_t id) { return take(stream_.push(id)); }
  /// The rest, after the last token.
  std::string finish();
  /// All text so far.
  const std::string& text() const { return text_; }
  /// True if a stop string ended it.
  bool is_stopped() const { return stops_.is_found(); }

 private:
  std::string take(const std::string& piece);

  tokenizer::TextStream stream_;
  tokenizer::StopStrings stops_;
  std::string text_;
};

struct ServedModel {
  std::string name;
  const tokenizer::Tokenizer* tokenizer = nullptr;         ///< never null
  const tokenizer::ChatTemplate* chat_template = nullptr;  ///< null: no chats
  std::vector<std::int32_t> stop_ids;
  std::int32_t vocab_size = 0;          ///< rows of the embedding; larger ids are refused
  std::optional<std::int64_t> adapter;  ///< generate::Prompt::adapter
  bool is_raw = false;                  ///< the one message of a chat is passed unchanged
};

struct ChoiceJson;

/// Choice i belongs to prompt i / n. The calls on_... come from one thread; `outbox` and the counts may be read from
/// another.
class Answer {
 public:
  /// `model` must outlive the answer. `id` and `created` (seconds since 1970) appear in it.
  Answer(ApiRequest request, const ServedModel& model, std::vector<data::Prompt> prompts, std::string id,
         std::int64_t created);
  ~Answer();

  std::size_t num_choices() const;
  /// A choice's prompt for the model; the caller sets `id`.
  generate::Prompt ask(std::size_t choice, std::int64_t max_new_tokens) const;

  /// Returns false if the choice has met a stop string or the client has gone.
  bool on_token(std::size_t choice, const generate::Token& token);
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
  void send_part(std::size_t index, ChoiceJson part);
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
