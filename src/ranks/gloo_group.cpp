#include "transport.h"

#define USE_C10D_GLOO  // else the next header is empty
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace lora_train::ranks {

c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int world_size, const std::string& address,
                                                  std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(address)};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, std::move(options));
}

}  // namespace lora_train::ranks
