#include "normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {
namespace {

enum class Form { kNfc, kNfd, kNfkc, kNfkd };

utf8proc_option_t options_of(Form form) {
  const int base = UTF8PROC_STABLE;
  switch (form) {
    case Form::kNfc:
      return static_cast<utf8proc_option_t>(base | UTF8PROC_COMPOSE);
    case Form::kNfd:
      return static_cast<utf8proc_option_t>(base | UTF8PROC_DECOMPOSE);
    case Form::kNfkc:
      return static_cast<utf8proc_option_t>(base | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Form::kNfkd:
      return static_cast<utf8proc_option_t>(base | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
  return UTF8PROC_STABLE;
}

std::string unicode_form(std::string_view text, Form form) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &out, options_of(form));
  if (length < 0) throw DataError("", std::string("text cannot be normalised: ") + utf8proc_errmsg(length));
  std::string result(reinterpret_cast<const char*>(out), static_cast<std::size_t>(length));
  std::free(out);
  return result;
}

// Hangul vowels and trailing consonants compose with what stands before them although their class is 0.
bool is_hangul_jamo_tail(std::uint32_t code) { return code >= 0x1160 && code <= 0x11FF; }

// Whether nothing before this character can combine with it, so that the text may be normalised in two parts here.
bool starts_stretch(std::uint32_t code, Form form) {
  // Compatibility forms turn ordinary characters (halfwidth marks and jamo) into combining ones: only ASCII is sure.
  if (form == Form::kNfkc || form == Form::kNfkd) return code < 0x80;
  if (code < 0x300) return true;
  if (is_hangul_jamo_tail(code)) return false;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
  if (property->combining_class != 0) return false;
  // Spacing marks such as U+09BE have class 0 and are the second half of a composition all the same.
  return property->category != UTF8PROC_CATEGORY_MC && property->category != UTF8PROC_CATEGORY_MN &&
         property->category != UTF8PROC_CATEGORY_ME;
}

constexpr std::uint32_t kTableEnd = 0x30000;

// Characters that, standing alone, are their own normal form: so that ordinary text costs no call of utf8proc.
std::vector<bool> stable_characters(Form form) {
  std::vector<bool> stable(kTableEnd, true);
  for (std::uint32_t code = 0x80; code < kTableEnd; ++code) {
    const bool is_hangul = code >= 0xAC00 && code <= 0xD7A3;
    const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
    if (is_surrogate || (property->decomp_seqindex == UINT16_MAX && !is_hangul)) continue;
    std::string character;
    append_utf8(character, code);
    stable[code] = unicode_form(character, form) == character;
  }
  return stable;
}

class UnicodeNormalizer final : public Normalizer {
 public:
  explicit UnicodeNormalizer(Form form) : form_(form), stable_(stable_characters(form)) {}

  void normalize(NormalizedText& normalized) const override {
    const std::string_view text = normalized.text();
    const auto first = std::find_if(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; });
    if (first == text.end()) return;
    std::vector<NormalizedText::Edit> edits;
    // The ASCII character before the first mark belongs to its stretch.
    std::size_t at = static_cast<std::size_t>(first - text.begin());
    if (at > 0) --at;
    while (at < text.size()) {
      const std::size_t end = stretch_end(text, at);
      if (!is_stable(text, at, end)) add_edit(text.substr(at, end - at), at, edits);
      at = end;
    }
    if (!edits.empty()) normalized.apply(edits);
  }

 private:
  bool is_stable(std::string_view text, std::size_t begin, std::size_t end) const {
    const Utf8Char c = utf8_char(text, begin);
    return c.length == end - begin && c.code_point < kTableEnd && stable_[c.code_point];
  }

  std::size_t stretch_end(std::string_view text, std::size_t begin) const {
    std::size_t at = begin + utf8_char(text, begin).length;
    while (at < text.size()) {
      const Utf8Char c = utf8_char(text, at);
      if (starts_stretch(c.code_point, form_)) break;
      at += c.length;
    }
    return at;
  }

  void add_edit(std::string_view stretch, std::size_t at, std::vector<NormalizedText::Edit>& edits) const {
    const std::string form = unicode_form(stretch, form_);
    if (form == stretch) return;
    // Characters that stay as they are keep their own range: a mark that changes must not drag in what it stands on.
    std::size_t same = 0;
    for (;;) {
      const Utf8Char c = same < stretch.size() && same < form.size() ? utf8_char(stretch, same) : Utf8Char{};
      if (c.length == 0 || stretch.substr(same, c.length) != std::string_view(form).substr(same, c.length)) break;
      same += c.length;
    }
    // All of the stretch may be kept and more come behind it, or the other way round: then the last one is the edit.
    while (same > 0 && (same == stretch.size() || same == form.size())) {
      do --same;
      while (same > 0 && is_continuation(stretch[same]));
    }
    edits.push_back({at + same, stretch.size() - same, form.substr(same)});
  }

  Form form_;
  std::vector<bool> stable_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void normalize(NormalizedText& text) const override {
    if (!text.text().empty()) text.prepend(prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(std::string pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void normalize(NormalizedText& text) const override { replace_all(text, pattern_, content_); }

 private:
  std::string pattern_, content_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void normalize(NormalizedText& text) const override {
    for (const auto& part : parts_) part->normalize(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

std::unique_ptr<Normalizer> load_replace(const JsonPlace& place) {
  place.allow_only({"type", "pattern", "content"});
  place.at("pattern").allow_only({"String"});
  const std::string& pattern = place.at("pattern").at("String").string();
  if (pattern.empty()) place.at("pattern").fail("an empty pattern replaces nothing");
  return std::make_unique<ReplaceNormalizer>(pattern, place.at("content").string());
}

std::unique_ptr<Normalizer> load_sequence(const JsonPlace& place) {
  place.allow_only({"type", "normalizers"});
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const JsonPlace& element : place.at("normalizers").elements()) {
    if (auto part = load_normalizer(element)) parts.push_back(std::move(part));
  }
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

}  // namespace

ByteRange NormalizedText::input_range(std::size_t begin, std::size_t end) const {
  if (changed_) return {ranges_[begin].first, ranges_[end - 1].second};
  while (begin > 0 && is_continuation(view_[begin])) --begin;
  while (end < view_.size() && is_continuation(view_[end])) ++end;
  return {begin_ + static_cast<std::uint32_t>(begin), begin_ + static_cast<std::uint32_t>(end)};
}

NormalizedText NormalizedText::slice(std::size_t begin, std::size_t end) const {
  NormalizedText part;
  part.changed_ = changed_;
  if (!changed_) {
    part.view_ = view_.substr(begin, end - begin);
    part.begin_ = begin_ + static_cast<std::uint32_t>(begin);
    return part;
  }
  part.owned_ = owned_.substr(begin, end - begin);
  part.ranges_.assign(ranges_.begin() + static_cast<std::ptrdiff_t>(begin),
                      ranges_.begin() + static_cast<std::ptrdiff_t>(end));
  part.begin_ = part.ranges_.empty() ? begin_ : part.ranges_.front().first;
  return part;
}

void NormalizedText::apply(const std::vector<Edit>& edits) {
  const std::string_view old = text();
  std::string changed;
  std::vector<ByteRange> ranges;
  const auto keep = [&](std::size_t from, std::size_t to) {
    changed.append(old.substr(from, to - from));
    for (std::size_t i = from; i < to; ++i) ranges.push_back(input_range(i, i + 1));
  };
  std::size_t done = 0;
  for (const Edit& edit : edits) {
    keep(done, edit.begin);
    const ByteRange range = input_range(edit.begin, edit.begin + edit.length);
    changed.append(edit.replacement);
    ranges.insert(ranges.end(), edit.replacement.size(), range);
    done = edit.begin + edit.length;
  }
  keep(done, old.size());
  owned_ = std::move(changed);
  ranges_ = std::move(ranges);
  changed_ = true;
}

void NormalizedText::prepend(std::string_view prefix) {
  const std::size_t first = utf8_char(text(), 0).length;
  apply({{0, first, std::string(prefix) + std::string(text().substr(0, first))}});
}

void replace_all(NormalizedText& text, std::string_view pattern, std::string_view replacement) {
  std::vector<NormalizedText::Edit> edits;
  const std::string_view old = text.text();
  for (std::size_t at = old.find(pattern); at != std::string_view::npos; at = old.find(pattern, at + pattern.size())) {
    edits.push_back({at, pattern.size(), std::string(replacement)});
  }
  if (!edits.empty()) text.apply(edits);
}

std::unique_ptr<Normalizer> load_normalizer(const JsonPlace& place) {
  if (place.is_null()) return nullptr;
  const std::string& type = place.type();
  if (type == "Sequence") return load_sequence(place);
  if (type == "Replace") return load_replace(place);
  if (type == "Prepend") {
    place.allow_only({"type", "prepend"});
    return std::make_unique<PrependNormalizer>(place.at("prepend").string());
  }
  const std::pair<const char*, Form> forms[] = {
      {"NFC", Form::kNfc}, {"NFD", Form::kNfd}, {"NFKC", Form::kNfkc}, {"NFKD", Form::kNfkd}};
  for (const auto& [name, form] : forms) {
    if (type != name) continue;
    place.allow_only({"type"});
    return std::make_unique<UnicodeNormalizer>(form);
  }
  place.fail("normalizer \"" + type + "\" is not built; there are NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
}

}  // namespace lora_train::tokenizer
