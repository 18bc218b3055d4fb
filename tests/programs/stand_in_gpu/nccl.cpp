// A stand-in for NCCL, preloaded beside stand_in_runtime: the collectives that lora-train uses, between processes of one host, over
// shared memory. As with blocking = 0, a call returns ncclInProgress, and the first collective stays so until all ranks have come.
// Later ones are in a stream then: what comes after them there waits, on the host.
//   STAND_IN_NCCL_FAULT=kind:call:rank  what `rank` does in its call number `call`, from 1; 0 is connecting, -1 finalizing:
//     fail  the call is refused
//     error the call is never joined, and the communicator has an asynchronous error
//     hang  the call is never joined
//     kill  the process dies
//   STAND_IN_NCCL_CALLS=FILE  at the end of the process, FILE.<rank> says how often each call came
// Ranks that make different calls are an error of all of them, which names both, and so are buffers of a group that overlap. A
// communicator that is used after it was freed ends the process, and so does one that is destroyed before all ranks have finalized
// it, or that is still being freed when the process ends.
#include <dlfcn.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "shared_segment.h"
#include "write_counts.h"

using namespace stand_in;

namespace {

struct Communicator {
  std::string name;  ///< of the segment
  int rank = 0, size = 0, device = 0;
  Segment* shared = nullptr;
  cudaStream_t stream = nullptr;
  std::thread worker;
  long num_calls = 0;
  std::string error;
  std::atomic<int> state = ncclInProgress, num_pending = 0;
  std::atomic<bool> is_aborted = false, is_finalized = false, is_being_freed = false, is_gone = false;
  std::atomic<bool> is_taken = false;  ///< somebody has seen that the last call is taken
};

enum Call { kConnect, kAllReduce, kBroadcast, kNumbers, kCaptured, kFinalize, kDestroy, kAbort, kNumCalls };
constexpr auto kNames =
    names("connect", "all_reduce", "broadcast", "numbers", "captured", "finalize", "destroy", "abort");
static_assert(kNames.size() == kNumCalls);
std::atomic<long> counts[kNumCalls];
// Never destroyed: threads may use them while the process ends.
auto& communicators = *new std::vector<Communicator*>;
auto& mutex = *new std::mutex;  ///< of `communicators`

thread_local bool is_in_group = false;
thread_local std::vector<Op> group;
thread_local Communicator* group_communicator = nullptr;
thread_local cudaStream_t group_stream = nullptr;

void nap() { ::usleep(20); }

[[noreturn]] void die(const char* why) {
  std::fprintf(stderr, "stand-in NCCL: a communicator %s\n", why);
  std::abort();
}

Communicator* of(ncclComm_t handle) {
  auto* const communicator = reinterpret_cast<Communicator*>(handle);
  if (communicator == nullptr || communicator->is_being_freed) die("is used that is not there, or not any more");
  return communicator;
}

bool has_fault(const Communicator& communicator, std::string_view wanted, long number) {
  const char* const text = std::getenv("STAND_IN_NCCL_FAULT");
  char kind[16] = "";
  long call = 0;
  int rank = 0;
  if (text == nullptr || std::sscanf(text, "%15[a-z]:%ld:%d", kind, &call, &rank) != 3) return false;
  return kind == wanted && call == number && rank == communicator.rank;
}

void fail(Communicator& communicator, ncclResult_t status, const std::string& error) {
  communicator.error = error;
  communicator.state = status;
}

/// False if there is an error.
bool go_from(Communicator& communicator, int from, int to) {
  return communicator.state.compare_exchange_strong(from, to) || from == to;
}

/// True: the rank takes no part, and has waited for its end.
bool stays_away(Communicator& communicator, long call) {
  if (has_fault(communicator, "kill", call)) ::raise(SIGKILL);
  const bool has_error = has_fault(communicator, "error", call);
  if (!has_error && !has_fault(communicator, "hang", call)) return false;
  while (has_error && call > 1 && !communicator.is_taken && !communicator.is_aborted) nap();
  if (has_error) fail(communicator, ncclRemoteError, "asked for by STAND_IN_NCCL_FAULT");
  while (!communicator.is_aborted) nap();
  return true;
}

/// False once the communicator is aborted.
bool barrier(Communicator& communicator) {
  Segment& shared = *communicator.shared;
  const unsigned generation = shared.generation;
  if (++shared.num_in_barrier == communicator.size) {
    shared.num_in_barrier = 0;
    ++shared.generation;
  }
  while (shared.generation == generation) {
    if (communicator.is_aborted) return false;
    nap();
  }
  return true;
}

/// Of what the ranks have posted.
bool are_the_same(Communicator& communicator, long call) {
  const Segment& shared = *communicator.shared;
  const std::string first = text_of(shared.postings[0]);
  for (int rank = 1; rank < communicator.size; ++rank) {
    const std::string other = text_of(shared.postings[rank]);
    if (other == first) continue;
    const std::string error =
        "call " + std::to_string(call) + ": rank 0 has " + first + ", rank " + std::to_string(rank) + " has " + other;
    std::fprintf(stderr, "stand-in NCCL: %s\n", error.c_str());
    fail(communicator, ncclInvalidUsage, error);
    return false;
  }
  return true;
}

bool compute(Communicator& communicator, const Op& op) {
  Segment& shared = *communicator.shared;
  const std::size_t total = op.count * bytes_of(op.type);
  for (std::size_t begin = 0; begin < total; begin += kChunkBytes) {
    char* const data = static_cast<char*>(op.data) + begin;
    const std::size_t bytes = std::min(kChunkBytes, total - begin);
    if (op.is_broadcast == 0 || op.root == communicator.rank) std::memcpy(shared.data[communicator.rank], data, bytes);
    if (!barrier(communicator)) return false;
    if (op.is_broadcast != 0) {
      std::memcpy(data, shared.data[op.root], bytes);
    } else if (op.type == ncclFloat64) {
      add_all<double>(shared, communicator.size, bytes, data);
    } else {
      add_all<float>(shared, communicator.size, bytes, data);
    }
    if (!barrier(communicator)) return false;
  }
  return true;
}

void run(Communicator& communicator, const std::vector<Op>& ops, long call) {
  if (call > 1 && !go_from(communicator, ncclInProgress, ncclSuccess)) return;
  if (stays_away(communicator, call)) return;
  Posting& posting = communicator.shared->postings[communicator.rank];
  posting.num_ops = static_cast<int>(ops.size());
  std::copy(ops.begin(), ops.end(), posting.ops);
  if (!barrier(communicator) || !are_the_same(communicator, call)) return;
  if (call == 1) go_from(communicator, ncclInProgress, ncclSuccess);
  for (const Op& op : ops) {
    if (!compute(communicator, op)) return;
  }
}

ncclResult_t launch() {
  Communicator& communicator = *group_communicator;
  const std::vector<Op> ops = std::exchange(group, {});
  group_communicator = nullptr;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  static_cast<void>(cudaStreamIsCapturing(group_stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) ++counts[kCaptured];
  ++counts[ops[0].is_broadcast != 0 ? kBroadcast : kAllReduce];
  for (const Op& op : ops) counts[kNumbers] += static_cast<long>(op.count);
  const long call = ++communicator.num_calls;
  if (has_fault(communicator, "fail", call) || ops.size() > kMaxOps) {
    fail(communicator, ncclInternalError, "asked for by STAND_IN_NCCL_FAULT");
    return ncclInternalError;
  }
  if (overlap(ops)) {
    fail(communicator, ncclInvalidUsage, "buffers of a group overlap");
    return ncclInvalidUsage;
  }
  communicator.stream = group_stream;
  if (!go_from(communicator, ncclSuccess, ncclInProgress)) return ncclInternalError;
  communicator.is_taken = false;
  ++communicator.num_pending;
  communicator.worker = std::thread([&communicator, ops, call, before = std::move(communicator.worker)]() mutable {
    if (before.joinable()) before.join();
    run(communicator, ops, call);
    --communicator.num_pending;
  });
  return ncclInProgress;
}

ncclResult_t enqueue(const Op& op, ncclComm_t handle, cudaStream_t stream) {
  Communicator* const communicator = of(handle);
  if (communicator->state != ncclSuccess) {  // NCCL wants to be asked until it is
    if (communicator->state == ncclInProgress) {
      fail(*communicator, ncclInvalidUsage, "a call before the last one has been taken");
    }
    group.clear();
    return ncclInvalidUsage;
  }
  group.push_back(op);
  group_communicator = communicator;
  group_stream = stream;
  return is_in_group ? ncclSuccess : launch();
}

void connect(Communicator& communicator) {
  if (has_fault(communicator, "fail", 0)) {
    return fail(communicator, ncclSystemError, "asked for by STAND_IN_NCCL_FAULT");
  }
  if (stays_away(communicator, 0)) return;
  const int file = ::shm_open(communicator.name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  void* const memory = file >= 0 && ::ftruncate(file, sizeof(Segment)) == 0
                           ? ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                           : MAP_FAILED;
  if (file >= 0) ::close(file);
  if (memory == MAP_FAILED) return fail(communicator, ncclSystemError, "no shared memory");
  communicator.shared = static_cast<Segment*>(memory);
  int size = 0;
  communicator.shared->num_ranks.compare_exchange_strong(size, communicator.size);
  if (size != 0 && size != communicator.size) {
    return fail(communicator, ncclInvalidUsage, "another rank has another number of ranks");
  }
  ++communicator.shared->num_arrived;
  while (communicator.shared->num_arrived < communicator.size) {
    if (communicator.is_aborted) break;
    nap();
  }
  if (communicator.rank == 0 || communicator.is_aborted) ::shm_unlink(communicator.name.c_str());
  if (!communicator.is_aborted) communicator.state = ncclSuccess;
}

/// What stand_in_runtime calls before it does anything in a stream of the current device; ~0: in any.
void wait_for_collectives(void* stream) {
  std::vector<Communicator*> all;
  {
    const std::lock_guard lock(mutex);
    all = communicators;
  }
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  for (const Communicator* communicator : all) {
    while (communicator->device == device && communicator->num_pending > 0 &&
           (stream == reinterpret_cast<void*>(~std::uintptr_t{0}) || stream == communicator->stream)) {
      nap();
    }
  }
}

/// In a thread of its own, as with blocking = 0.
ncclResult_t free_later(Communicator& communicator) {
  communicator.state = ncclInProgress;
  communicator.is_being_freed = true;
  std::thread([&communicator] {
    communicator.worker.join();
    for (int i = 0; i < 100; ++i) nap();
    if (communicator.shared != nullptr) ::munmap(communicator.shared, sizeof(Segment));
    communicator.is_gone = true;
    communicator.state = ncclSuccess;
  }).detach();
  return ncclInProgress;
}

struct Report {
  ~Report() {
    const char* const file = std::getenv("STAND_IN_NCCL_CALLS");
    const std::lock_guard lock(mutex);
    for (const Communicator* communicator : communicators) {
      if (communicator->is_being_freed && !communicator->is_gone) die("is being freed while the process ends");
    }
    if (file == nullptr || communicators.empty()) return;
    write_counts((file + ("." + std::to_string(communicators[0]->rank))).c_str(), kNames, counts);
  }
} report;

}  // namespace

extern "C" {

/// For tests: called by ncclCommAbort before it does anything.
void (*stand_in_nccl_at_abort)() = nullptr;
/// For tests: how often a call of STAND_IN_NCCL_CALLS came so far.
long stand_in_nccl_count(const char* name) {
  for (std::size_t i = 0; i < kNumCalls; ++i) {
    if (std::string_view(kNames[i]) == name) return counts[i];
  }
  return -1;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> number = 0;
  std::snprintf(id->internal, sizeof id->internal, "/lora-train-stand-in-nccl.%d.%d", ::getpid(), ++number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int num_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0 || num_ranks > kMaxRanks) return ncclInvalidArgument;
  const auto wait_with = reinterpret_cast<void (*)(void (*)(void*))>(::dlsym(RTLD_DEFAULT, "stand_in_wait_with"));
  if (wait_with == nullptr) return ncclInternalError;
  wait_with(&wait_for_collectives);
  auto* const communicator = new Communicator;
  communicator->name = id.internal;
  communicator->rank = rank;
  static_cast<void>(cudaGetDevice(&communicator->device));
  communicator->size = num_ranks;
  ++counts[kConnect];
  communicator->worker = std::thread([communicator] { connect(*communicator); });
  const std::lock_guard lock(mutex);
  communicators.push_back(communicator);
  *handle = reinterpret_cast<ncclComm_t>(communicator);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  Communicator& communicator = *reinterpret_cast<Communicator*>(handle);  // may be asked for while it is freed
  *state = static_cast<ncclResult_t>(communicator.state.load());
  if (*state == ncclSuccess) communicator.is_taken = true;
  return ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t handle) { return handle == nullptr ? "" : of(handle)->error.c_str(); }
const char* ncclGetErrorString(ncclResult_t status) {
  return status == ncclRemoteError ? "remote error" : status == ncclSystemError ? "system error" : "stand-in's error";
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  Communicator& communicator = *of(handle);
  ++counts[kFinalize];
  if (!go_from(communicator, ncclSuccess, ncclInProgress)) return ncclInvalidUsage;
  communicator.worker = std::thread([&communicator, before = std::move(communicator.worker)]() mutable {
    before.join();
    if (stays_away(communicator, -1) || !barrier(communicator)) return;
    communicator.is_finalized = true;
    go_from(communicator, ncclInProgress, ncclSuccess);
  });
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  Communicator& communicator = *of(handle);
  if (!communicator.is_finalized) die("is destroyed before it is finalized");
  ++counts[kDestroy];
  return free_later(communicator);
}
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  Communicator& communicator = *of(handle);
  if (stand_in_nccl_at_abort != nullptr) stand_in_nccl_at_abort();
  ++counts[kAbort];
  communicator.is_aborted = true;
  return free_later(communicator);
}

ncclResult_t ncclGroupStart() {
  is_in_group = true;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  is_in_group = false;
  return group.empty() ? ncclSuccess : launch();
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t handle, cudaStream_t stream) {
  if (send != receive || op != ncclSum || (type != ncclFloat32 && type != ncclFloat64)) return ncclInvalidArgument;
  return enqueue({.is_broadcast = 0, .type = type, .root = 0, .count = count, .data = receive}, handle, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t handle, cudaStream_t stream) {
  if (send != receive || type != ncclInt8) return ncclInvalidArgument;
  return enqueue({.is_broadcast = 1, .type = type, .root = root, .count = count, .data = receive}, handle, stream);
}

}  // extern "C"
