#include "lora_train/base/text.h"
#include "lora_train/hub/http/client.h"

namespace lora_train::hub {

std::string Answer::header(std::string_view name) const {
  const std::string wanted = lower_case(std::string(name));
  for (const Header& header : headers) {
    if (lower_case(header.name) == wanted) return header.value;
  }
  return {};
}

}  // namespace lora_train::hub
