// Chat templates of strangers, rendered with a fixed chat.
#include "fuzz/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lora_train::fuzz::render_template({reinterpret_cast<const char*>(data), size});
  return 0;
}
