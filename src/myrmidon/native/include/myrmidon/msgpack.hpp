// MessagePack for myrmidon.hpp: writes the shortest form of each object, as Myrmidon's other encoders do, and reads all.
#ifndef MYRMIDON_MSGPACK_HPP
#define MYRMIDON_MSGPACK_HPP

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Hidden, because a bot loads several libraries into one process: the compiler would share their static variables.
#if defined(__GNUC__)
#define MYRMIDON_HIDDEN_ __attribute__((visibility("hidden")))
#define MYRMIDON_SHOWN_ __attribute__((visibility("default")))  // a type that visible types have as a field
#else
#define MYRMIDON_HIDDEN_
#define MYRMIDON_SHOWN_
#endif

namespace myrmidon MYRMIDON_HIDDEN_ {

// A value does not have the type that is expected. `path` says where in the value, as "[3].name".
class TypeError : public std::runtime_error {
public:
    explicit TypeError(const std::string &reason, const std::string &path = "")
        : std::runtime_error(path.empty() ? reason : path + ": " + reason), reason(reason), path(path) {}

    // The same problem, seen from the object that contains the value.
    TypeError inside(const std::string &outer) const { return TypeError(reason, outer + path); }

    std::string reason;
    std::string path;
};

// Whether a text is valid UTF-8, without surrogates and overlong forms.
inline bool is_utf8(std::string_view text) {
    auto at = reinterpret_cast<const unsigned char *>(text.data());
    const auto end = at + text.size();
    while (at < end) {
        const unsigned char first = *at++;
        if (first < 0x80) continue;
        const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || end - at < more) return false;
        const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (*at < low || *at > high) return false;
        for (int i = 1; i < more; ++i)
            if (at[i] < 0x80 || at[i] > 0xBF) return false;
        at += more;
    }
    return true;
}

class Writer {
public:
    void nil() { byte(0xC0); }
    void boolean(bool value) { byte(value ? 0xC3 : 0xC2); }

    void integer(std::int64_t value) {
        if (value >= 0) {
            const auto positive = static_cast<std::uint64_t>(value);
            if (positive < 0x80) byte(static_cast<std::uint8_t>(positive));
            else if (positive < 0x100) number(0xCC, positive, 1);
            else if (positive < 0x10000) number(0xCD, positive, 2);
            else if (positive < 0x100000000) number(0xCE, positive, 4);
            else number(0xCF, positive, 8);
            return;
        }
        const auto bits = static_cast<std::uint64_t>(value);
        if (value >= -32) byte(static_cast<std::uint8_t>(bits));
        else if (value >= INT8_MIN) number(0xD0, bits, 1);
        else if (value >= INT16_MIN) number(0xD1, bits, 2);
        else if (value >= INT32_MIN) number(0xD2, bits, 4);
        else number(0xD3, bits, 8);
    }

    void real(double value) {
        std::uint64_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        number(0xCB, bits, 8);
    }

    void text(std::string_view value) {
        if (!is_utf8(value)) throw TypeError("the text is not UTF-8; use bytes");
        if (value.size() < 32) byte(static_cast<std::uint8_t>(0xA0 | value.size()));
        else if (value.size() < 0x100) number(0xD9, value.size(), 1);
        else wide(0xDA, 0xDB, value.size());
        raw(value.data(), value.size());
    }

    void binary(const void *data, std::size_t size) {
        if (size < 0x100) number(0xC4, size, 1);
        else wide(0xC5, 0xC6, size);
        raw(data, size);
    }

    void array(std::size_t size) {
        if (size < 16) byte(static_cast<std::uint8_t>(0x90 | size));
        else wide(0xDC, 0xDD, size);
    }

    void map(std::size_t size) {
        if (size < 16) byte(static_cast<std::uint8_t>(0x80 | size));
        else wide(0xDE, 0xDF, size);
    }

    std::vector<std::uint8_t> take() { return std::move(data_); }

private:
    void byte(std::uint8_t value) { data_.push_back(value); }

    void number(std::uint8_t code, std::uint64_t value, int width) {
        std::uint8_t bytes[9] = {code};
        for (int i = width; i > 0; --i, value >>= 8) bytes[i] = static_cast<std::uint8_t>(value);
        data_.insert(data_.end(), bytes, bytes + width + 1);
    }

    void wide(std::uint8_t middle, std::uint8_t large, std::size_t size) {
        if (size > 0xFFFFFFFF) throw TypeError(std::to_string(size) + " is too many for one object");
        if (size < 0x10000) number(middle, size, 2);
        else number(large, size, 4);
    }

    void raw(const void *data, std::size_t size) {
        const auto bytes = static_cast<const std::uint8_t *>(data);
        data_.insert(data_.end(), bytes, bytes + size);
    }

    std::vector<std::uint8_t> data_;
};

// Reads one object from bytes that it does not own. Every size is compared with what is left before memory is taken.
class Reader {
public:
    Reader(const std::uint8_t *data, std::size_t size) : at_(data), end_(data + size) {}

    bool take_nil() {
        if (peek() != 0xC0) return false;
        ++at_;
        return true;
    }

    bool boolean() {
        const std::uint8_t code = peek();
        if (code != 0xC2 && code != 0xC3) throw wrong("bool");
        ++at_;
        return code == 0xC3;
    }

