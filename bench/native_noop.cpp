// The C++ function that bench/functions.py runs.
#include <myrmidon.hpp>

std::int64_t noop(std::int64_t x) { return x; }
MYRMIDON_FUNCTION(noop, x)
