#include "audit.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <iterator>

#include "jinja/json.h"

namespace lora_train::tokenizer {
namespace {

using FieldBytes = std::array<std::size_t, jinja::kNumFields>;

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::size_t count_ink(std::string_view bytes) {
  return static_cast<std::size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) { return !is_blank(c); }));
}

std::string without_blanks(const std::string& text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return !is_blank(c); });
  return out;
}

// All strings of a value, one after the other.
void append_strings(const jinja::Value& value, std::string& out) {
  if (const auto* text = value.as_text()) out += text->bytes();
  if (const auto* list = value.as_list()) {
    for (const jinja::Value& item : *list) append_strings(item, out);
  }
  if (const auto* dict = value.as_dict()) {
    for (const auto& item : dict->items) append_strings(item.second, out);
  }
}

// What a template should write of a field: of tool calls not the wrapping (type, id), which many leave out.
std::string strings_of(const std::string& key, const jinja::Value& value) {
  std::string strings;
  if (key != "tool_calls" || value.as_list() == nullptr) {
    append_strings(value, strings);
    return strings;
  }
  for (const jinja::Value& call : *value.as_list()) {
    if (call.as_dict() == nullptr) {
      append_strings(call, strings);
      continue;
    }
    for (const auto& [name, part] : call.as_dict()->items) {
      if (name != "type" && name != "id") append_strings(part, strings);
    }
  }
  return strings;
}

// Bytes of each message's fields that reached the text, blanks not counted.
std::vector<FieldBytes> rendered_ink(const jinja::Text& text, std::size_t num_messages) {
  std::vector<FieldBytes> ink(num_messages, FieldBytes{});
  std::size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    const int message = jinja::message_of(run.origin);
    if (message >= 0 && static_cast<std::size_t>(message) < num_messages) {
      const auto field = static_cast<std::size_t>(jinja::field_of(run.origin));
      ink[static_cast<std::size_t>(message)][field] +=
          count_ink(std::string_view(text.bytes()).substr(begin, run.end - begin));
    }
    begin = run.end;
  }
  return ink;
}

// Finds texts in another one, blanks aside; the next one is looked for behind the last one first.
class InkSearch {
 public:
  explicit InkSearch(const std::string& text) : text_(text) {}
  bool has(const std::string& part) {
    if (ink_.empty()) ink_ = without_blanks(text_);
    const std::string wanted = without_blanks(part);
    std::size_t at = find(wanted, from_);
    if (at == std::string::npos) at = find(wanted, 0);
    if (at == std::string::npos) return false;
    from_ = at + wanted.size();
    return true;
  }

 private:
  /// In linear time, which std::string::find() does not promise.
  std::size_t find(const std::string& wanted, std::size_t from) const {
    const void* const found = ::memmem(ink_.data() + from, ink_.size() - from, wanted.data(), wanted.size());
    return found == nullptr ? std::string::npos
                            : static_cast<std::size_t>(static_cast<const char*>(found) - ink_.data());
  }

  const std::string& text_;
  std::string ink_;
  std::size_t from_ = 0;
};

const jinja::Value* member(const jinja::Value& value, const char* name) {
  return value.as_dict() == nullptr ? nullptr : value.as_dict()->find(name);
}

// What a template has to write of a tool to show it: its name, or its first text where it has none.
std::string mark_of(const jinja::Value& tool) {
  const jinja::Value* const function = member(tool, "function");
  const jinja::Value* const name = member(function == nullptr ? tool : *function, "name");
  std::string strings;
  append_strings(name == nullptr ? tool : *name, strings);
  return strings;
}

// The text without what comes from messages: a tool that is called there is not shown for that.
std::string outside_messages(const jinja::Text& text) {
  std::string out;
  std::size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    if (run.origin == jinja::kTemplate) out += text.bytes().substr(begin, run.end - begin);
    begin = run.end;
  }
  return out;
}

void find_omitted_tools(const jinja::Value* tools, const jinja::Text& text, std::vector<Omission>& omissions) {
  if (tools == nullptr || tools->as_list() == nullptr || tools->as_list()->empty()) return;
  const std::string rest = outside_messages(text);
  const auto is_shown = [&](const jinja::Value& tool) { return rest.find(mark_of(tool)) != std::string::npos; };
  const jinja::List& list = *tools->as_list();
  const auto shown = static_cast<std::size_t>(std::count_if(list.begin(), list.end(), is_shown));
  if (shown < list.size()) omissions.push_back({Omission::kTools, "tools", shown > 0});
}

}  // namespace

std::vector<Omission> find_omissions(const jinja::Dict& variables, const jinja::Text& text) {
  const jinja::List& messages = *variables.find("messages")->as_list();
  const auto ink = rendered_ink(text, messages.size());
  InkSearch search(text.bytes());
  std::vector<Omission> omissions;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (const auto& [key, value] : messages[i].as_dict()->items) {
      const jinja::Field field = jinja::field_named(key);
      if (field == jinja::Field::kRole || field == jinja::Field::kOther) continue;
      const std::string strings = strings_of(key, value);
      const std::size_t rendered = ink[i][static_cast<std::size_t>(field)], all = count_ink(strings);
      // A template may write a part of a content itself (think tags) or through repr(): then the text has it anyway.
      if (rendered >= all || search.has(strings)) continue;
      omissions.push_back({static_cast<int>(i), key, rendered > 0});
    }
  }
  find_omitted_tools(variables.find("tools"), text, omissions);
  return omissions;
}

}  // namespace lora_train::tokenizer
