// The torch wheel has Gloo in libtorch_cpu.so and the header of c10d's ProcessGroupGloo, but not Gloo's own headers, which that
// one includes. The files of this folder declare the names it mentions, and nothing else: we only pass pointers to these types
// on, so that their layout does not matter. tests/unit/distributed checks which functions our code takes from the library.
#pragma once
