// Prompt lookup: a guess of the next tokens of a sequence, from what followed the same words earlier in it. A guess costs one row of a
// pass and changes no answer: the pass computes what follows each guessed token, and the first wrong one ends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lora_train::generate {

/// How many tokens to guess for a sequence: one, and more while all guesses are right.
class DraftLength {
 public:
  std::size_t next(std::size_t most) const;
  void record(std::size_t num_drafted, std::size_t num_right);

 private:
  std::size_t wanted_ = 1;
};

/// The tokens, at most `most`, that follow the latest earlier place with the longest ending of prompt + answer, up to three tokens.
/// Empty if the last token has not been there before.
std::vector<std::int32_t> draft_of(std::span<const std::int32_t> prompt, std::span<const std::int32_t> answer,
                                   std::size_t most);

}  // namespace lora_train::generate
