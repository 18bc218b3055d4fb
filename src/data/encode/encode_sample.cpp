#include "encode_sample.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <span>
#include <tuple>

#include "encode/template_form.h"
#include "encode/thinking.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/data/encode/task_examples.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "read/example_format.h"

namespace lora_train::data {
namespace {

using tokenizer::ByteRange;

std::vector<std::int32_t> masked(const std::vector<std::int32_t>& ids, const std::vector<std::uint8_t>& is_trained) {
  std::vector<std::int32_t> labels(ids);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i] = is_trained[i] != 0 ? ids[i] : kIgnoredLabel;
  }
  return labels;
}

std::optional<float> weight_of(const ChatSample& chat, std::size_t message) {
  return message < chat.weights.size() ? chat.weights[message] : std::nullopt;
}

bool is_skipped(const ChatSample& chat, std::size_t message) { return weight_of(chat, message) == 0.0F; }

/// True if the example asks for a weight other than 1, the weight of every trained turn.
bool is_weighted(const ChatSample& chat, std::size_t message) { return weight_of(chat, message).value_or(1) != 1; }

// Refuses weights on turns without their own span.
void check_weights(const ChatSample& chat, LossOn loss_on) {
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    const bool is_all = loss_on == LossOn::kAll;
    const bool is_possible = is_all ? !is_weighted(chat, i) : weight_of(chat, i).value_or(0) == 0;
    if (chat.messages[i].role == "assistant" || is_possible) continue;
    throw DataError("", "message {} ({}) is marked {}", i, chat.messages[i].role,
                    is_all ? "as not trained, or with a weight, but loss_on: all trains every non-assistant turn with "
                             "weight 1"
                           : "as trained (train, weight), but only assistant turns are; remove the mark, or set "
                             "loss_on: all");
  }
}

// The first message whose turn loss_on trains.
std::size_t first_trained(const ChatSample& chat, LossOn loss_on) {
  if (loss_on != LossOn::kLast) return loss_on == LossOn::kAssistant ? 0 : chat.num_prompt_messages;
  const auto is_assistant = [](const tokenizer::Message& message) { return message.role == "assistant"; };
  const auto last = std::find_if(chat.messages.rbegin(), chat.messages.rend(), is_assistant);
  return static_cast<std::size_t>(chat.messages.rend() - last) - (last == chat.messages.rend() ? 0 : 1);
}

// Refuses a weight on a turn that the template does not locate in the text.
void check_places(const ChatSample& chat, const tokenizer::RenderedChat& rendered) {
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    if (is_weighted(chat, i) && std::ranges::count(rendered.span_message, static_cast<int>(i)) == 0) {
      throw DataError("",
                      "message {} is marked {}, but the chat template does not show where it is in the text; set "
                      "loss_on: assistant",
                      i, is_skipped(chat, i) ? "as not trained" : "with a weight");
    }
  }
}

// The spans of the turns whose message `is_chosen` accepts; SIZE_MAX if the template does not show whose turn it is.
template <class IsChosen>
std::vector<ByteRange> spans_where(const tokenizer::RenderedChat& rendered, const IsChosen& is_chosen) {
  std::vector<ByteRange> spans;
  for (std::size_t i = 0; i < rendered.spans.size(); ++i) {
    if (is_chosen(static_cast<std::size_t>(rendered.span_message[i]))) spans.push_back(rendered.spans[i]);
  }
  return spans;
}

// One weight per token; a token that overlaps several turns gets the largest of their weights. Empty if all trained
// tokens have weight 1.
std::vector<float> token_weights(const ChatSample& chat, const tokenizer::RenderedChat& rendered,
                                 const std::vector<ByteRange>& offsets, const std::vector<std::int32_t>& labels) {
  std::set<float> values;
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    if (is_weighted(chat, i) && !is_skipped(chat, i)) values.insert(*weight_of(chat, i));
  }
  std::vector<float> weights;
  for (const float value : values) {
    const auto is_inside = tokenizer::trained_tokens(
        offsets, spans_where(rendered, [&](std::size_t message) { return weight_of(chat, message) == value; }));
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (is_inside[i] == 0 || labels[i] == kIgnoredLabel) continue;
      if (weights.empty()) {
        std::transform(labels.begin(), labels.end(), std::back_inserter(weights),
                       [](std::int32_t label) { return label == kIgnoredLabel ? 0.0F : 1.0F; });
      }
      weights[i] = value;
    }
  }
  return weights;
}

