#include "curl_library.h"

#include <dlfcn.h>

#include "lora_train/base/error.h"
#include "lora_train/base/library_function.h"

namespace lora_train::hub {
namespace {

bool find_functions(void* library, Curl& curl) {
  return find_function(library, "curl_global_init", curl.global_init) &&
         find_function(library, "curl_easy_init", curl.easy_init) &&
         find_function(library, "curl_easy_cleanup", curl.easy_cleanup) &&
         find_function(library, "curl_easy_reset", curl.easy_reset) &&
         find_function(library, "curl_easy_setopt", curl.easy_setopt) &&
         find_function(library, "curl_easy_getinfo", curl.easy_getinfo) &&
         find_function(library, "curl_easy_strerror", curl.easy_strerror) &&
         find_function(library, "curl_multi_init", curl.multi_init) &&
         find_function(library, "curl_multi_cleanup", curl.multi_cleanup) &&
         find_function(library, "curl_multi_add_handle", curl.multi_add_handle) &&
         find_function(library, "curl_multi_remove_handle", curl.multi_remove_handle) &&
         find_function(library, "curl_multi_perform", curl.multi_perform) &&
         find_function(library, "curl_multi_poll", curl.multi_poll) &&
         find_function(library, "curl_multi_info_read", curl.multi_info_read) &&
         find_function(library, "curl_slist_append", curl.slist_append) &&
         find_function(library, "curl_slist_free_all", curl.slist_free_all);
}

Curl load_curl() {
  Curl curl{};
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr && find_functions(library, curl) && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK)
      return curl;
  }
  throw IoError("libcurl.so.4",
                "is not on this machine, and lora-train needs it for HTTP. Install it (Debian and Ubuntu: apt-get "
                "install libcurl4), or download with another tool into the same cache.");
}

}  // namespace

const Curl& curl() {
  static const Curl loaded = load_curl();
  return loaded;
}

}  // namespace lora_train::hub
