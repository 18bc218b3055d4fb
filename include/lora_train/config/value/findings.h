// What loading a profile finds: mistakes (collected for one error), warnings and notes.
#pragma once

#include <string>
#include <vector>

#include "lora_train/config/value/mistakes.h"
#include "lora_train/config/value/value.h"

namespace lora_train {

class Findings {
 public:
  /// `mistakes` must outlive it.
  explicit Findings(Mistakes& mistakes) : mistakes_(mistakes) {}

  void mistake(const Place& place, const std::string& key, const std::string& what);
  void warn(const Place& place, const std::string& key, const std::string& what);
  void note(const Place& place, const std::string& key, const std::string& what);

  Mistakes& mistakes() { return mistakes_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  Mistakes& mistakes_;
  std::vector<std::string> warnings_, notes_;
};

}  // namespace lora_train
