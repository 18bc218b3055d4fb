#include "microhttpd.h"

#include <dlfcn.h>

#include "lora_train/base/library.h"

namespace lora_train::serve::microhttpd {
namespace {

bool find_all(void* library, Api& api) {
  return find_function(library, "MHD_start_daemon", api.start) && find_function(library, "MHD_stop_daemon", api.stop) &&
         find_function(library, "MHD_quiesce_daemon", api.quiesce) &&
         find_function(library, "MHD_create_response_from_buffer", api.response_of_bytes) &&
         find_function(library, "MHD_create_response_from_callback", api.response_of_reader) &&
         find_function(library, "MHD_add_response_header", api.add_header) &&
         find_function(library, "MHD_queue_response", api.queue) &&
         find_function(library, "MHD_destroy_response", api.destroy_response) &&
         find_function(library, "MHD_suspend_connection", api.suspend) &&
         find_function(library, "MHD_resume_connection", api.resume) &&
         find_function(library, "MHD_lookup_connection_value", api.lookup) &&
         find_function(library, "MHD_get_connection_info", api.info);
}

}  // namespace

const Api* load() {
  static Api api{};
  void* const library = ::dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr && find_all(library, api) ? &api : nullptr;
}

}  // namespace lora_train::serve::microhttpd
