// libedit (https://thrysoee.dk/editline, BSD-3-Clause), loaded where the machine has it. Declarations as in its histedit.h.
#pragma once

#include <cstdio>

namespace lora_train::cli::libedit {

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
// What a function that is bound to a key returns.
constexpr unsigned char kRedraw = 4;

struct Api {
  EditLine* (*init)(const char* program, std::FILE* in, std::FILE* out, std::FILE* err);
  void (*end)(EditLine*);
  const char* (*gets)(EditLine*, int* count);
  int (*set)(EditLine*, int operation, ...);
  int (*get)(EditLine*, int operation, ...);
  int (*source)(EditLine*, const char* file);
  void (*resize)(EditLine*);
  const LineInfo* (*line)(EditLine*);
  int (*insert)(EditLine*, const char* text);
  History* (*history_init)();
  void (*history_end)(History*);
  int (*history)(History*, HistEvent*, int operation, ...);
};

/// libedit.so.2 (Debian, Ubuntu) or libedit.so.0 (Fedora, Arch); null if neither can be loaded. It stays loaded.
const Api* load();

}  // namespace lora_train::cli::libedit
