#include "line_reader.h"

#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/library.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"

namespace lora_train::cli {

namespace {

/// Bytes of stdin as they come.
class StandardInput {
 public:
  /// Waits for more bytes and appends them to text(). False at the end of the input, or if a stop is requested.
  /// Meanwhile calls `on_wake`, if given, a few times a second.
  bool wait(const std::function<void()>& on_wake = {}) {
    constexpr int kWakeMs = 200;  // a signal between check and wait is seen after this long
    while (requested_stop().empty()) {
      if (on_wake) on_wake();
      pollfd input{STDIN_FILENO, POLLIN, 0};
      const int num_ready = ::poll(&input, 1, kWakeMs);
      if (num_ready < 0 && errno != EINTR) fail_with("stdin", "cannot wait");
      if (num_ready <= 0) continue;
      char bytes[4096];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (count > 0) text_.append(bytes, static_cast<std::size_t>(count));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno != EIO) fail_with("stdin", "cannot read");  // EIO: the terminal is gone
      return count > 0;
    }
    return false;
  }

  const std::string& text() const { return text_; }

  /// Takes the first `count` bytes.
  std::string take(std::size_t count) {
    std::string taken = text_.substr(0, count);
    text_.erase(0, count);
    return taken;
  }

 private:
  std::string text_;
};

class PlainLines : public LineReader {
 public:
  explicit PlainLines(bool is_interactive) : is_interactive_(is_interactive) {}

  std::optional<std::string> read(const std::string& prompt) override {
    if (is_interactive_) write_all(STDERR_FILENO, prompt);
    std::size_t end = input_.text().find('\n');
    while (end == std::string::npos) {
      const std::size_t searched = input_.text().size();
      if (!input_.wait()) break;
      end = input_.text().find('\n', searched);
    }
    if (!requested_stop().empty() || input_.text().empty()) {
      if (is_interactive_) write_all(STDERR_FILENO, "\n");
      return std::nullopt;
    }
    std::string line = input_.take(end == std::string::npos ? end : end + 1);
    if (line.ends_with('\n')) line.pop_back();
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  bool is_interactive() const override { return is_interactive_; }

 private:
  StandardInput input_;
  bool is_interactive_;
};

// libedit (https://thrysoee.dk/editline, BSD-3-Clause), loaded if installed. Declarations as in its histedit.h.
namespace libedit {

struct EditLine;
struct History;
struct HistEvent {
  int num;
  const char* str;
};
struct LineInfo {
  const char *buffer, *cursor, *lastchar;
};

// Operations of Api::set and Api::get.
constexpr int kPrompt = 0, kEditor = 2, kSignal = 3, kBind = 4, kAddFunction = 9, kHistory = 10, kGetCharacter = 13,
              kClientData = 14, kPrepareTerminal = 16, kRefresh = 20;
// Operations of Api::history.
constexpr int kSetSize = 1, kEnter = 10, kLoad = 17, kSave = 18, kSetUnique = 20;
// Return values of a function bound to a key.
constexpr unsigned char kRedraw = 4;

struct Api {
  SharedLibrary library;
  EditLine* (*init)(const char* program, std::FILE* in, std::FILE* out, std::FILE* err) = library.find("el_init");
  void (*end)(EditLine*) = library.find("el_end");
  const char* (*gets)(EditLine*, int* count) = library.find("el_gets");
  int (*set)(EditLine*, int operation, ...) = library.find("el_set");
  int (*get)(EditLine*, int operation, ...) = library.find("el_get");
  int (*source)(EditLine*, const char* file) = library.find("el_source");
  void (*resize)(EditLine*) = library.find("el_resize");
  const LineInfo* (*line)(EditLine*) = library.find("el_line");
  int (*insert)(EditLine*, const char* text) = library.find("el_insertstr");
  History* (*history_init)() = library.find("history_init");
  void (*history_end)(History*) = library.find("history_end");
  int (*history)(History*, HistEvent*, int operation, ...) = library.find("history");
};

/// libedit.so.2 (Debian, Ubuntu) or libedit.so.0 (Fedora, Arch); null if neither can be loaded. It stays loaded.
const Api* load() {
  static Api api{};
  for (const char* name : {"libedit.so.2", "libedit.so.0"}) {
    api = Api{SharedLibrary(name)};
    if (api.library.problem().empty()) return &api;
  }
  return nullptr;
}

}  // namespace libedit

namespace fs = std::filesystem;
using libedit::EditLine;

constexpr int kHistorySize = 1000;
constexpr const char* kPasteFunction = "lora-train-paste";
constexpr std::string_view kPasteBegins = "\033[200~", kPasteEnds = "\033[201~";
constexpr std::string_view kPasteOn = "\033[?2004h", kPasteOff = "\033[?2004l";

volatile std::sig_atomic_t has_continued = 0;
extern "C" void note_continuation(int) { has_continued = 1; }

bool is_dumb_terminal() {
  const char* const terminal = std::getenv("TERM");
  return terminal == nullptr || *terminal == '\0' || std::strcmp(terminal, "dumb") == 0;
}

/// Sets a UTF-8 locale: libedit converts text by the locale, and ours is always UTF-8.
void use_utf8_locale() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

/// Bytes of the UTF-8 character that begins with `lead`.
std::size_t expected_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
}

class EditedLines : public LineReader {
 public:
  explicit EditedLines(const libedit::Api& api) : screen_(::fdopen(::dup(STDERR_FILENO), "w")) {
    api_ = &api;
    const fs::path folder = user_folder("XDG_STATE_HOME", ".local/state");
    if (!folder.empty()) history_file_ = folder / "chat_history";
    use_utf8_locale();
    struct sigaction action {};
    action.sa_handler = note_continuation;
    ::sigaction(SIGCONT, &action, nullptr);
    line_ = api.init("lora-train", stdin, screen_, screen_);
    history_ = api.history_init();
    libedit::HistEvent event{};
    api.history(history_, &event, libedit::kSetSize, kHistorySize);
    api.history(history_, &event, libedit::kSetUnique, 1);
    if (!history_file_.empty()) api.history(history_, &event, libedit::kLoad, history_file_.c_str());
    api.set(line_, libedit::kClientData, static_cast<void*>(this));
    api.set(line_, libedit::kSignal, 0);
    api.set(line_, libedit::kEditor, "emacs");
    api.set(line_, libedit::kPrompt, &prompt_of);
    api.set(line_, libedit::kHistory, api.history, history_);
    api.set(line_, libedit::kGetCharacter, &read_character);
    bind_keys();
  }

