// Functions that return what they get, for every type of values.
#include <myrmidon.hpp>

namespace shapes {
enum class Color { RED, GREEN };
enum Rights : int { READ = 1, WRITE = 2 };

struct Point {
    double x, y;
    std::optional<std::string> name;
};

struct Tree {
    std::int64_t value;
    std::vector<Tree> children;
    std::map<std::string, Color> colors;
};

struct Link {
    std::int64_t value;
    std::unique_ptr<Link> next;
};

struct Pair {
    std::int64_t left;
    std::string right;
};

struct Record {
    std::string first_name;
    std::vector<Point> points;
    Pair pair;
    myrmidon::DateTime at;
    Rights rights;
    myrmidon::bytes data;
};
}  // namespace shapes

MYRMIDON_ENUM(shapes::Color, RED, GREEN)
MYRMIDON_FLAGS(shapes::Rights)
MYRMIDON_STRUCT(shapes::Point, x, y, name)
MYRMIDON_STRUCT(shapes::Tree, value, children, colors)
MYRMIDON_STRUCT(shapes::Link, value, next)
MYRMIDON_STRUCT(shapes::Pair, left, right)
MYRMIDON_STRUCT(shapes::Record, first_name, points, pair, at, rights, data)

#define ECHO(name, ...)                                 \
    using name##_t = __VA_ARGS__;                       \
    name##_t echo_##name(name##_t value) { return value; } \
    MYRMIDON_FUNCTION(echo_##name, value)

ECHO(int8, std::int8_t)
ECHO(int16, std::int16_t)
ECHO(int32, int)
ECHO(int64, long)
ECHO(integer, long long)
ECHO(real, double)
ECHO(boolean, bool)
ECHO(binary, myrmidon::bytes)
ECHO(text, std::string)
ECHO(integers, std::vector<std::int64_t>)
ECHO(small_integers, std::vector<std::int8_t>)
ECHO(reals, std::vector<double>)
ECHO(booleans, std::vector<bool>)
ECHO(texts, std::vector<std::string>)
ECHO(binaries, std::vector<std::vector<std::byte>>)
ECHO(deep, std::vector<std::vector<std::optional<double>>>)
ECHO(counts, std::map<std::string, std::int64_t>)
ECHO(by_number, std::unordered_map<std::int64_t, std::vector<std::string>>)
ECHO(by_small_number, std::map<std::int16_t, double>)
ECHO(by_binary, std::map<myrmidon::bytes, bool>)
ECHO(maybe_integer, std::optional<std::int64_t>)
ECHO(maybe_texts, std::optional<std::vector<std::string>>)
ECHO(pairs, std::vector<std::pair<std::int64_t, std::string>>)
ECHO(both, std::tuple<std::int64_t, std::string>)
ECHO(one, std::tuple<double>)
ECHO(three, std::tuple<shapes::Color, std::map<std::string, bool>, std::tuple<double, bool>>)
ECHO(color, shapes::Color)
ECHO(rights, shapes::Rights)
ECHO(point, shapes::Point)
ECHO(tree, shapes::Tree)
ECHO(link, shapes::Link)
ECHO(pair, shapes::Pair)
ECHO(record, shapes::Record)
ECHO(moment, myrmidon::DateTime)
ECHO(array, myrmidon::Array)

double length(std::string_view text) { return static_cast<double>(text.size()); }
MYRMIDON_FUNCTION(length)

myrmidon::Array doubled(const myrmidon::Array &array) {
    auto values = array.values<double>();
    for (auto &value : values) value *= 2;
    return myrmidon::Array::of(values, array.shape);
}
MYRMIDON_FUNCTION(doubled, array)
