// A library of C++ without the wrapper: its exception leaves the function.
#include <stdexcept>

#include <myrmidon.h>

static int32_t leak(const myrmidon_function *, const myrmidon_buffer *, size_t, myrmidon_result *) {
    throw std::runtime_error("not caught");
}

static void release(const myrmidon_function *, myrmidon_result *) {}

static const myrmidon_function functions[] = {{"leak", "()->()", leak, release, nullptr}};
static const myrmidon_library library = {MYRMIDON_ABI_VERSION, 0, 1, functions, nullptr};

extern "C" const myrmidon_library *myrmidon_entry(void) { return &library; }