  ~EditedLines() override {
    api_->end(line_);
    api_->history_end(history_);
    std::fclose(screen_);
    std::signal(SIGCONT, SIG_DFL);
  }

  EditedLines(const EditedLines&) = delete;
  EditedLines& operator=(const EditedLines&) = delete;

  std::optional<std::string> read(const std::string& prompt) override {
    prompt_ = prompt;
    while (true) {
      has_text_ = false;
      write_all(STDERR_FILENO, kPasteOn);
      api_->set(line_, libedit::kPrepareTerminal, 1);  // before the prompt: a user who sees it may type Ctrl-D
      int count = 0;
      const char* const line = api_->gets(line_, &count);
      write_all(STDERR_FILENO, kPasteOff);
      if (line != nullptr && count > 0) {
        std::string text(line, static_cast<std::size_t>(count));
        if (text.ends_with('\n')) text.pop_back();
        return text;
      }
      const std::string stop = requested_stop();
      write_all(STDERR_FILENO, stop == "SIGINT" ? "^C\n" : "\n");
      if (stop != "SIGINT" || !has_text_) return std::nullopt;
      forget_signal();
    }
  }

  void remember(const std::string& message) override {
    libedit::HistEvent event{};
    api_->history(history_, &event, libedit::kEnter, message.c_str());
    if (history_file_.empty()) return;
    const std::string part = fmt::format("{}.part{}", history_file_.string(), ::getpid());
    try {
      make_folders(history_file_.parent_path());
      if (api_->history(history_, &event, libedit::kSave, part.c_str()) < 0) fail_with(history_file_, "cannot write");
      rename_path(part, history_file_);
    } catch (const IoError& error) {
      log_warning(std::string(error.what()) + "; the history of this chat is not saved");
      std::error_code code;
      fs::remove(part, code);
      history_file_.clear();
    }
  }