// Refuses a choice of turns if the template does not show which turn is whose.
void check_turns_are_told(const ChatSample& chat, const tokenizer::RenderedChat& rendered, LossOn loss_on) {
  const bool is_part =
      std::ranges::any_of(chat.weights, [](std::optional<float> weight) { return weight.value_or(1) != 1; }) ||
      loss_on == LossOn::kLast || (loss_on != LossOn::kAll && chat.num_prompt_messages > 0);
  if (is_part && std::ranges::count(rendered.span_message, -1) > 0) {
    throw DataError("",
                    "the chat template's {% generation %} does not show whose turn it is, so training only some turns "
                    "is impossible; set loss_on: assistant, and remove train and weight from all turns");
  }
}

// Per token, 1 if trained. Under `all`, a token that overlaps a skipped turn is not.
std::vector<std::uint8_t> trained_of_chat(const ChatSample& chat, const tokenizer::RenderedChat& rendered,
                                          const std::vector<ByteRange>& offsets, LossOn loss_on) {
  check_weights(chat, loss_on);
  check_turns_are_told(chat, rendered, loss_on);
  if (loss_on != LossOn::kAll) {
    const std::size_t first = first_trained(chat, loss_on);
    const auto is_chosen = [&](std::size_t message) { return message >= first && !is_skipped(chat, message); };
    return tokenizer::trained_tokens(offsets, spans_where(rendered, is_chosen));
  }
  const std::vector<ByteRange> whole = {{0, static_cast<std::uint32_t>(rendered.text.size())}};
  auto is_trained = tokenizer::trained_tokens(offsets, whole);
  check_places(chat, rendered);
  const auto is_left_out = tokenizer::trained_tokens(
      offsets, spans_where(rendered, [&](std::size_t message) { return is_skipped(chat, message); }));
  for (std::size_t i = 0; i < is_trained.size(); ++i) {
    is_trained[i] = is_trained[i] != 0 && is_left_out[i] == 0 ? 1 : 0;
  }
  return is_trained;
}

// The non-empty fields of an assistant message other than its content.
std::vector<std::string> fields_beside_content(const tokenizer::Message& message) {
  const Json fields = Json::parse(message.json, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names;
  for (const char* name : {"tool_calls", "reasoning_content", "reasoning", "thinking"}) {
    if (!fields.is_object() || !fields.contains(name)) continue;
    const Json& field = fields[name];
    const bool is_empty = field.is_string() ? is_blank(field.get_ref<const std::string&>()) : field.empty();
    if (!is_empty) names.push_back(name);
  }
  return names;
}

bool is_lost(const tokenizer::RenderedChat& rendered, std::size_t message, const std::string& field) {
  return std::ranges::any_of(rendered.omissions, [&](const tokenizer::Omission& omission) {
    return omission.message == static_cast<int>(message) && omission.field == field && !omission.is_partial;
  });
}

// The first trained answer that is empty. Refuses an answer of which the template writes nothing although it has tool
// calls: the model would learn to be silent where the example calls a tool.
std::string first_empty_answer(const ChatSample& chat, const tokenizer::RenderedChat& rendered, LossOn loss_on) {
  std::string first;
  for (std::size_t i = first_trained(chat, loss_on); i < chat.messages.size(); ++i) {
    const tokenizer::Message& message = chat.messages[i];
    if (message.role != "assistant" || is_skipped(chat, i) || !is_blank(message.content)) continue;
    const std::string name = fmt::format("messages[{}]", i);
    const std::vector<std::string> fields = fields_beside_content(message);
    if (fields.empty()) {
      first = first.empty() ? name : first;
    } else if (fields.front() == "tool_calls" &&
               std::ranges::all_of(fields, [&](const std::string& field) { return is_lost(rendered, i, field); })) {
      throw DataError("", name + " would be trained as an empty answer: it has " + join(fields, " and ") +
                              " but no content, and the chat template leaves that out. Set chat_template to one that "
                              "writes it, or mark the turn with train: false");
    }
  }
  return first;
}

tokenizer::RenderedChat render(const ChatSample& chat, const tokenizer::ChatTemplate& chat_template) {
  try {
    return chat_template.render(chat.messages, {false, chat.tools_json, chat.kwargs_json});
  } catch (const DataError& error) {
    throw DataError("", "the chat template refuses the example: " + std::string(error.what()));
  }
}

/// "part of messages[0].content (system)"
std::string describe(const tokenizer::Omission& omission, const std::vector<tokenizer::Message>& messages) {
  if (omission.message == tokenizer::Omission::kTools) return omission.is_partial ? "part of tools" : "tools";
  return fmt::format("{}{}].{} ({})", omission.is_partial ? "part of messages[" : "messages[", omission.message,
                     omission.field, messages[static_cast<std::size_t>(omission.message)].role);
}

/// Refuses a chat of which the template leaves out a turn with a role that not every template knows.
void refuse_lost_roles(const ChatSample& chat, const tokenizer::RenderedChat& rendered) {
  constexpr std::string_view kCommon[] = {"system", "user", "assistant", "tool"};
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    const std::string& role = chat.messages[i].role;
    if (std::ranges::count(kCommon, role) > 0 || !is_lost(rendered, i, "content")) continue;
    throw DataError("",
                    "messages[{}] has the role {}, and the chat template leaves such turns out. Give them another "
                    "role with field_map: {{{}: {}}}, or set chat_template to a template that writes them",
                    i, role, role == "developer" ? "system" : "tool", role);
  }
}

