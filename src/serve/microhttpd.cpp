#include "microhttpd.h"

#include <dlfcn.h>

namespace lora_train::serve::microhttpd {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Api& api) {
  return find(library, "MHD_start_daemon", api.start) && find(library, "MHD_stop_daemon", api.stop) &&
         find(library, "MHD_quiesce_daemon", api.quiesce) &&
         find(library, "MHD_create_response_from_buffer", api.response_of_bytes) &&
         find(library, "MHD_create_response_from_callback", api.response_of_reader) &&
         find(library, "MHD_add_response_header", api.add_header) && find(library, "MHD_queue_response", api.queue) &&
         find(library, "MHD_destroy_response", api.destroy_response) &&
         find(library, "MHD_suspend_connection", api.suspend) && find(library, "MHD_resume_connection", api.resume) &&
         find(library, "MHD_lookup_connection_value", api.lookup) && find(library, "MHD_get_connection_info", api.info);
}

}  // namespace

const Api* load() {
  static Api api{};
  void* const library = ::dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr && find_all(library, api) ? &api : nullptr;
}

}  // namespace lora_train::serve::microhttpd
