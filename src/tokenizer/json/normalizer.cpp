#include "normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "bpe/bpe.h"
#include "bpe/valid_utf8.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"
#include "split/regex.h"

namespace lora_train::tokenizer {
namespace {

// utf8proc options in addition to UTF8PROC_STABLE.
using Form = int;

constexpr std::size_t kLongStretch = 256;  // bytes

// Sorts each run of marks by combining class, the first step of every form. utf8proc also sorts them, but in quadratic
// time.
std::string sort_marks(std::string_view text) {
  struct Mark {
    utf8proc_propval_t combining_class;
    std::uint32_t code;
  };
  std::string out;
  std::vector<Mark> marks;
  StopPoll stop_poll;
  const auto flush = [&] {
    std::stable_sort(marks.begin(), marks.end(), [&](const Mark& a, const Mark& b) {
      stop_poll();
      return a.combining_class < b.combining_class;
    });
    for (const Mark& mark : marks) append_utf8(out, mark.code);
    marks.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = valid_utf8_char(text, at);
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c.code_point));
    if (property->combining_class != 0) {
      marks.push_back({property->combining_class, c.code_point});
    } else {
      flush();
      append_utf8(out, c.code_point);
    }
    at += c.length;
  }
  flush();
  return out;
}

std::string unicode_form(std::string_view unsorted, Form form) {
  const std::string sorted = unsorted.size() > kLongStretch ? sort_marks(unsorted) : std::string();
  const std::string_view text = sorted.empty() ? unsorted : std::string_view(sorted);
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  if (length < 0) throw DataError("", std::string("text cannot be normalised: ") + utf8proc_errmsg(length));
  std::string result(reinterpret_cast<const char*>(out), static_cast<std::size_t>(length));
  std::free(out);
  return result;
}

// Hangul vowels and trailing consonants compose with the preceding character although their class is 0.
bool is_hangul_jamo_tail(std::uint32_t code) { return code >= 0x1160 && code <= 0x11FF; }

