#include "lora_train/config/keys/other_tools.h"

namespace lora_train {
namespace {

OtherTools& introduced() {
  static OtherTools tools;
  return tools;
}

}  // namespace

void introduce_other_tools(const OtherTools& tools) { introduced() = tools; }

const OtherTools& other_tools() { return introduced(); }

}  // namespace lora_train
