#include "lora_train/config/keys/other_tools.h"

#include <utility>

namespace lora_train {
namespace {

OtherTools& introduced() {
  static OtherTools tools;
  return tools;
}

}  // namespace

void introduce_other_tools(OtherTools tools) { introduced() = std::move(tools); }

const OtherTools& other_tools() { return introduced(); }

}  // namespace lora_train
