// The byte-level alphabet, and the pre_tokenizer of tokenizer.json, which cuts a normalised text into the pieces for
// BPE.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "json_place.h"
#include "normalizer.h"
#include "split/gpt_split.h"
#include "split/regex.h"

namespace lora_train::tokenizer {

/// Half-open ranges of a NormalizedText's text().
using Pieces = std::vector<std::pair<std::size_t, std::size_t>>;

/// Spaces stand for U+2581, and the text begins with an extra one: the effect of SentencePiece-style pipelines.
struct SpaceRule {
  enum class Prefix {
    kNever,
    kAlways,
    kUnlessThere,        ///< not before a space
    kAtStartUnlessThere  ///< nor anywhere but at the start of the input
  };
  Prefix prefix;

  /// True if input[begin, end), which is not empty, gets the prefix.
  bool wants_prefix(std::string_view input, std::size_t begin) const;
};

/// The rule that the normalizer and the pre-tokenizer of a tokenizer.json amount to, if they do nothing else.
std::optional<SpaceRule> find_space_rule(const JsonPlace& root);

/// One cut of every piece: by the matches of a pattern, or with `invert` by the text between them.
struct SplitRule {
  enum class Behavior {
    kIsolated,            ///< matches and the stretches between them are pieces
    kRemoved,             ///< only the stretches between matches are pieces
    kContiguous,          ///< neighbouring matches are one piece
    kMergedWithPrevious,  ///< a match belongs to the stretch before it
    kMergedWithNext,
    kCovering  ///< matches are pieces; a stretch between them is a FormatError
  };
  std::variant<GptSplit, Regex> pattern;
  Behavior behavior;
  bool invert;
};

/// The steps of pre_tokenizer, flattened. Thread-safe for concurrent const calls.
class PreTokenizer {
 public:
  /// FormatError names unsupported features.
  explicit PreTokenizer(const JsonPlace& place);
  /// That of tekken.json: the pattern must match all of a text.
  PreTokenizer(const std::string& pattern, const std::string& where);

  /// True if the vocabulary is spelled in the byte-level alphabet.
  bool is_byte_level() const { return byte_level_; }
  /// True if it cuts with Llama 3's pattern.
  bool has_llama3_pattern() const;
  /// Cuts the text; may change it first (Metaspace, a prefix space). Overwrites `pieces`.
  void split(NormalizedText& text, Pieces& pieces) const;

 private:
  enum class PrependScheme { kNever, kFirst, kAlways };
  void load(const JsonPlace& place);
  void load_sequence(const JsonPlace& place);
  void load_split(const JsonPlace& place);
  void load_digits(const JsonPlace& place);
  void load_byte_level(const JsonPlace& place);
  void load_metaspace(const JsonPlace& place);
  void split_metaspace(NormalizedText& text, Pieces& pieces) const;

  void add_rule(const std::string& pattern, const std::string& where, SplitRule::Behavior behavior, bool invert);

  std::vector<SplitRule> rules_;
  bool byte_level_ = false, prefix_space_ = false;
  bool metaspace_ = false, metaspace_split_ = false;
  std::string replacement_;
  PrependScheme scheme_ = PrependScheme::kNever;
};

/// The bytes behind a vocabulary token; empty if it has a character outside the alphabet.
std::optional<std::string> byte_level_to_bytes(std::string_view token);

/// The bytes in the vocabulary's spelling.
std::string bytes_to_byte_level(std::string_view bytes);

}  // namespace lora_train::tokenizer
