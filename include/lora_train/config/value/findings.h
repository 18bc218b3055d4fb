// Findings about a profile and the files that it names: mistakes, collected so that one error reports them all,
// warnings and notes.
#pragma once

#include <string>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train {

struct Place {
  std::string file;  ///< or "--set"
  int line = 0;      ///< from 1; 0 = none
  std::string text() const { return line > 0 ? file + ":" + std::to_string(line) : file; }
};

/// "file:line", or any other text as a place without a line.
Place parse_place(const std::string& text);

/// True if the place is the key itself on the command line, so that a message need not name both: "--lora-r",
/// "lora_r=x".
bool names_key(const Place& place, const std::string& key);

class Findings {
 public:
  /// `key` is a key, a place inside one ("datasets[0].path") or empty. Only the first mistake about one key at one
  /// place is kept; later ones follow from it. The key is left out if the place names it (names_key). `code` is kUsage,
  /// or what the run would end with: kData, kFormat or kIo.
  void mistake(const Place& place, const std::string& key, const std::string& what, ExitCode code = ExitCode::kUsage);
  /// Adds a line after all mistakes; printed once.
  void hint(const std::string& line);
  void warn(const Place& place, const std::string& key, const std::string& what);
  void note(const Place& place, const std::string& key, const std::string& what);

  bool has_mistakes() const { return !mistakes_.empty(); }
  std::size_t num_mistakes() const { return mistakes_.size() + num_more_; }
  /// True if there is a mistake about this key or a place inside it: further findings about it may follow from that.
  bool is_wrong(const std::string& key) const;
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& notes() const { return notes_; }

  /// Throws one error with all mistakes, if there are any, by file (in the order they were read) and line: where() is
  /// the place of the first, message() starts with what was wrong there and has one line "file:line: key: ..." for each
  /// further one. It is a ConfigError, unless all mistakes have one other code.
  void throw_mistakes() const;

 private:
  struct Mistake {
    Place place;
    std::string key;
    std::string text;
    ExitCode code = ExitCode::kUsage;
  };
  std::vector<Mistake> mistakes_;
  std::size_t num_more_ = 0;  ///< mistakes beyond those that are kept
  std::vector<std::string> hints_, warnings_, notes_;
};

}  // namespace lora_train
