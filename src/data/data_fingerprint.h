// The identity of training data: the bytes of its files, and every option that decides tokens and labels.
#pragma once

#include <cstdint>
#include <string>

#include "lora_train/data/prepare.h"

namespace lora_train::data {

/// `identity`: the fingerprints of the files of all datasets, one behind the other.
std::string fingerprint_of(const DataSection& section, const DataContext& context, const std::string& identity,
                           std::int64_t max_seq_len);

}  // namespace lora_train::data
