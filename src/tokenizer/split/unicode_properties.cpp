#include "unicode_properties.h"

#include <algorithm>
#include <array>

namespace lora_train::tokenizer {
namespace {

struct Property {
  std::string_view name;  // of a category or script
  const char* added;      // by Unicode 15, 15.1 and 16, to what PCRE2 knows (Unicode 14)
};

// Compared with Oniguruma's for every code point. Mn has lost a member (U+1171E), which no class can say. Of scripts
// PCRE2 takes Script_Extensions, Oniguruma Script.
constexpr Property kProperties[] = {
    {"M", R"(\x{0897}\x{0CF3}\x{0ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241}\x{113B8}-\x{113C0}\x{113C2})"
          R"(\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D0}\x{113D2}\x{113E1}-\x{113E2}\x{11F00}-\x{11F01}\x{11F03})"
          R"(\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F42}\x{11F5A}\x{13440}\x{13447}-\x{13455}\x{1611E}-\x{1612F}\x{1E08F})"
          R"(\x{1E4EC}-\x{1E4EF}\x{1E5EE}-\x{1E5EF})"},
    {"Lu", R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})"},
    {"Ll", R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})"},
    {"Lm", R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}-\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})"},
    {"Lo", R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240}\x{11380}-\x{11389})"
           R"(\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02})"
           R"(\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D})"
           R"(\x{16D43}-\x{16D6A}\x{18CFF}\x{1B132}\x{1B155}\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
           R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"Mc", R"(\x{0CF3}\x{113B8}-\x{113BA}\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113CD}\x{113CF}\x{1171E})"
           R"(\x{11F03}\x{11F34}-\x{11F35}\x{11F3E}-\x{11F3F}\x{11F41}\x{1612A}-\x{1612C})"},
    {"Nd", R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
           R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})"},
    {"No", R"(\x{1D2C0}-\x{1D2D3})"},
    {"Pd", R"(\x{10D6E})"},
    {"Po", R"(\x{1B4E}-\x{1B4F}\x{1B7F}\x{113D4}-\x{113D5}\x{113D7}-\x{113D8}\x{11B00}-\x{11B09}\x{11BE1})"
           R"(\x{11F43}-\x{11F4F}\x{16D6D}-\x{16D6F}\x{1E5FF})"},
    {"Sm", R"(\x{10D8E}-\x{10D8F})"},
    {"So",
     R"(\x{2427}-\x{2429}\x{2FFC}-\x{2FFF}\x{31E4}-\x{31E5}\x{31EF}\x{1CC00}-\x{1CCEF}\x{1CD00}-\x{1CEB3})"
     R"(\x{1F6DC}\x{1F774}-\x{1F776}\x{1F77B}-\x{1F77F}\x{1F7D9}\x{1F8B2}-\x{1F8BB}\x{1F8C0}-\x{1F8C1})"
     R"(\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF}\x{1FABB}-\x{1FABF}\x{1FAC6})"
     R"(\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF}\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8}\x{1FBCB}-\x{1FBEF})"},
    {"Cf", R"(\x{13439}-\x{1343F})"},
    {"Han", R"(\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"Hiragana", R"(\x{1B132})"},
    {"Katakana", R"(\x{1B155})"},
    {"Latin", R"(\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{1DF25}-\x{1DF2A})"},
    {"Cyrillic", R"(\x{1C89}-\x{1C8A}\x{1E030}-\x{1E06D}\x{1E08F})"},
    {"Arabic", R"(\x{0897}\x{10EC2}-\x{10EC4}\x{10EFC}-\x{10EFF})"},
    {"Devanagari", R"(\x{11B00}-\x{11B09})"},
};

// Those that nothing was added to.
constexpr std::string_view kUnchanged[] = {"Lt", "Me",     "Nl",    "Pc",     "Ps",   "Pe",      "Pi",
                                           "Pf", "Sc",     "Sk",    "Zs",     "Zl",   "Zp",      "Cc",
                                           "Co", "Hangul", "Greek", "Hebrew", "Thai", "Bopomofo"};

struct Union {
  std::string_view name;
  std::array<std::string_view, 7> parts;
};
constexpr Union kUnions[] = {{"L", {"Lu", "Ll", "Lt", "Lm", "Lo"}},
                             {"N", {"Nd", "Nl", "No"}},
                             {"P", {"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"}},
                             {"S", {"Sm", "Sc", "Sk", "So"}},
                             {"Z", {"Zs", "Zl", "Zp"}}};

std::optional<std::string> added_to(std::string_view name) {
  for (const Property& property : kProperties) {
    if (property.name == name) return property.added;
  }
  if (std::find(std::begin(kUnchanged), std::end(kUnchanged), name) == std::end(kUnchanged)) return std::nullopt;
  return "";
}

}  // namespace

std::optional<std::string> property_members(std::string_view name) {
  const std::string pcre2 = (name.size() > 2 ? "\\p{sc:" : "\\p{") + std::string(name) + "}";
  for (const Union& whole : kUnions) {
    if (whole.name != name) continue;
    std::string members = pcre2;
    for (const std::string_view part : whole.parts) members += added_to(part).value_or("");
    return members;
  }
  const auto added = added_to(name);
  return added ? std::optional(pcre2 + *added) : std::nullopt;
}

}  // namespace lora_train::tokenizer