const tokenizer::ChatTemplate& template_of(const ChatSample& chat, const tokenizer::ChatTemplate& chat_template) {
  return chat.tools_json.empty() ? chat_template : chat_template.for_tools();
}

EncodedSample encode(const ChatSample& given, const EncodeOptions& options) {
  const tokenizer::ChatTemplate& chat_template = template_of(given, *options.chat_template);
  const TemplateForm form = template_form(given, chat_template, options.null_fields);
  const ChatSample chat = with_thinking(form.chat, chat_template, options.thinking);
  const tokenizer::RenderedChat rendered = render(chat, chat_template);
  refuse_lost_roles(chat, rendered);
  auto encoding = options.tokenizer->encode(rendered.text, /*with_offsets=*/true);
  EncodedSample out;
  out.thoughts = count_thoughts(form.chat, chat, rendered, options.thinking);
  out.has_dropped_nulls = form.has_dropped_nulls;
  out.has_decoded_arguments = form.has_decoded_arguments;
  out.labels = masked(encoding.ids, trained_of_chat(chat, rendered, encoding.offsets, options.loss_on));
  out.weights = token_weights(chat, rendered, encoding.offsets, out.labels);
  out.ids = std::move(encoding.ids);
  out.empty_answer = first_empty_answer(chat, rendered, options.loss_on);
  if (!rendered.omissions.empty()) out.not_rendered = describe(rendered.omissions.front(), chat.messages);
  out.has_system_turn = std::ranges::any_of(
      chat.messages, [](const auto& turn) { return turn.role == "system" || turn.role == "developer"; });
  return out;
}

// BOS and EOS as Hugging Face's tokenizer and TRL add them to non-chat text.
EncodedSample encode(const TextSample& text, const EncodeOptions& options) {
  const std::string whole = text.prompt + text.completion;
  auto encoding = options.tokenizer->encode(whole, /*with_offsets=*/true);
  const auto begin = static_cast<std::uint32_t>(options.loss_on == LossOn::kAll ? 0 : text.prompt.size());
  const std::vector<ByteRange> spans = {{begin, static_cast<std::uint32_t>(whole.size())}};
  EncodedSample out;
  if (!text.prompt.empty() && is_blank(text.completion)) out.empty_answer = "completion";
  out.labels = masked(encoding.ids, tokenizer::trained_tokens(encoding.offsets, spans));
  out.ids = std::move(encoding.ids);
  const auto eos = options.tokenizer->eos_id();
  if (eos && (out.ids.empty() || out.ids.back() != *eos)) {
    out.ids.push_back(*eos);
    out.labels.push_back(*eos);
  }
  if (add_bos(*options.tokenizer, out.ids)) out.labels.insert(out.labels.begin(), kIgnoredLabel);
  return out;
}

