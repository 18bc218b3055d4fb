#include "on_cpu.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "lora_train/base/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define LORA_TRAIN_ANNOUNCE(call) call
#else
#define LORA_TRAIN_ANNOUNCE(call)
#endif

namespace lora_train::kernels::on_cpu {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr unsigned kMaxThreads = 1024, kWarp = 32;
constexpr unsigned char kPoison = 0xFF;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

/// A switch to another stack and back. ucontext enters a stack; afterwards the compiler's own setjmp switches, which
/// calls neither the system nor a library. noipa: the compiler must not assume which registers a switch preserves.
/// Informs address sanitizer of every switch.
class Fibre {
 public:
  Fibre() {
    stack_ = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack_ == MAP_FAILED) throw IoError("on_cpu", "no memory for the stack of a fibre");
    ::mprotect(stack_, 4096, PROT_NONE);
  }
  ~Fibre() { ::munmap(stack_, kStackBytes); }
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  /// Runs until the fibre calls back(). It begins in entry(argument), which never returns.
  [[gnu::noipa]] void resume(void (*entry)(), Fibre** current) {
    *current = this;
    LORA_TRAIN_ANNOUNCE(void* fake_stack = nullptr);
    LORA_TRAIN_ANNOUNCE(__sanitizer_start_switch_fiber(&fake_stack, stack_, kStackBytes));
    if (__builtin_setjmp(caller_) == 0) enter(entry);
    LORA_TRAIN_ANNOUNCE(__sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr));
  }

  [[gnu::noipa]] void back() {
    LORA_TRAIN_ANNOUNCE(__sanitizer_start_switch_fiber(&fake_stack_, caller_stack_, caller_bytes_));
    if (__builtin_setjmp(own_) == 0) leave();
    arrived();
  }

  /// First thing in entry().
  void arrived() { LORA_TRAIN_ANNOUNCE(__sanitizer_finish_switch_fiber(fake_stack_, &caller_stack_, &caller_bytes_)); }

 private:
  // A jump must not be in the function of its setjmp. The sanitizer would clear the stack, assuming that it is left for
  // good.
  [[gnu::noinline, gnu::no_sanitize_address]] void enter(void (*entry)()) {
    if (has_begun_) __builtin_longjmp(own_, 1);
    has_begun_ = true;
    ucontext_t context;
    ::getcontext(&context);
    context.uc_stack.ss_sp = stack_;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    ::makecontext(&context, entry, 0);
    ::setcontext(&context);
  }
  [[gnu::noinline, gnu::no_sanitize_address]] void leave() { __builtin_longjmp(caller_, 1); }

  void* stack_;
  bool has_begun_ = false;
  void *own_[5], *caller_[5];
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_bytes_ = 0;
#endif
};

struct Thread {
  std::unique_ptr<Fibre> fibre;
  State state = State::kDone;
  int line = 0;                      ///< line of the barrier at which it waits
  unsigned parity = 0;               ///< the slot of its next exchange
  std::array<Fragments, 2> slots{};  ///< the values it gave; a lane is never two exchanges ahead of another
};

struct Block {
  std::vector<Thread> threads = std::vector<Thread>(kMaxThreads);
  unsigned num_threads = 0, current = 0;
  const std::function<void()>* body = nullptr;
  Fibre* fibre = nullptr;
  std::vector<void*> shared;  ///< arrays that this block poisoned
  Order order = Order::kAscending;
  std::int64_t num_launches = 0;
};

Block& block_of_this_thread() {
  thread_local Block block;
  return block;
}

/// State of the running grid. A pointer, since a thread_local object with a constructor is looked up at each use.
constinit thread_local Block* the_block = nullptr;

/// The loop of a fibre: runs one kernel thread after another.
void thread_main() {
  the_block->fibre->arrived();
  for (;;) {
    Thread& self = the_block->threads[the_block->current];
    (*the_block->body)();
    self.state = State::kDone;
    self.fibre->back();
  }
}

