// A precompiled header needs one source to hang on.
