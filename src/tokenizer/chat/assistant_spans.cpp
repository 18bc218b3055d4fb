#include "assistant_spans.h"

#include <algorithm>

#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {
namespace {

using jinja::Text;

// Begin and end of the run of one origin that covers `at`, and its origin.
struct RunAt {
  std::size_t end;
  jinja::Origin origin;
};

RunAt run_at(const Text& text, std::size_t at) {
  const auto run = std::upper_bound(text.runs().begin(), text.runs().end(), at,
                                    [](std::size_t position, const Text::Run& r) { return position < r.end; });
  return {run->end, run->origin};
}

bool is_role(jinja::Origin origin) {
  return jinja::message_of(origin) >= 0 && jinja::field_of(origin) == jinja::Field::kRole;
}

// Behind the last role that the turn writes before anything else of the chat; nothing found: the turn's begin.
std::size_t behind_role(const Text& text, const jinja::Region& turn) {
  constexpr std::string_view kAssistant = "assistant";
  std::size_t behind = turn.begin;
  for (std::size_t at = turn.begin; at < turn.end;) {
    const RunAt run = run_at(text, at);
    const std::size_t end = std::min(run.end, turn.end);
    if (is_role(run.origin)) behind = end;
    if (run.origin == jinja::kTemplate) {
      const std::size_t found = std::string_view(text.bytes()).substr(at, end - at).rfind(kAssistant);
      if (found != std::string_view::npos) behind = at + found + kAssistant.size();
    }
    if (run.origin != jinja::kTemplate && !is_role(run.origin)) break;
    at = end;
  }
  return behind;
}

// The template's own bytes from `at` on, up to the turn's end.
std::string_view template_bytes(const Text& text, std::size_t at, std::size_t end) {
  if (at >= end) return {};
  const RunAt run = run_at(text, at);
  if (run.origin != jinja::kTemplate) return {};
  return std::string_view(text.bytes()).substr(at, std::min(run.end, end) - at);
}

std::size_t skip(std::string_view bytes, std::string_view what) {
  const std::size_t end = bytes.find_first_not_of(what);
  return end == std::string_view::npos ? bytes.size() : end;
}

// How many bytes of the turn are those of the generation prompt, which the model never writes itself.
std::size_t shared_bytes(const Text& text, const jinja::Region& turn, std::string_view generation_prompt) {
  const std::string_view bytes = std::string_view(text.bytes()).substr(turn.begin, turn.end - turn.begin);
  std::size_t shared = 0;
  while (shared < std::min(bytes.size(), generation_prompt.size()) && bytes[shared] == generation_prompt[shared]) {
    const jinja::Origin origin = run_at(text, turn.begin + shared).origin;
    if (origin != jinja::kTemplate && !is_role(origin)) break;
    ++shared;
  }
  while (shared > 0 && shared < bytes.size() && is_continuation(bytes[shared])) --shared;
  return shared;
}

std::size_t header_end(const Text& text, const jinja::Region& turn, std::string_view generation_prompt) {
  std::size_t at = behind_role(text, turn);
  const std::size_t prompt_end = turn.begin + shared_bytes(text, turn, generation_prompt);
  if (at == turn.begin) {
    // Without a role the prompt says what the header is; what it opens ("<think>") behind that is not told apart.
    if (prompt_end > turn.begin) return prompt_end;
    return at + skip(template_bytes(text, at, turn.end), " \t\r\n");
  }
  const std::string_view rest = template_bytes(text, at, turn.end);
  if (rest.starts_with("|>")) {
    at += 2;
  } else if (rest.starts_with("<|") && rest.find("|>") != std::string_view::npos) {
    at += rest.find("|>") + 2;
  }
  at += skip(template_bytes(text, at, turn.end), "\r\n");
  // "assistant: " and the like, as far as the generation prompt writes it too.
  if (at < prompt_end) at += skip(template_bytes(text, at, prompt_end), " \t\r\n:>*");
  return at;
}

}  // namespace

ByteRange assistant_span(const Text& text, const jinja::Region& turn, std::string_view generation_prompt) {
  const std::size_t begin = header_end(text, turn, generation_prompt);
  std::size_t end = turn.end;
  while (end > begin && std::string_view(" \t\r\n").find(text.bytes()[end - 1]) != std::string_view::npos &&
         run_at(text, end - 1).origin == jinja::kTemplate) {
    --end;
  }
  return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(std::max(begin, end))};
}

}  // namespace lora_train::tokenizer
