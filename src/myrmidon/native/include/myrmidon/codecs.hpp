// How values of C++ types are written and read, and the type string of each. docs/native.md has the table.
#ifndef MYRMIDON_CODECS_HPP
#define MYRMIDON_CODECS_HPP

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>

#include "msgpack.hpp"

namespace myrmidon MYRMIDON_HIDDEN_ {

using bytes = std::vector<std::uint8_t>;

// datetime.datetime of Python as its ISO 8601 text.
struct MYRMIDON_SHOWN_ DateTime {
    std::string text;
};

// numpy.ndarray: the type of its items as numpy writes it ("<f8"), its shape, and the items in C order.
struct MYRMIDON_SHOWN_ Array {
    std::string dtype;
    std::vector<std::int64_t> shape;
    bytes data;

    template <class T>
    static std::string dtype_of() {
        static_assert(std::is_arithmetic_v<T>, "an array has numbers");
        const char kind = std::is_same_v<T, bool>      ? 'b'
                          : std::is_floating_point_v<T> ? 'f'
                          : std::is_signed_v<T>         ? 'i'
                                                        : 'u';
        return (sizeof(T) == 1 ? "|" : "<") + std::string(1, kind) + std::to_string(sizeof(T));
    }

    template <class T>
    static Array of(const std::vector<T> &values, std::vector<std::int64_t> shape = {}) {
        Array made{dtype_of<T>(), std::move(shape), bytes(values.size() * sizeof(T))};
        if (made.shape.empty()) made.shape.push_back(static_cast<std::int64_t>(values.size()));
        if (!made.data.empty()) std::memcpy(made.data.data(), values.data(), made.data.size());
        return made;
    }

