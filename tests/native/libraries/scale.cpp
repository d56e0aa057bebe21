#include <myrmidon.hpp>

std::int64_t scale(std::int64_t value) { return FACTOR * value; }
MYRMIDON_FUNCTION(scale, value)