// Characters added after Unicode 9 that normalisation would reorder, compose or decompose. Hugging Face's normaliser
// (unicode-normalization-alignments) knows Unicode 9 and leaves them unchanged, so we do too.
constexpr std::pair<std::uint32_t, std::uint32_t> kAfterUnicode9[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

bool is_after_unicode_9(std::uint32_t code) {
  const auto* range = std::lower_bound(std::begin(kAfterUnicode9), std::end(kAfterUnicode9), code,
                                       [](const auto& known, std::uint32_t wanted) { return known.second < wanted; });
  return range != std::end(kAfterUnicode9) && range->first <= code;
}

// True if nothing before this character can combine with it, so that the text may be split here for normalisation.
bool starts_stretch(std::uint32_t code, Form form) {
  if (is_after_unicode_9(code)) return true;
  // Compatibility forms turn ordinary characters (halfwidth marks and jamo) into combining ones: only ASCII is safe.
  if ((form & UTF8PROC_COMPAT) != 0) return code < 0x80;
  if (code < 0x300) return true;
  if (is_hangul_jamo_tail(code)) return false;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
  if (property->combining_class != 0) return false;
  // Spacing marks such as U+09BE have class 0 but can still be the second half of a composition.
  return property->category != UTF8PROC_CATEGORY_MC && property->category != UTF8PROC_CATEGORY_MN &&
         property->category != UTF8PROC_CATEGORY_ME;
}

constexpr std::uint32_t kTableEnd = 0x30000;

// Characters that are their own normal form when alone and do not combine with anything before them: ordinary text
// needs no call of utf8proc.
std::vector<bool> plain_characters(Form form) {
  std::vector<bool> plain(kTableEnd, true);
  for (std::uint32_t code = 0x80; code < kTableEnd; ++code) {
    const bool is_hangul = code >= 0xAC00 && code <= 0xD7A3;
    const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (is_surrogate || is_after_unicode_9(code)) continue;
    plain[code] = starts_stretch(code, form);
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
    if (!plain[code] || (property->decomp_seqindex == UINT16_MAX && !is_hangul)) continue;
    std::string character;
    append_utf8(character, code);
    plain[code] = unicode_form(character, form) == character;
  }
  return plain;
}

class UnicodeNormalizer {
 public:
  explicit UnicodeNormalizer(Form form) : form_(form), plain_(plain_characters(form)) {}

  void operator()(NormalizedText& normalized) const {
    const std::string_view text = normalized.text();
    std::vector<NormalizedText::Edit> edits;
    StopPoll stop_poll;
    for (std::size_t at = 0; (at = next_stretch(text, at)) < text.size();) {
      stop_poll();
      const std::size_t end = stretch_end(text, at);
      if (!is_plain(text, at, end)) add_edit(text.substr(at, end - at), at, edits);
      at = end;
    }
    if (!edits.empty()) normalized.apply(edits);
  }

 private:
  // Start of the next stretch to check: the character before the first one that is not plain, since they may combine.
  std::size_t next_stretch(std::string_view text, std::size_t from) const {
    std::size_t previous = from;
    for (std::size_t at = from; at < text.size();) {
      const Utf8Char c = valid_utf8_char(text, at);
      if (c.code_point >= kTableEnd || !plain_[c.code_point]) return previous;
      previous = at;
      at += c.length;
      if (c.length > 1) continue;
      at = skip_ascii(text, at);
      previous = at - 1;
    }
    return text.size();
  }

  bool is_plain(std::string_view text, std::size_t begin, std::size_t end) const {
    const Utf8Char c = valid_utf8_char(text, begin);
    return c.length == end - begin && c.code_point < kTableEnd && plain_[c.code_point];
  }

  std::size_t stretch_end(std::string_view text, std::size_t begin) const {
    const Utf8Char first = valid_utf8_char(text, begin);
    std::size_t at = begin + first.length;
    while (at < text.size() && !is_after_unicode_9(first.code_point)) {
      const Utf8Char c = valid_utf8_char(text, at);
      if (starts_stretch(c.code_point, form_)) break;
      at += c.length;
    }
    return at;
  }

  void add_edit(std::string_view stretch, std::size_t at, std::vector<NormalizedText::Edit>& edits) const {
    const std::string form = unicode_form(stretch, form_);
    if (form == stretch) return;
    // Unchanged characters keep their own range: a mark that changes must not extend to its base.
    std::size_t same = 0;
    for (;;) {
      const Utf8Char c = same < stretch.size() && same < form.size() ? utf8_char(stretch, same) : Utf8Char{};
      if (c.length == 0 || stretch.substr(same, c.length) != std::string_view(form).substr(same, c.length)) break;
      same += c.length;
    }
    // The stretch may be a prefix of the form, or the other way round: then the last character is the edit.
    while (same > 0 && (same == stretch.size() || same == form.size())) same = char_begin_before(stretch, same);
    edits.push_back({at + same, stretch.size() - same, form.substr(same)});
  }

  Form form_;
  std::vector<bool> plain_;
};

void replace_matches(NormalizedText& text, const Regex& pattern, const std::string& content) {
  std::vector<Stretch> stretches;
  pattern.split(text.text(), stretches);
  std::vector<NormalizedText::Edit> edits;
  for (const Stretch& stretch : stretches) {
    if (stretch.is_match) edits.push_back({stretch.begin, stretch.end - stretch.begin, content});
  }
  if (!edits.empty() && !text.text().empty()) text.apply(edits);
}

Normalizer load_replace(const JsonPlace& place) {
  place.allow_only({"type", "pattern", "content"});
  place.at("pattern").allow_only({"String", "Regex"});
  const std::string content = place.at("content").string();
  if (const auto regex = place.at("pattern").find("Regex")) {
    return [compiled = Regex(regex->string(), regex->where()), content](NormalizedText& text) {
      replace_matches(text, compiled, content);
    };
  }
  const std::string pattern = place.at("pattern").at("String").string();
  if (pattern.empty()) place.at("pattern").fail("an empty pattern replaces nothing");
  return [pattern, content](NormalizedText& text) { replace_all(text, pattern, content); };
}

Normalizer load_sequence(const JsonPlace& place) {
  place.allow_only({"type", "normalizers"});
  std::vector<Normalizer> parts;
  for (const JsonPlace& element : place.at("normalizers").elements()) {
    if (auto part = load_normalizer(element)) parts.push_back(std::move(part));
  }
  return [parts](NormalizedText& text) {
    for (const Normalizer& normalize : parts) normalize(text);
  };
}

template <Form form>
Normalizer load_form(const JsonPlace& place) {
  place.allow_only({"type"});
  return UnicodeNormalizer(form);
}

Normalizer load_prepend(const JsonPlace& place) {
  place.allow_only({"type", "prepend"});
  return [prefix = place.at("prepend").string()](NormalizedText& text) {
    if (!text.text().empty()) text.prepend(prefix);
  };
}

}  // namespace

ByteRange NormalizedText::input_range(std::size_t begin, std::size_t end) const {
  if (changed_) return {ranges_[begin].first, ranges_[end - 1].second};
  const auto [first, last] = whole_characters(view_, begin, end);
  return {begin_ + first, begin_ + last};
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
    // Pure insertions take the range of the character before them.
    const std::size_t from = edit.length == 0 && edit.begin > 0 ? edit.begin - 1 : edit.begin;
    const ByteRange range = input_range(from, std::max(from + 1, edit.begin + edit.length));
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

Normalizer load_normalizer(const JsonPlace& place) {
  constexpr std::pair<const char*, Normalizer (*)(const JsonPlace&)> kTypes[] = {
      {"NFC", load_form<UTF8PROC_COMPOSE>},
      {"NFD", load_form<UTF8PROC_DECOMPOSE>},
      {"NFKC", load_form<UTF8PROC_COMPOSE | UTF8PROC_COMPAT>},
      {"NFKD", load_form<UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT>},
      {"Prepend", load_prepend},
      {"Replace", load_replace},
      {"Sequence", load_sequence}};
  return place.is_null() ? nullptr : place.at("type").one_of(kTypes)(place);
}

}  // namespace lora_train::tokenizer