  bool is_interactive() const override { return true; }

 private:
  static EditedLines& of(EditLine* line) {
    void* self = nullptr;
    api_->get(line, libedit::kClientData, &self);
    return *static_cast<EditedLines*>(self);
  }

  static char* prompt_of(EditLine* line) { return of(line).prompt_.data(); }
  static int read_character(EditLine* line, wchar_t* character) { return of(line).next_character(*character); }
  static unsigned char paste(EditLine* line, int) { return of(line).insert_pasted(); }

  void bind_keys() {
    constexpr const char* kNone = nullptr;  // ends the word list
    const auto bind = [&](const char* key, const char* function) {
      api_->set(line_, libedit::kBind, key, function, kNone);
    };
    bind("^R", "em-inc-search-prev");
    bind("^W", "ed-delete-prev-word");
    bind("\\e[1;5C", "em-next-word");  // Ctrl and an arrow
    bind("\\e[1;5D", "ed-prev-word");
    api_->source(line_, nullptr);
    api_->set(line_, libedit::kAddFunction, kPasteFunction, "insert what the terminal pastes", &paste);
    bind(kPasteBegins.data(), kPasteFunction);
  }

  bool wait() {
    if (input_.wait([this] { look_at_terminal(); })) return true;
    const libedit::LineInfo* const info = api_->line(line_);
    has_text_ = info->lastchar > info->buffer;
    return false;
  }

  /// The terminal may have been resized, or be back from the shell in the shell's mode.
  void look_at_terminal() {
    winsize now{};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &now) == 0 && std::memcmp(&now, &size_, sizeof now) != 0) {
      size_ = now;
      api_->resize(line_);
    }
    if (has_continued == 0) return;
    has_continued = 0;
    write_all(STDERR_FILENO, kPasteOn);
    api_->set(line_, libedit::kPrepareTerminal, 0);
    api_->set(line_, libedit::kPrepareTerminal, 1);
    api_->set(line_, libedit::kRefresh);
  }

  /// libedit's read function: 1 and a character, or -1.
  int next_character(wchar_t& character) {
    constexpr wchar_t kUnreadable = 0xFFFD;
    const std::string& text = input_.text();
    while (text.empty() || text.size() < expected_length(text.front())) {
      if (!wait()) return -1;
    }
    const Utf8Char next = utf8_char(text, 0);
    character = next.length > 0 ? static_cast<wchar_t>(next.code_point) : kUnreadable;
    input_.take(std::max<std::size_t>(next.length, 1));
    return 1;
  }

  unsigned char insert_pasted() {
    std::size_t end = 0;
    while ((end = input_.text().find(kPasteEnds)) == std::string::npos) {
      if (!wait()) return libedit::kRedraw;
    }
    std::string text = repair_utf8(input_.take(end));
    input_.take(kPasteEnds.size());
    for (char& c : text) c = c == '\r' ? '\n' : c;
    api_->insert(line_, text.c_str());
    return libedit::kRedraw;
  }

  inline static const libedit::Api* api_ = nullptr;
  std::FILE* screen_;
  EditLine* line_;
  libedit::History* history_;
  fs::path history_file_;  ///< empty: none
  StandardInput input_;
  std::string prompt_;
  winsize size_{};
  bool has_text_ = false;  ///< the line had text when the wait ended
};

}  // namespace

std::unique_ptr<LineReader> open_lines() {
  const bool is_interactive = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
  const libedit::Api* const api = is_interactive && !is_dumb_terminal() ? libedit::load() : nullptr;
  if (api != nullptr) return std::make_unique<EditedLines>(*api);
  return std::make_unique<PlainLines>(is_interactive);
}

}  // namespace lora_train::cli