    // The items in one row. Throws TypeError if they have another type.
    template <class T>
    std::vector<T> values() const {
        if (dtype != dtype_of<T>()) throw TypeError("expected an array of " + dtype_of<T>() + ", given " + dtype);
        std::vector<T> found(data.size() / sizeof(T));
        if (!found.empty()) std::memcpy(found.data(), data.data(), found.size() * sizeof(T));
        return found;
    }
};

// Specialised for each type: name() is the type string, write and read convert a value.
template <class T, class Enable = void>
struct Codec {
    static_assert(!std::is_same_v<T, T>,
                  "not a type of values: use bool, std::int8_t to std::int64_t, double, std::string, myrmidon::bytes, "
                  "std::optional, std::vector, std::map, std::tuple, or MYRMIDON_STRUCT and MYRMIDON_ENUM for your own");
};

template <class T>
void write(Writer &writer, const T &value) {
    Codec<T>::write(writer, value);
}

// Reads the part of a value that `path` names; a problem inside says so.
template <class T, class Path>
T read_at(Reader &reader, Path path) {
    try {
        return Codec<T>::read(reader);
    } catch (const TypeError &problem) {
        throw problem.inside(path());
    }
}

template <class T, class Path>
void write_at(Writer &writer, const T &value, Path path) {
    try {
        Codec<T>::write(writer, value);
    } catch (const TypeError &problem) {
        throw problem.inside(path());
    }
}

inline std::string index_path(std::size_t index) { return "[" + std::to_string(index) + "]"; }

template <>
struct Codec<bool> {
    static std::string name() { return "bool"; }
    static void write(Writer &writer, bool value) { writer.boolean(value); }
    static bool read(Reader &reader) { return reader.boolean(); }
};

template <class T>
constexpr bool is_integer = std::is_integral_v<T> && std::is_signed_v<T> && !std::is_same_v<T, bool> &&
                            !std::is_same_v<T, char> && !std::is_same_v<T, wchar_t>;

template <class T>
struct Codec<T, std::enable_if_t<is_integer<T>>> {
    static std::string name() { return "int" + std::to_string(8 * sizeof(T)); }
    static void write(Writer &writer, T value) { writer.integer(value); }
    static T read(Reader &reader) {
        using Limits = std::numeric_limits<T>;
        return static_cast<T>(reader.integer(Limits::min(), Limits::max(), name().c_str()));
    }
};

template <>
struct Codec<double> {
    static std::string name() { return "double"; }
    static void write(Writer &writer, double value) { writer.real(value); }
    static double read(Reader &reader) { return reader.real(); }
};

template <>
struct Codec<std::string> {
    static std::string name() { return "string"; }
    static void write(Writer &writer, const std::string &value) { writer.text(value); }
    static std::string read(Reader &reader) { return std::string(reader.text()); }
};

// As a parameter: the text in the input itself, valid during the call.
template <>
struct Codec<std::string_view> {
    static std::string name() { return "string"; }
    static void write(Writer &writer, std::string_view value) { writer.text(value); }
    static std::string_view read(Reader &reader) { return reader.text(); }
};

template <class T>
struct Codec<T, std::enable_if_t<std::is_same_v<T, bytes> || std::is_same_v<T, std::vector<std::byte>>>> {
    static std::string name() { return "bytes"; }
    static void write(Writer &writer, const T &value) { writer.binary(value.data(), value.size()); }
    static T read(Reader &reader) {
        const auto view = reader.binary();
        const auto begin = reinterpret_cast<const typename T::value_type *>(view.data());
        return T(begin, begin + view.size());
    }
};

template <>
struct Codec<DateTime> {
    static std::string name() { return "datetime.datetime"; }
    static void write(Writer &writer, const DateTime &value) { writer.text(value.text); }
    static DateTime read(Reader &reader) { return {std::string(reader.text())}; }
};

// ------------------------------------------------------------------------------------------------ values with values

template <class T>
struct Codec<std::optional<T>> {
    static std::string name() { return "Optional<" + Codec<T>::name() + ">"; }
    static void write(Writer &writer, const std::optional<T> &value) {
        if (value) Codec<T>::write(writer, *value);
        else writer.nil();
    }
    static std::optional<T> read(Reader &reader) {
        if (reader.take_nil()) return std::nullopt;
        return Codec<T>::read(reader);
    }
};

// Optional<T> too, for a class that contains itself.
template <class T>
struct Codec<std::unique_ptr<T>> {
    static std::string name() { return "Optional<" + Codec<T>::name() + ">"; }
    static void write(Writer &writer, const std::unique_ptr<T> &value) {
        if (value) Codec<T>::write(writer, *value);
        else writer.nil();
    }
    static std::unique_ptr<T> read(Reader &reader) {
        if (reader.take_nil()) return nullptr;
        return std::make_unique<T>(Codec<T>::read(reader));
    }
};

template <class T>
constexpr bool is_binary = std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::byte>;

template <class T>
struct Codec<std::vector<T>, std::enable_if_t<!is_binary<T>>> {
    static std::string name() { return "List<" + Codec<T>::name() + ">"; }
    static void write(Writer &writer, const std::vector<T> &values) {
        writer.array(values.size());
        std::size_t index = 0;
        for (auto &&value : values) write_at<T>(writer, value, [&] { return index_path(index); }), ++index;
    }
    static std::vector<T> read(Reader &reader) {
        const auto size = reader.array(name().c_str());
        std::vector<T> values;
        values.reserve(size);
        for (std::size_t i = 0; i < size; ++i) values.push_back(read_at<T>(reader, [&] { return index_path(i); }));
        reader.leave();
        return values;
    }
};

template <class Map>
struct MapCodec {
    using Key = typename Map::key_type;
    using Value = typename Map::mapped_type;
    static_assert(is_integer<Key> || std::is_same_v<Key, std::string> || std::is_same_v<Key, bytes>,
                  "a key of a map is an integer, std::string or myrmidon::bytes");

