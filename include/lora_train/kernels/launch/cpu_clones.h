// Function multi-versioning: clones of a CPU function for each vector extension. No torch.
#pragma once

// The loader picks the clone through an ifunc, which address sanitizer does not support.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define LORA_TRAIN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LORA_TRAIN_CLONES
#endif