EncodedSample encode(const TokenSample& tokens, const EncodeOptions& options) {
  if (tokens.labels.empty() && options.loss_on != LossOn::kAll) {
    throw DataError("",
                    "\"labels\" is missing; add labels (-100 = not trained), or set loss_on: all to train every token");
  }
  return {.ids = tokens.ids,
          .labels = options.loss_on == LossOn::kAll ? tokens.ids : tokens.labels,
          .documents = tokens.documents};
}

void check_ids(const std::vector<std::int32_t>& values, const char* field, const EncodeOptions& options) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [&](std::int32_t id) { return id >= options.vocab_size; });
  if (bad != values.end()) {
    throw DataError("",
                    "{}[{}] is {}, but the model has {} tokens (ids 0 to {}): the example was made with another "
                    "tokenizer, or the folder's tokenizer is not the model's",
                    field, bad - values.begin(), *bad, options.vocab_size, options.vocab_size - 1);
  }
}

[[noreturn]] void refuse_without_template(const std::string& what) {
  throw FormatError("chat_template", what +
                                         " need a chat template, and the model folder has none; set chat_template to "
                                         "chatml, another built-in name (docs/data.md) or a .jinja file");
}

void warn_of_omission(const tokenizer::RenderedChat& rendered, const std::vector<tokenizer::Message>& messages) {
  static std::atomic<bool> has_warned = false;
  if (rendered.omissions.empty() || has_warned.exchange(true)) return;
  log_warning("the chat template leaves out {}: the model does not see it",
              describe(rendered.omissions.front(), messages));
}

/// The token that the teacher chose, and the candidates it considered, including that one.
struct TeacherToken {
  std::int32_t id = SoftLabels::kNone;
  std::vector<std::pair<std::int32_t, float>> alternatives = {};

  void add(std::int32_t alternative, float log_prob) {
    const bool is_new =
        std::ranges::find(alternatives, alternative, [](const auto& a) { return a.first; }) == alternatives.end();
    if (alternative != SoftLabels::kNone && is_new) alternatives.emplace_back(alternative, log_prob);
  }
};

float log_prob_of(const Json& value, const std::string& place) {
  if (!value.is_number()) wrong_type(place, value, "a number");
  return value.get<float>();
}

std::pair<std::int32_t, float> read_token(const Json& entry, const std::string& place,
                                          const TeacherVocabulary& vocabulary) {
  if (!entry.is_object()) wrong_type(place, entry, "an object with token and logprob");
  const float log_prob = log_prob_of(entry.value("logprob", Json()), place + ".logprob");
  if (entry.contains("id") && entry["id"].is_number_integer())
    return {vocabulary.id_of_number(entry["id"].get<std::int64_t>()), log_prob};
  return {vocabulary.id_of_text(string_of(entry.value("token", Json()), place + ".token")), log_prob};
}

