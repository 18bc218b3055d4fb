#include "case_map.h"

#include <utf8proc.h>

#include <algorithm>
#include <string_view>

#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

std::uint32_t mapped(utf8proc_int32_t (*map)(utf8proc_int32_t), std::uint32_t code) {
  return static_cast<std::uint32_t>(map(static_cast<utf8proc_int32_t>(code)));
}

// The characters of the full case folding where they are several, else empty. What becomes several in upper case
// (Unicode's SpecialCasing.txt, as Python's str.upper and str.title have it) is what is folded to several.
std::u32string folded_to_several(std::uint32_t code) {
  constexpr std::uint32_t kDottedI = 0x0130, kCapitalSharpS = 0x1E9E;  // are their own upper case
  utf8proc_int32_t folded[8];
  int last = 0;
  const auto length = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), folded, 8, UTF8PROC_CASEFOLD, &last);
  if (length < 2 || code == kDottedI || code == kCapitalSharpS) return {};
  return {folded, folded + length};
}

// Unicode's Case_Ignorable: what may stand between a sigma and the letters around it.
bool is_case_ignorable(std::uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: break;
  }
  static const std::u32string_view others =
      U"\'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  return others.find(static_cast<char32_t>(code)) != std::u32string_view::npos;
}

}  // namespace

void append_upper(std::string& out, std::uint32_t code) {
  const std::u32string several = folded_to_several(code);
  if (several.empty()) append_utf8(out, mapped(utf8proc_toupper, code));
  for (const char32_t part : several) append_utf8(out, mapped(utf8proc_toupper, part));
}

void append_title(std::string& out, std::uint32_t code) {
  constexpr std::uint32_t kSharpS = 0x00DF, kApostropheN = 0x0149, kIota = 0x03B9, kIotaBelow = 0x0345;
  if (code == kApostropheN) return append_upper(out, code);
  const std::u32string several = folded_to_several(code);
  const std::uint32_t title = mapped(utf8proc_totitle, code);
  const bool is_title = utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_LT;
  // For the sharp s utf8proc has a capital that Unicode's title case has not.
  if (several.empty() || is_title || (title != code && code != kSharpS)) return append_utf8(out, title);
  append_utf8(out, mapped(utf8proc_totitle, several.front()));
  for (std::size_t i = 1; i < several.size(); ++i) {
    const bool is_last = i + 1 == several.size();
    append_utf8(out, several[i] == kIota && is_last ? kIotaBelow : several[i]);
  }
}

bool is_cased(std::uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT: return true;
    default:
      return mapped(utf8proc_toupper, code) != code || mapped(utf8proc_tolower, code) != code || code == 0xAA ||
             code == 0xBA || (code >= 0x02B0 && code <= 0x02B8);
  }
}

void CaseMapper::append_lower(std::string& out, std::size_t at, std::uint32_t code) const {
  constexpr std::uint32_t kSigma = 0x03A3, kFinalSigma = 0x03C2, kDottedI = 0x0130;
  if (code == kDottedI)
    out += "i\xCC\x87";
  else if (code == kSigma && is_final_sigma(at))
    append_utf8(out, kFinalSigma);
  else
    append_utf8(out, mapped(utf8proc_tolower, code));
}

bool CaseMapper::is_final_sigma(std::size_t at) const {
  std::size_t before = at;
  while (before > 0) {
    before = char_begin_before(text_, before);
    const std::uint32_t code = utf8_char(text_, before).code_point;
    if (is_case_ignorable(code)) continue;
    if (!is_cased(code)) return false;
    break;
  }
  if (before == at || is_case_ignorable(utf8_char(text_, before).code_point)) return false;
  for (std::size_t after = at + 2; after < text_.size();) {
    const Utf8Char c = utf8_char(text_, after);
    if (!is_case_ignorable(c.code_point)) return !is_cased(c.code_point);
    after += std::max<std::size_t>(c.length, 1);
  }
  return true;
}

}  // namespace lora_train::tokenizer::jinja
