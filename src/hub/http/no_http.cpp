// Replaces client.cpp if the build has no libcurl headers.
#include "lora_train/hub/http/client.h"

namespace lora_train::hub {

struct Client::Impl {};

Client::Client(ClientOptions) {
  throw IoError(
      "lora-train",
      "this build has no HTTP, because libcurl's headers were missing: install libcurl4-openssl-dev and build again.");
}

Client::~Client() = default;

Answer Client::send(const Request&) { return {}; }

}  // namespace lora_train::hub