/// The format for chats.
std::vector<TeacherToken> read_content(const Json& list, const TeacherVocabulary& vocabulary) {
  std::vector<TeacherToken> tokens;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("logprobs.content[{}]", i);
    const auto [id, log_prob] = read_token(list[i], place, vocabulary);
    TeacherToken token{id};
    token.add(id, log_prob);
    const Json top = list[i].value("top_logprobs", Json());
    if (!top.is_null() && !top.is_array()) wrong_type(place + ".top_logprobs", top, "a list");
    for (std::size_t k = 0; k < top.size(); ++k) {
      const auto [other, value] = read_token(top[k], fmt::format("{}.top_logprobs[{}]", place, k), vocabulary);
      token.add(other, value);
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// The format for completions.
std::vector<TeacherToken> read_lists(const Json& lists, const TeacherVocabulary& vocabulary) {
  const Json texts = lists.value("tokens", Json()), values = lists.value("token_logprobs", Json());
  const Json tops = lists.value("top_logprobs", Json());
  if (!texts.is_array() || !values.is_array() || texts.size() != values.size())
    throw DataError("", "logprobs has neither content nor lists tokens and token_logprobs of equal length");
  std::vector<TeacherToken> tokens;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string place = fmt::format("[{}]", i);
    TeacherToken token{vocabulary.id_of_text(string_of(texts[i], "logprobs.tokens" + place))};
    if (!values[i].is_null()) token.add(token.id, log_prob_of(values[i], "logprobs.token_logprobs" + place));
    if (tops.is_array() && i < tops.size() && tops[i].is_object()) {
      for (const auto& [text, value] : tops[i].items())
        token.add(vocabulary.id_of_text(text), log_prob_of(value, "logprobs.top_logprobs" + place));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<TeacherToken> read_tokens(const Json& logprobs, const TeacherVocabulary& vocabulary) {
  if (logprobs.is_array()) return read_content(logprobs, vocabulary);
  if (!logprobs.is_object()) wrong_type("logprobs", logprobs, "an object as servers return it");
  const Json content = logprobs.value("content", Json());
  return content.is_array() ? read_content(content, vocabulary) : read_lists(logprobs, vocabulary);
}

}  // namespace

bool is_chat(DatasetType type) {
  return type == DatasetType::kMessages || type == DatasetType::kSharegpt || type == DatasetType::kAlpaca;
}

void check_loss_on(DatasetType type, const EncodeOptions& options) {
  const LossOn loss_on = options.loss_on;
  const bool is_free = loss_on == LossOn::kAuto || loss_on == LossOn::kAll || type == DatasetType::kPromptCompletion;
  if (is_chat(type) ? loss_on == LossOn::kCompletion : !is_free) {
    throw ConfigError("loss_on", "`{}` does not apply to {} examples; expected one of: auto, {}all", to_string(loss_on),
                      to_string(type), is_chat(type) ? "assistant, last, " : "");
  }
  if (type != DatasetType::kPretokenized && options.tokenizer == nullptr) {
    throw FormatError("tokenizer", to_string(type) + " examples need a tokenizer, and the model folder has none");
  }
  if (is_chat(type) && options.chat_template == nullptr) {
    refuse_without_template(to_string(type) + " examples");
  }
}

std::string describe_loss(DatasetType type, LossOn loss_on) {
  if (loss_on == LossOn::kAll) return "all tokens";
  if (type == DatasetType::kPretokenized) return "the examples' own labels";
  if (type == DatasetType::kText) return "all tokens of texts";
  if (!is_chat(type) && loss_on != LossOn::kAssistant && loss_on != LossOn::kLast) return "completions";
  return loss_on == LossOn::kLast ? "the last assistant turn of each chat" : "assistant turns of chats";
}

EncodedSample encode_sample(const Sample& sample, const EncodeOptions& options) {
  if (std::holds_alternative<ChatSample>(sample) && options.chat_template == nullptr) {
    refuse_without_template("lists of messages");
  }
  EncodedSample out = std::visit([&](const auto& content) { return encode(content, options); }, sample);
  out.is_chat = std::holds_alternative<ChatSample>(sample);
  if (options.vocab_size > 0) {
    check_ids(out.ids, "input_ids", options);
    check_ids(out.labels, "labels", options);
  }
  return out;
}

ChatSample chat_of_prompt(const Json& example, const FieldMap& map) {
  const Json& prompt = required(example, map, "prompt");
  if (!prompt.is_array()) wrong_type("prompt", prompt, "a text or a list of messages");
  return parse_messages(example, map, "prompt");
}

ChatSample chat_of_example(const Json& example) {
  constexpr std::pair<const char*, DatasetType> kChats[] = {{"messages", DatasetType::kMessages},
                                                            {"conversations", DatasetType::kSharegpt},
                                                            {"instruction", DatasetType::kAlpaca}};
  for (const auto& [field, type] : kChats) {
    if (optional_field(example, {}, field) != nullptr) return std::get<ChatSample>(parse_example(example, type, {}));
  }
  throw DataError("", "the example (" + (example.empty() ? "no keys" : key_names(example)) +
                          ") has no prompt; expected {\"prompt\": \"...\"} or {\"messages\": [...]}");
}

std::string render_chat_prompt(const ChatSample& chat, const PromptOptions& options) {
  if (options.raw) throw DataError("", "a list of messages needs the chat template; pass a text, or --raw=false");
  if (options.chat_template == nullptr) {
    throw FormatError("chat_template",
                      "the model folder has no chat template. Use --raw to pass the text unchanged, or --set "
                      "chat_template=FILE.jinja");
  }
  ChatSample given = chat;
  if (!options.system.empty()) {
    if (given.messages.front().role == "system")
      throw DataError("", "the example has its own system message; remove --system");
    given.messages.insert(given.messages.begin(), {"system", options.system});
  }
  const tokenizer::ChatTemplate& chat_template = template_of(given, *options.chat_template);
  given = template_form(std::move(given), chat_template, NullFields::kDrop).chat;
  const ChatSample passed = with_thinking(given, chat_template, options.thinking);
  const auto rendered = chat_template.render(
      passed.messages,
      {.add_generation_prompt = true, .tools_json = passed.tools_json, .kwargs_json = passed.kwargs_json});
  count_thoughts(given, passed, rendered, options.thinking);
  warn_of_omission(rendered, passed.messages);
  return rendered.text;
}

bool add_bos(const tokenizer::Tokenizer& tokenizer, std::vector<std::int32_t>& ids) {
  const auto bos = tokenizer.bos_id();
  if (!tokenizer.adds_bos() || !bos || (!ids.empty() && ids.front() == *bos)) return false;
  ids.insert(ids.begin(), *bos);
  return true;
}

std::vector<std::int32_t> encode_prompt(const std::string& text, bool is_chat, const PromptOptions& options) {
  const tokenizer::Tokenizer& tokenizer = *options.tokenizer;
  std::vector<std::int32_t> ids = tokenizer.encode(text).ids;
  if (!is_chat) add_bos(tokenizer, ids);
  if (ids.empty()) throw DataError("", "the prompt is empty: it has no tokens");
  return ids;
}

TeacherVocabulary::TeacherVocabulary(const tokenizer::Tokenizer* tokenizer, std::int64_t vocab_size)
    : vocab_size_(vocab_size) {
  if (tokenizer == nullptr) return;
  for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const auto [found, is_new] = id_of_text_.try_emplace(tokenizer->decode(std::span(&id, 1)), id);
    if (!is_new) found->second = SoftLabels::kNone;
  }
}

std::int32_t TeacherVocabulary::id_of_number(std::int64_t id) const {
  return id >= 0 && id < vocab_size_ ? static_cast<std::int32_t>(id) : SoftLabels::kNone;
}

std::int32_t TeacherVocabulary::id_of_text(const std::string& text) const {
  constexpr std::string_view kIdMark = "token_id:";
  if (text.starts_with(kIdMark))
    return id_of_number(whole_number<std::int64_t>(std::string_view(text).substr(kIdMark.size())).value_or(-1));
  const auto found = id_of_text_.find(text);
  return found == id_of_text_.end() ? SoftLabels::kNone : found->second;
}

void add_soft_labels(const Json& logprobs, const TeacherVocabulary& vocabulary, EncodedSample& sample) {
  const std::vector<TeacherToken> tokens = read_tokens(logprobs, vocabulary);
  const auto [begin, end] = answer_span(sample.labels);
  std::size_t num_equal = 0, width = 0;
  while (num_equal < tokens.size() && begin + num_equal < end &&
         tokens[num_equal].id == sample.ids[begin + num_equal]) {
    width = std::max(width, tokens[num_equal++].alternatives.size());
  }
  if (width == 0) return;
  const auto num_supervised = static_cast<std::size_t>(count_supervised(sample.labels));
  sample.soft_width = static_cast<std::int64_t>(width);
  sample.soft_ids.assign(num_supervised * width, SoftLabels::kNone);
  sample.soft_log_probs.assign(num_supervised * width, 0);
  std::size_t at = static_cast<std::size_t>(count_supervised(std::span(sample.labels).first(begin)));
  for (std::size_t i = begin == 0 ? 1 : 0; i < num_equal;
       ++i, ++at) {  // nothing predicts the first token of an example
    for (std::size_t k = 0; k < tokens[i].alternatives.size(); ++k) {
      std::tie(sample.soft_ids[at * width + k], sample.soft_log_probs[at * width + k]) = tokens[i].alternatives[k];
    }
  }
}

}  // namespace lora_train::data
