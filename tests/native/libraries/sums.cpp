#include <myrmidon.hpp>

std::int64_t add(std::int64_t a, std::int64_t b) { return a + b; }
MYRMIDON_FUNCTION(add, a, b)
