#include "regex.h"

#include <pcre2.h>

#include "bpe/valid_utf8.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "regex_classes.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::size_t kJitStackBytes = std::size_t{8} << 20U;

// A stack for compiled patterns, one per thread: the default 32 KiB is too little for long runs of one class.
struct JitStack {
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  JitStack() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~JitStack() {
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  JitStack(const JitStack&) = delete;
  JitStack& operator=(const JitStack&) = delete;
};

pcre2_match_context* thread_context() {
  thread_local JitStack stack;
  return stack.context;
}

}  // namespace

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  std::string where;
  ~Code() { pcre2_code_free(compiled); }
};

Regex::Regex(const std::string& pattern, const std::string& where) : code_(std::make_unique<Code>()) {
  const std::string spelled = spell_out_classes(pattern, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->where = where;
  code_->compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code_->compiled == nullptr) {
    throw FormatError(where, "the pattern does not compile (" + pcre2_message(error) + "): " + pattern);
  }
  pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE);  // without JIT matching still works
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

struct Regex::Scan::State {
  const Code* code;
  std::string_view text;
  pcre2_match_data* data;
};

Regex::Scan::Scan(const Regex& regex, std::string_view text)
    : state_(std::make_unique<State>(
          State{regex.code_.get(), text, pcre2_match_data_create_from_pattern(regex.code_->compiled, nullptr)})) {}

Regex::Scan::~Scan() { pcre2_match_data_free(state_->data); }

bool Regex::Scan::next(std::size_t from, std::size_t& begin, std::size_t& end) {
  return match(PCRE2_NOTEMPTY, from, begin, end);
}

bool Regex::Scan::find(std::size_t from, std::size_t& begin, std::size_t& end) { return match(0, from, begin, end); }

bool Regex::Scan::match(std::uint32_t options, std::size_t from, std::size_t& begin, std::size_t& end) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(state_->text.data());
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(state_->data);
  const auto attempt = [&](std::uint32_t more) {
    return pcre2_match(state_->code->compiled, subject, state_->text.size(), from, PCRE2_NO_UTF_CHECK | options | more,
                       state_->data, thread_context());
  };
  int result = attempt(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = attempt(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    throw DataError("byte " + std::to_string(from), "the tokenizer's split pattern fails here: " +
                                                        pcre2_message(result) + " (" + state_->code->where + ")");
  }
  begin = found[0];
  end = found[1];
  return true;
}

void find_stretches(const Regex& regex, std::string_view text, std::vector<Stretch>& out) {
  out.clear();
  Regex::Scan scan(regex, text);
  std::size_t done = 0, begin = 0, end = 0;
  bool has_match = false;
  StopPoll stop_poll;
  for (std::size_t from = 0; from <= text.size() && scan.find(from, begin, end);) {
    stop_poll();
    if (begin == end && has_match && end == done) {
      if (from == text.size()) break;
      from += valid_utf8_char(text, from).length;
      continue;
    }
    if (begin > done) out.push_back({done, begin, false});
    out.push_back({begin, end, true});
    has_match = true;
    from = done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), false});
}

}  // namespace lora_train::tokenizer
