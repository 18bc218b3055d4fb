#include "case_map.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

struct SpecialCase {
  std::uint32_t code;
  const char *upper, *title;
};

// Characters that become several, ascending (Unicode's SpecialCasing.txt, as Python's str.upper and str.title have it).
constexpr SpecialCase kSpecialCases[] = {
    {0x00DF, "\123\123", "\123\163"},
    {0x0149, "\312\274\116", "\312\274\116"},
    {0x01F0, "\112\314\214", "\112\314\214"},
    {0x0390, "\316\231\314\210\314\201", "\316\231\314\210\314\201"},
    {0x03B0, "\316\245\314\210\314\201", "\316\245\314\210\314\201"},
    {0x0587, "\324\265\325\222", "\324\265\326\202"},
    {0x1E96, "\110\314\261", "\110\314\261"},
    {0x1E97, "\124\314\210", "\124\314\210"},
    {0x1E98, "\127\314\212", "\127\314\212"},
    {0x1E99, "\131\314\212", "\131\314\212"},
    {0x1E9A, "\101\312\276", "\101\312\276"},
    {0x1F50, "\316\245\314\223", "\316\245\314\223"},
    {0x1F52, "\316\245\314\223\314\200", "\316\245\314\223\314\200"},
    {0x1F54, "\316\245\314\223\314\201", "\316\245\314\223\314\201"},
    {0x1F56, "\316\245\314\223\315\202", "\316\245\314\223\315\202"},
    {0x1F80, "\341\274\210\316\231", "\341\276\210"},
    {0x1F81, "\341\274\211\316\231", "\341\276\211"},
    {0x1F82, "\341\274\212\316\231", "\341\276\212"},
    {0x1F83, "\341\274\213\316\231", "\341\276\213"},
    {0x1F84, "\341\274\214\316\231", "\341\276\214"},
    {0x1F85, "\341\274\215\316\231", "\341\276\215"},
    {0x1F86, "\341\274\216\316\231", "\341\276\216"},
    {0x1F87, "\341\274\217\316\231", "\341\276\217"},
    {0x1F88, "\341\274\210\316\231", "\341\276\210"},
    {0x1F89, "\341\274\211\316\231", "\341\276\211"},
    {0x1F8A, "\341\274\212\316\231", "\341\276\212"},
    {0x1F8B, "\341\274\213\316\231", "\341\276\213"},
    {0x1F8C, "\341\274\214\316\231", "\341\276\214"},
    {0x1F8D, "\341\274\215\316\231", "\341\276\215"},
    {0x1F8E, "\341\274\216\316\231", "\341\276\216"},
    {0x1F8F, "\341\274\217\316\231", "\341\276\217"},
    {0x1F90, "\341\274\250\316\231", "\341\276\230"},
    {0x1F91, "\341\274\251\316\231", "\341\276\231"},
    {0x1F92, "\341\274\252\316\231", "\341\276\232"},
    {0x1F93, "\341\274\253\316\231", "\341\276\233"},
    {0x1F94, "\341\274\254\316\231", "\341\276\234"},
    {0x1F95, "\341\274\255\316\231", "\341\276\235"},
    {0x1F96, "\341\274\256\316\231", "\341\276\236"},
    {0x1F97, "\341\274\257\316\231", "\341\276\237"},
    {0x1F98, "\341\274\250\316\231", "\341\276\230"},
    {0x1F99, "\341\274\251\316\231", "\341\276\231"},
    {0x1F9A, "\341\274\252\316\231", "\341\276\232"},
    {0x1F9B, "\341\274\253\316\231", "\341\276\233"},
    {0x1F9C, "\341\274\254\316\231", "\341\276\234"},
    {0x1F9D, "\341\274\255\316\231", "\341\276\235"},
    {0x1F9E, "\341\274\256\316\231", "\341\276\236"},
    {0x1F9F, "\341\274\257\316\231", "\341\276\237"},
    {0x1FA0, "\341\275\250\316\231", "\341\276\250"},
    {0x1FA1, "\341\275\251\316\231", "\341\276\251"},
    {0x1FA2, "\341\275\252\316\231", "\341\276\252"},
    {0x1FA3, "\341\275\253\316\231", "\341\276\253"},
    {0x1FA4, "\341\275\254\316\231", "\341\276\254"},
    {0x1FA5, "\341\275\255\316\231", "\341\276\255"},
    {0x1FA6, "\341\275\256\316\231", "\341\276\256"},
    {0x1FA7, "\341\275\257\316\231", "\341\276\257"},
    {0x1FA8, "\341\275\250\316\231", "\341\276\250"},
    {0x1FA9, "\341\275\251\316\231", "\341\276\251"},
    {0x1FAA, "\341\275\252\316\231", "\341\276\252"},
    {0x1FAB, "\341\275\253\316\231", "\341\276\253"},
    {0x1FAC, "\341\275\254\316\231", "\341\276\254"},
    {0x1FAD, "\341\275\255\316\231", "\341\276\255"},
    {0x1FAE, "\341\275\256\316\231", "\341\276\256"},
    {0x1FAF, "\341\275\257\316\231", "\341\276\257"},
    {0x1FB2, "\341\276\272\316\231", "\341\276\272\315\205"},
    {0x1FB3, "\316\221\316\231", "\341\276\274"},
    {0x1FB4, "\316\206\316\231", "\316\206\315\205"},
    {0x1FB6, "\316\221\315\202", "\316\221\315\202"},
    {0x1FB7, "\316\221\315\202\316\231", "\316\221\315\202\315\205"},
    {0x1FBC, "\316\221\316\231", "\341\276\274"},
    {0x1FC2, "\341\277\212\316\231", "\341\277\212\315\205"},
    {0x1FC3, "\316\227\316\231", "\341\277\214"},
    {0x1FC4, "\316\211\316\231", "\316\211\315\205"},
    {0x1FC6, "\316\227\315\202", "\316\227\315\202"},
    {0x1FC7, "\316\227\315\202\316\231", "\316\227\315\202\315\205"},
    {0x1FCC, "\316\227\316\231", "\341\277\214"},
    {0x1FD2, "\316\231\314\210\314\200", "\316\231\314\210\314\200"},
    {0x1FD3, "\316\231\314\210\314\201", "\316\231\314\210\314\201"},
    {0x1FD6, "\316\231\315\202", "\316\231\315\202"},
    {0x1FD7, "\316\231\314\210\315\202", "\316\231\314\210\315\202"},
    {0x1FE2, "\316\245\314\210\314\200", "\316\245\314\210\314\200"},
    {0x1FE3, "\316\245\314\210\314\201", "\316\245\314\210\314\201"},
    {0x1FE4, "\316\241\314\223", "\316\241\314\223"},
    {0x1FE6, "\316\245\315\202", "\316\245\315\202"},
    {0x1FE7, "\316\245\314\210\315\202", "\316\245\314\210\315\202"},
    {0x1FF2, "\341\277\272\316\231", "\341\277\272\315\205"},
    {0x1FF3, "\316\251\316\231", "\341\277\274"},
    {0x1FF4, "\316\217\316\231", "\316\217\315\205"},
    {0x1FF6, "\316\251\315\202", "\316\251\315\202"},
    {0x1FF7, "\316\251\315\202\316\231", "\316\251\315\202\315\205"},
    {0x1FFC, "\316\251\316\231", "\341\277\274"},
    {0xFB00, "\106\106", "\106\146"},
    {0xFB01, "\106\111", "\106\151"},
    {0xFB02, "\106\114", "\106\154"},
    {0xFB03, "\106\106\111", "\106\146\151"},
    {0xFB04, "\106\106\114", "\106\146\154"},
    {0xFB05, "\123\124", "\123\164"},
    {0xFB06, "\123\124", "\123\164"},
    {0xFB13, "\325\204\325\206", "\325\204\325\266"},
    {0xFB14, "\325\204\324\265", "\325\204\325\245"},
    {0xFB15, "\325\204\324\273", "\325\204\325\253"},
    {0xFB16, "\325\216\325\206", "\325\216\325\266"},
    {0xFB17, "\325\204\324\275", "\325\204\325\255"},
};

const SpecialCase* find_special(std::uint32_t code) {
  const auto found = std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), code,
                                      [](const SpecialCase& row, std::uint32_t c) { return row.code < c; });
  return found != std::end(kSpecialCases) && found->code == code ? found : nullptr;
}

std::uint32_t mapped(utf8proc_int32_t (*map)(utf8proc_int32_t), std::uint32_t code) {
  return static_cast<std::uint32_t>(map(static_cast<utf8proc_int32_t>(code)));
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
  const SpecialCase* special = find_special(code);
  if (special != nullptr)
    out += special->upper;
  else
    append_utf8(out, mapped(utf8proc_toupper, code));
}

void append_title(std::string& out, std::uint32_t code) {
  const SpecialCase* special = find_special(code);
  if (special != nullptr)
    out += special->title;
  else
    append_utf8(out, mapped(utf8proc_totitle, code));
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
    do --before;
    while (before > 0 && is_continuation(text_[before]));
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
