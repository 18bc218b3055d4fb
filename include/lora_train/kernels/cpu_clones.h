// Clones of a CPU function for the vector units there are. No torch here.
#pragma once

// The loader picks the clone. Address sanitizer cannot live with that.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define LORA_TRAIN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LORA_TRAIN_CLONES
#endif
