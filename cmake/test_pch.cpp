// cmake/test_pch.h is compiled with it.