void wait(State state, int line) {
  Thread& self = the_block->threads[the_block->current];
  self.state = state;
  self.line = line;
  self.fibre->back();
}

void run_thread(unsigned t) {
  Thread& thread = the_block->threads[t];
  if (!thread.fibre) thread.fibre = std::make_unique<Fibre>();
  the_block->current = t;
  threadIdx = {t, 0, 0};
  thread.fibre->resume(thread_main, &the_block->fibre);
}

/// Releases threads [begin, end) if all wait in `state` at the same line; else returns false.
bool release(State state, unsigned begin, unsigned end) {
  auto& threads = the_block->threads;
  for (unsigned t = begin; t < end; ++t) {
    if (threads[t].state != state || threads[t].line != threads[begin].line) return false;
  }
  for (unsigned t = begin; t < end; ++t) threads[t].state = State::kReady;
  return true;
}

[[noreturn]] void throw_deadlock(const char* name) {
  std::string what = fmt::format("threads of block ({}, {}) are deadlocked:", blockIdx.x, blockIdx.y);
  State last = State::kReady;
  int last_line = -1;
  for (unsigned t = 0; t < the_block->num_threads; ++t) {
    const Thread& thread = the_block->threads[t];
    if (thread.state == last && thread.line == last_line) continue;
    last = thread.state;
    last_line = thread.line;
    what +=
        fmt::format(" from thread {}{}", t,
                    thread.state == State::kDone ? " on: at the end;" : fmt::format(" on: at line {};", thread.line));
  }
  for (auto& thread : the_block->threads) thread = {};  // their stacks are in the middle of a kernel
  throw ShapeError(name, what);
}

/// Runs the warp as far as it gets without the others, so that a missing block barrier shows: the others are far
/// behind.
void run_warp(unsigned first) {
  do {
    for (unsigned i = 0; i < kWarp; ++i) {
      const unsigned t = first + (the_block->order == Order::kAscending ? i : kWarp - 1 - i);
      if (the_block->threads[t].state == State::kReady) run_thread(t);
    }
  } while (release(State::kAtWarpBarrier, first, first + kWarp));
}

void run_block(const char* name) {
  const unsigned n = the_block->num_threads;
  the_block->shared.clear();
  for (unsigned t = 0; t < n; ++t) {
    the_block->threads[t].state = State::kReady;
    the_block->threads[t].line = 0;
  }
  for (;;) {
    for (unsigned i = 0; i < n; i += kWarp) run_warp(the_block->order == Order::kAscending ? i : n - kWarp - i);
    bool is_done = true;
    for (unsigned t = 0; t < n; ++t) is_done = is_done && the_block->threads[t].state == State::kDone;
    if (is_done) return;
    const bool has_released = release(State::kAtBlockBarrier, 0, n);
    if (!has_released) throw_deadlock(name);
  }
}

LaunchSink& launch_sink() {
  static LaunchSink recorder;
  return recorder;
}

}  // namespace

void set_order(Order order) { block_of_this_thread().order = order; }

std::int64_t num_launches() { return block_of_this_thread().num_launches; }

void run_grid(const char* name, unsigned blocks_x, unsigned blocks_y, unsigned threads,
              const std::function<void()>& body) {
  if (threads == 0 || threads > kMaxThreads || threads % kWarp != 0 || blocks_y > 65535) {
    throw ShapeError(name, "blocks of {} threads, {} in y: expected a multiple of 32 up to 1024, and at most 65535",
                     threads, blocks_y);
  }
  the_block = &block_of_this_thread();
  ++the_block->num_launches;
  the_block->num_threads = threads;
  the_block->body = &body;
  blockDim = {threads, 1, 1};
  gridDim = {blocks_x, blocks_y, 1};
  const std::uint64_t num_blocks = std::uint64_t{blocks_x} * blocks_y;
  for (std::uint64_t i = 0; i < num_blocks; ++i) {
    const std::uint64_t b = the_block->order == Order::kAscending ? i : num_blocks - 1 - i;
    blockIdx = {static_cast<unsigned>(b % blocks_x), static_cast<unsigned>(b / blocks_x), 0};
    run_block(name);
  }
}

