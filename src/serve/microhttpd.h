// GNU libmicrohttpd (https://www.gnu.org/software/libmicrohttpd, LGPL-2.1), loaded where the machine has it. Declarations as in its
// microhttpd.h of 0.9.75, whose library has the ABI version 12.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace lora_train::serve::microhttpd {

struct Daemon;
struct Connection;
struct Response;
union ConnectionInfo {
  int connect_fd;
};

// Results, flags of start, its options, and other constants.
constexpr int kNo = 0, kYes = 1;
constexpr unsigned kEpollInternalThread = 520, kAllowSuspendResume = 9216;
constexpr int kOptionEnd = 0, kOptionConnectionMemory = 1, kOptionConnectionLimit = 2, kOptionConnectionTimeout = 3,
              kOptionNotifyCompleted = 4, kOptionListenSocket = 12;
constexpr int kHeaderKind = 1, kMustCopy = 2, kConnectionFd = 6, kCompletedOk = 0;
constexpr ssize_t kEndOfStream = -1, kEndWithError = -2;
constexpr std::uint64_t kSizeUnknown = ~std::uint64_t{0};

using AccessHandler = int (*)(void* context, Connection*, const char* url, const char* method, const char* version,
                              const char* upload_data, std::size_t* upload_size, void** request);
using CompletedCallback = void (*)(void* context, Connection*, void** request, int reason);
using ContentReader = ssize_t (*)(void* context, std::uint64_t position, char* to, std::size_t most);
using FreeCallback = void (*)(void* context);

struct Api {
  Daemon* (*start)(unsigned flags, std::uint16_t port, void* accept, void* accept_context, AccessHandler, void* context,
                   ...);
  void (*stop)(Daemon*);
  int (*quiesce)(Daemon*);
  Response* (*response_of_bytes)(std::size_t size, void* bytes, int mode);
  Response* (*response_of_reader)(std::uint64_t size, std::size_t block, ContentReader, void* context, FreeCallback);
  int (*add_header)(Response*, const char* name, const char* value);
  int (*queue)(Connection*, unsigned status, Response*);
  void (*destroy_response)(Response*);
  void (*suspend)(Connection*);
  void (*resume)(Connection*);
  const char* (*lookup)(Connection*, int kind, const char* name);
  const ConnectionInfo* (*info)(Connection*, int kind, ...);
};

/// Null if it cannot be loaded. It stays loaded.
const Api* load();

}  // namespace lora_train::serve::microhttpd