    std::int64_t integer(std::int64_t low, std::int64_t high, const char *type) {
        const std::uint8_t *begin = at_;
        std::int64_t value = 0;
        bool fits = true;
        if (!read_integer(value, fits)) throw wrong(type);
        if (fits && value >= low && value <= high) return value;
        at_ = begin;
        throw TypeError("expected " + std::string(type) + " (" + std::to_string(low) + ".." + std::to_string(high) +
                        "), given " + describe());
    }

    double real() {
        const std::uint8_t code = peek();
        if (code == 0xCB) {
            ++at_;
            const std::uint64_t bits = number(8);
            double value;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        }
        if (code == 0xCA) {
            ++at_;
            const auto bits = static_cast<std::uint32_t>(number(4));
            float value;
            std::memcpy(&value, &bits, sizeof value);
            return static_cast<double>(value);
        }
        std::int64_t value = 0;
        bool fits = true;
        if (!read_integer(value, fits)) throw wrong("double");
        return fits ? static_cast<double>(value) : static_cast<double>(static_cast<std::uint64_t>(value));
    }

    std::string_view text() {
        const std::uint8_t code = peek();
        const bool is_short = code >= 0xA0 && code < 0xC0;
        if (!is_short && (code < 0xD9 || code > 0xDB)) throw wrong("string");
        const auto size = static_cast<std::size_t>(code & 31);
        const auto found = is_short ? std::string_view(chars(1, size), size) : sized(code - 0xD9);
        if (!is_utf8(found)) throw TypeError("the text is not UTF-8");
        return found;
    }

    std::string_view binary() {
        const std::uint8_t code = peek();
        if (code < 0xC4 || code > 0xC6) throw wrong("bytes");
        return sized(code - 0xC4);
    }

    std::size_t array(const char *type) { return items(0x90, 0xDC, type, 1); }
    std::size_t map(const char *type) { return items(0x80, 0xDE, type, 2); }
    void leave() { --depth_; }  // after the items of an array or a map

    void finish() const {
        if (at_ != end_) throw TypeError(std::to_string(end_ - at_) + " bytes follow the value");
    }

    TypeError wrong(const std::string &expected) const { return TypeError("expected " + expected + ", given " + describe()); }

    std::string describe() const {
        if (at_ == end_) return "nothing";
        const std::uint8_t code = *at_;
        if (code < 0x80 || code >= 0xE0 || (code >= 0xCC && code <= 0xD3)) {
            Reader copy(*this);
            std::int64_t value = 0;
            bool fits = true;
            copy.read_integer(value, fits);
            return "the integer " + (fits ? std::to_string(value) : std::to_string(static_cast<std::uint64_t>(value)));
        }
        if (code < 0x90 || code >= 0xDE) return "a map";
        if (code < 0xA0 || code >= 0xDC) return "a list";
        if (code < 0xC0 || code >= 0xD9) return "a text";
        if (code == 0xC0) return "none";
        if (code == 0xC2 || code == 0xC3) return "a bool";
        if (code >= 0xC4 && code <= 0xC6) return "bytes";
        if (code == 0xCA || code == 0xCB) return "a float";
        return "an unknown object";
    }

private:
    static constexpr int max_depth = 900;

    std::uint8_t peek() const {
        if (at_ == end_) throw TypeError("the value ends too early");
        return *at_;
    }

    std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

    std::uint64_t number(std::size_t width) {
        if (left() < width) throw TypeError("the value ends too early");
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < width; ++i) value = value << 8 | at_[i];
        at_ += width;
        return value;
    }

    // False if there is no integer. `fits` becomes false if it is larger than 63 bits; `value` has its bits then.
    bool read_integer(std::int64_t &value, bool &fits) {
        const std::uint8_t code = peek();
        if (code < 0x80 || code >= 0xE0) {
            value = static_cast<std::int8_t>(code);
            ++at_;
            return true;
        }
        if (code < 0xCC || code > 0xD3) return false;
        ++at_;
        const bool is_signed = code >= 0xD0;
        const int width = 1 << (code - (is_signed ? 0xD0 : 0xCC));
        std::uint64_t bits = number(static_cast<std::size_t>(width));
        if (is_signed && width < 8 && bits >> (8 * width - 1)) bits |= ~std::uint64_t{0} << (8 * width);
        value = static_cast<std::int64_t>(bits);
        fits = is_signed || value >= 0;
        return true;
    }

    const char *chars(std::size_t header, std::size_t size) {
        if (left() < header + size) throw TypeError("the value ends too early");
        const auto found = reinterpret_cast<const char *>(at_ + header);
        at_ += header + size;
        return found;
    }

    std::string_view sized(int power) {
        ++at_;
        const auto size = static_cast<std::size_t>(number(std::size_t{1} << power));
        return {chars(0, size), size};
    }

    std::size_t items(std::uint8_t fixed, std::uint8_t wide, const char *type, std::size_t least) {
        const std::uint8_t code = peek();
        std::size_t size;
        if ((code & 0xF0) == fixed) {
            ++at_;
            size = code & 15;
        } else if (code == wide || code == wide + 1) {
            ++at_;
            size = static_cast<std::size_t>(number(code == wide ? 2 : 4));
        } else {
            throw wrong(type);
        }
        if (size > left() / least) throw TypeError("the value ends too early");
        if (++depth_ > max_depth) throw TypeError("the value is nested too deeply");
        return size;
    }

    const std::uint8_t *at_;
    const std::uint8_t *end_;
    int depth_ = 0;
};

}  // namespace myrmidon

#endif