    static std::string name() { return "Map<" + Codec<Key>::name() + "," + Codec<Value>::name() + ">"; }
    static void write(Writer &writer, const Map &values) {
        writer.map(values.size());
        for (const auto &[key, value] : values) {
            const auto path = [&key = key] { return key_path(key); };
            write_at<Key>(writer, key, path);
            write_at<Value>(writer, value, path);
        }
    }
    static Map read(Reader &reader) {
        const auto size = reader.map(name().c_str());
        Map values;
        for (std::size_t i = 0; i < size; ++i) {
            Key key = read_at<Key>(reader, [] { return std::string("a key"); });
            Value value = read_at<Value>(reader, [&] { return key_path(key); });
            values.insert_or_assign(std::move(key), std::move(value));
        }
        reader.leave();
        return values;
    }
    static std::string key_path(const Key &key) {
        if constexpr (is_integer<Key>) return "[" + std::to_string(key) + "]";
        else if constexpr (std::is_same_v<Key, std::string>) return "['" + key + "']";
        else return "[bytes]";
    }
};

template <class K, class V, class C, class A>
struct Codec<std::map<K, V, C, A>> : MapCodec<std::map<K, V, C, A>> {};
template <class K, class V, class H, class E, class A>
struct Codec<std::unordered_map<K, V, H, E, A>> : MapCodec<std::unordered_map<K, V, H, E, A>> {};

template <class Tuple, class... T>
struct TupleCodec {
    static std::string name() {
        std::string joined;
        ((joined += (joined.empty() ? "" : ",") + Codec<T>::name()), ...);
        return "Tuple<" + joined + ">";
    }
    static void write(Writer &writer, const Tuple &values) {
        writer.array(sizeof...(T));
        std::size_t index = 0;
        std::apply(
            [&](const auto &...value) {
                ((write_at<T>(writer, value, [&] { return index_path(index); }), ++index), ...);
            },
            values);
    }
    static Tuple read(Reader &reader) {
        const auto size = reader.array(name().c_str());
        if (size != sizeof...(T)) throw TypeError("expected " + name() + ", given " + std::to_string(size) + " items");
        std::size_t index = 0;
        Tuple values{read_at<T>(reader, [&, i = index++] { return index_path(i); })...};
        reader.leave();
        return values;
    }
};

template <class... T>
struct Codec<std::tuple<T...>> : TupleCodec<std::tuple<T...>, T...> {};
template <class A, class B>
struct Codec<std::pair<A, B>> : TupleCodec<std::pair<A, B>, A, B> {};

// ------------------------------------------------------------------------------------------- classes: maps by field

// Specialised by MYRMIDON_STRUCT: name(), and each(object, visit), which calls visit(field name, field) for every field.
template <class T>
struct Fields;

template <>
struct Fields<Array> {
    static std::string name() { return "numpy.ndarray"; }
    template <class Object, class Visit>
    static void each(Object &object, Visit &&visit) {
        visit("dtype", object.dtype);
        visit("shape", object.shape);
        visit("data", object.data);
    }
};

template <class T>
struct Codec<T, std::void_t<decltype(Fields<T>::name())>> {
    static std::string name() { return Fields<T>::name(); }

    static void write(Writer &writer, const T &object) {
        std::size_t size = 0;
        Fields<T>::each(object, [&](const char *, const auto &) { ++size; });
        writer.map(size);
        Fields<T>::each(object, [&](const char *field, const auto &value) {
            writer.text(field);
            write_at<std::decay_t<decltype(value)>>(writer, value, [&] { return "." + std::string(field); });
        });
    }

    static T read(Reader &reader) {
        const auto size = reader.map(name().c_str());
        T object{};
        std::vector<std::string_view> seen;
        for (std::size_t i = 0; i < size; ++i) {
            const auto key = reader.text();
            seen.push_back(key);
            bool found = false;
            Fields<T>::each(object, [&](const char *field, auto &value) {
                if (found || key != field) return;
                found = true;
                value = read_at<std::decay_t<decltype(value)>>(reader, [&] { return "." + std::string(field); });
            });
            if (!found) throw TypeError(name() + " has no field '" + std::string(key) + "'");
        }
        reader.leave();
        Fields<T>::each(object, [&](const char *field, const auto &) {
            for (const auto key : seen)
                if (key == field) return;
            throw TypeError(name() + " needs the field '" + std::string(field) + "'");
        });
        return object;
    }
};

// Specialised by MYRMIDON_ENUM: name(), and members(), pairs of name and value.
template <class T>
struct Members;

template <class T>
struct Codec<T, std::void_t<decltype(Members<T>::members())>> {
    static std::string name() { return Members<T>::name(); }

    static void write(Writer &writer, T value) {
        for (const auto &[member, number] : Members<T>::members())
            if (number == value) return writer.text(member);
        throw TypeError("expected " + name() + ", given the number " +
                        std::to_string(static_cast<std::underlying_type_t<T>>(value)));
    }

    static T read(Reader &reader) {
        const auto given = reader.text();
        for (const auto &[member, number] : Members<T>::members())
            if (given == member) return number;
        throw TypeError("expected " + name() + ", given '" + std::string(given) + "'");
    }
};

// Specialised by MYRMIDON_FLAGS: an enum whose values are sums of its members, as Python's enum.Flag.
template <class T>
struct FlagName;

template <class T>
struct Codec<T, std::void_t<decltype(FlagName<T>::name())>> {
    using Number = std::make_signed_t<std::underlying_type_t<T>>;
    static std::string name() { return FlagName<T>::name(); }
    static void write(Writer &writer, T value) { writer.integer(static_cast<Number>(value)); }
    static T read(Reader &reader) { return static_cast<T>(Codec<Number>::read(reader)); }
};

}  // namespace myrmidon

#endif