void submit(std::function<void()> launch) {
  if (launch_sink()) return launch_sink()(std::move(launch));
  launch();
}

void use_launch_sink(LaunchSink sink) { launch_sink() = std::move(sink); }

void sync_block(int line) { wait(State::kAtBlockBarrier, line); }

unsigned lane() { return the_block->current % kWarp; }

void enter_shared(void* memory, std::size_t bytes) {
  if (std::find(the_block->shared.begin(), the_block->shared.end(), memory) != the_block->shared.end()) return;
  the_block->shared.push_back(memory);
  std::memset(memory, kPoison, bytes);
}

namespace {

/// The values given by all lanes of a warp, once all have given theirs.
class Given {
 public:
  Given(const Fragments& own, int line) {
    const unsigned self = the_block->current;
    first_ = self / kWarp * kWarp;
    slot_ = the_block->threads[self].parity++ % 2;
    the_block->threads[self].slots[slot_] = own;
    wait(State::kAtWarpBarrier, line);
  }
  const Fragments& of(unsigned lane) const { return the_block->threads[first_ + lane].slots[slot_]; }

 private:
  unsigned first_, slot_;
};

/// Element `half` of two in a register, as it is and as bf16.
std::uint32_t half_of(std::uint32_t pair, unsigned half) { return pair >> (16 * half) & 0xFFFF; }
double bf16_of(std::uint32_t pair, unsigned half) {
  const std::uint32_t bits = half_of(pair, half) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<double>(value);
}

}  // namespace

std::uint64_t exchange(std::uint64_t value, unsigned source, int line) {
  Fragments own{};
  std::memcpy(own.a, &value, sizeof value);
  const Given given(own, line);
  std::memcpy(&value, given.of(source).a, sizeof value);
  return value;
}

void multiply_add_16x8x16(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, int line) {
  const Given given({{a[0], a[1], a[2], a[3]}, {b0, b1}}, line);
  const unsigned group = lane() / 4, in_group = lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = group + i / 2 * 8, column = 2 * in_group + i % 2;
    double sum = static_cast<double>(sums[i]);
    for (unsigned k = 0; k < 16;
         ++k) {  // lanes of `row` and of `column` that hold k of 8, and their registers for that half
      const unsigned owner = k % 8 / 2, upper = k / 8;
      sum += bf16_of(given.of(row % 8 * 4 + owner).a[2 * upper + row / 8], k % 2) *
             bf16_of(given.of(column * 4 + owner).b[upper], k % 2);
    }
    sums[i] = static_cast<float>(sum);
  }
}

std::uint32_t transpose_8x8(std::uint32_t row, int line) {
  const Given given({{row}, {}}, line);
  const unsigned column = lane() / 4, first_row = lane() % 4 * 2;
  const auto element = [&](unsigned r) { return half_of(given.of(r * 4 + column / 2).a[0], column % 2); };
  return element(first_row) | element(first_row + 1) << 16;
}

void load_four_8x8(std::uint32_t (&matrices)[4], const void* row, bool is_transposed, int line) {
  Fragments own{};
  std::memcpy(own.a, &row, sizeof row);
  const Given given(own, line);
  const unsigned group = lane() / 4, in_group = lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const auto element = [&](unsigned r, unsigned column) {
      const std::uint16_t* from = nullptr;
      std::memcpy(&from, given.of(8 * i + r).a, sizeof from);
      return std::uint32_t{from[column]};
    };
    matrices[i] = is_transposed ? element(2 * in_group, group) | element(2 * in_group + 1, group) << 16
                                : element(group, 2 * in_group) | element(group, 2 * in_group + 1) << 16;
  }
}

}  // namespace lora_train::kernels::on_cpu
