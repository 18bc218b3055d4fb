// What loading a profile finds: mistakes (collected, thrown together), warnings and notes.
#pragma once

#include <string>
#include <vector>

#include "value/value.h"

namespace lora_train {

class Findings {
 public:
  /// Only the first mistake about one key at one place is kept; later ones follow from it.
  void mistake(const Place& place, const std::string& key, const std::string& what);
  void warn(const Place& place, const std::string& key, const std::string& what);
  void note(const Place& place, const std::string& key, const std::string& what);
  /// A mistake that already has its place in front.
  void mistake_at(const std::string& where, const std::string& text);

  /// A line after all mistakes; printed once.
  void add_hint(const std::string& line) { hint_ = line; }

  bool has_mistakes() const { return !mistakes_.empty(); }
  /// Throws one ConfigError with all mistakes, by file (in the order they were read) and line.
  void throw_if_any() const;

  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Mistake {
    Place place;
    std::string key;
    std::string text;
  };
  std::vector<Mistake> mistakes_;
  std::size_t num_more_ = 0;  ///< mistakes beyond those that are kept
  std::vector<std::string> warnings_, notes_;
  std::string hint_;
};

}  // namespace lora_train
