// Functions that fail in every way that C++ has.
#include <csignal>
#include <cstdlib>
#include <unistd.h>

#include <myrmidon.hpp>

struct Refused {};

std::int64_t pid() { return getpid(); }
MYRMIDON_FUNCTION(pid)

void segfault() {
    std::printf("before the crash\n");
    volatile std::uintptr_t nowhere = 8;
    *reinterpret_cast<volatile int *>(nowhere) = 1;
}
MYRMIDON_FUNCTION(segfault)

void aborts() { std::abort(); }
MYRMIDON_FUNCTION(aborts)

void exits(std::int64_t code) { std::exit(static_cast<int>(code)); }
MYRMIDON_FUNCTION(exits, code)

void hangs() {
    for (;;) pause();
}
MYRMIDON_FUNCTION(hangs)

void hangs_on() {
    std::signal(SIGTERM, SIG_IGN);
    for (;;) pause();
}
MYRMIDON_FUNCTION(hangs_on)

std::string at(std::int64_t index) { return std::string("abc").substr(static_cast<std::size_t>(index)); }
MYRMIDON_FUNCTION(at, index)

void throws(std::string kind) {
    if (kind == "invalid") throw std::invalid_argument("not valid");
    if (kind == "text") throw "only a text";
    if (kind == "class") throw Refused();
    throw 7;
}
MYRMIDON_FUNCTION(throws)

std::vector<std::string> not_utf8() { return {"good", "bad\xff"}; }
MYRMIDON_FUNCTION(not_utf8)

std::int64_t allocates(std::int64_t bytes) {
    std::vector<char> memory(static_cast<std::size_t>(bytes), 'x');
    return static_cast<std::int64_t>(memory.size());
}
MYRMIDON_FUNCTION(allocates)

void prints(std::string text) {
    std::printf("printf %s", text.c_str());
    std::cout << ", cout";
    std::cerr << "cerr " << text;
}
MYRMIDON_FUNCTION(prints)

std::int64_t total(std::map<std::string, std::vector<std::int64_t>> parts) {
    std::int64_t sum = 0;
    for (const auto &[name, values] : parts)
        for (const auto value : values) sum += value;
    return sum;
}
MYRMIDON_FUNCTION(total, parts)

std::string variable(std::string name) {
    const char *value = std::getenv(name.c_str());
    return value == nullptr ? "" : value;
}
MYRMIDON_FUNCTION(variable)

myrmidon::bytes large(std::int64_t size) { return myrmidon::bytes(static_cast<std::size_t>(size), 1); }
MYRMIDON_FUNCTION(large)
