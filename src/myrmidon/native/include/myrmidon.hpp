// Typed C++ functions for Myrmidon. Header-only, C++17:  g++ -std=c++17 -O2 -shared -fPIC -I"$(myrmidon native include-dir)"
//
//     std::map<std::string, std::int64_t> count(const std::string &text, std::int64_t top);
//     MYRMIDON_FUNCTION(count, text, top)
//
// The signature is derived from the type of the function; the names of the parameters are optional. Exceptions become
// the error of the run. docs/native.md is the manual.
#ifndef MYRMIDON_HPP
#define MYRMIDON_HPP

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <typeinfo>

#if defined(__GNUG__)
#include <cxxabi.h>
#endif

#include "myrmidon.h"
#include "myrmidon/codecs.hpp"

// All names are used outside of functions and outside of namespaces.
// MYRMIDON_FUNCTION(function) or MYRMIDON_FUNCTION(function, first, second): registers a function under its name.
#define MYRMIDON_FUNCTION(...) MYRMIDON_REGISTER_(__COUNTER__, MYRMIDON_FIRST_(__VA_ARGS__, ), #__VA_ARGS__)
// MYRMIDON_STRUCT(Point, x, y): a class of values with these public fields; the same fields as the class in Python.
#define MYRMIDON_STRUCT(...) MYRMIDON_FIELDS_(MYRMIDON_FIRST_(__VA_ARGS__, ), #__VA_ARGS__, MYRMIDON_REST_(__VA_ARGS__))
// MYRMIDON_ENUM(Color, RED, GREEN): an enum of values, with the members of the Python enum.
#define MYRMIDON_ENUM(...) MYRMIDON_MEMBERS_(MYRMIDON_FIRST_(__VA_ARGS__, ), #__VA_ARGS__, MYRMIDON_REST_(__VA_ARGS__))
// MYRMIDON_FLAGS(Rights): an enum with a fixed type (`enum Rights : int`) whose values are sums of members, as enum.Flag.
#define MYRMIDON_FLAGS(type)                                                                      \
    template <>                                                                                   \
    struct MYRMIDON_HIDDEN_ myrmidon::FlagName<type> {                                            \
        static std::string name() { return ::myrmidon::detail::last_part(#type); }                \
    };

namespace myrmidon MYRMIDON_HIDDEN_ {
namespace detail {

// The words of the arguments of a macro: "shapes::Point, x, y".
inline std::vector<std::string> words_of(std::string_view text) {
    std::vector<std::string> words(1);
    for (const char c : text) {
        if (c == ',') words.emplace_back();
        else if (c != ' ') words.back() += c;
    }
    return words;
}

// "shapes::Point" without the namespace.
inline std::string last_part(std::string_view text) {
    const auto word = words_of(text).front();
    const auto colon = word.rfind(':');
    return colon == std::string::npos ? word : word.substr(colon + 1);
}

constexpr std::size_t num_commas(std::string_view text) {
    std::size_t count = 0;
    for (const char c : text) count += c == ',';
    return count;
}

// What a call leaves for its caller, until it is released.
struct Outcome {
    std::vector<std::vector<std::uint8_t>> data;
    std::vector<myrmidon_buffer> outputs;
    std::string type;
    std::string message;
};

inline std::string type_name(const std::type_info &type) {
#if defined(__GNUG__)
    int status = 0;
    char *name = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
    if (name != nullptr) {
        std::string found(name);
        std::free(name);
        return found;
    }
#endif
    return type.name();
}

// The exception that is being handled, as type and message.
inline void describe_exception(Outcome &outcome) {
    try {
        throw;
    } catch (const std::exception &error) {
        outcome.type = type_name(typeid(error));
        outcome.message = error.what();
    } catch (const std::string &text) {
        outcome.type = "std::string";
        outcome.message = text;
    } catch (const char *text) {
        outcome.type = "const char*";
        outcome.message = text;
    } catch (...) {
#if defined(__GNUG__)
        const std::type_info *type = abi::__cxa_current_exception_type();
        if (type != nullptr) outcome.type = type_name(*type);
#endif
        outcome.message = "an exception that is not a std::exception";
    }
}

struct Registered {
    std::string name;
    std::vector<std::string> parameters;
    std::string signature;
    int32_t (*call)(const myrmidon_function *, const myrmidon_buffer *, size_t, myrmidon_result *);
};

inline std::vector<Registered> &registry() {
    static std::vector<Registered> all;
    return all;
}

template <class T>
void write_output(Outcome &outcome, const T &value, const std::string &path) {
    Writer writer;
    write_at<T>(writer, value, [&] { return path; });
    outcome.data.push_back(writer.take());
}

template <class Result>
struct Outputs {
    static std::string names() { return Codec<Result>::name(); }
    static void write(Outcome &outcome, const Result &result) { write_output(outcome, result, "result"); }
};

template <class... T>
struct Outputs<std::tuple<T...>> {
    static std::string names() {
        const auto joined = TupleCodec<std::tuple<T...>, T...>::name();  // Tuple<A,B>
        const auto inner = joined.substr(6, joined.size() - 7);
        return sizeof...(T) == 1 ? inner : "(" + inner + ")";
    }
    static void write(Outcome &outcome, const std::tuple<T...> &result) {
        std::size_t index = 0;
        std::apply(
            [&](const auto &...value) {
                (write_output<T>(outcome, value, "result" + index_path(index++)), ...);
            },
            result);
    }
};

template <class Type, Type Function>
struct Thunk;

template <class R, class... A, R (*Function)(A...) noexcept>
struct Thunk<R (*)(A...) noexcept, Function> : Thunk<R (*)(A...), Function> {};

template <class R, class... A, R (*Function)(A...)>
struct Thunk<R (*)(A...), Function> {
    using Result = std::decay_t<R>;
    static constexpr std::size_t arity = sizeof...(A);

    static std::string signature(const std::vector<std::string> &names) {
        std::string inputs;
        std::size_t index = 0;
        ((inputs += (inputs.empty() ? "" : ",") + (index < names.size() ? names[index] + ":" : std::string()) +
                    Codec<std::decay_t<A>>::name(),
          ++index),
         ...);
        if constexpr (std::is_void_v<R>) return "(" + inputs + ")->()";
        else return "(" + inputs + ")->" + Outputs<Result>::names();
    }

    static int32_t call(const myrmidon_function *self, const myrmidon_buffer *inputs, size_t num_inputs,
                        myrmidon_result *result) {
        auto *outcome = new (std::nothrow) Outcome;
        if (outcome == nullptr) return MYRMIDON_NO_MEMORY;
        result->owner = outcome;
        int32_t status = MYRMIDON_NO_MEMORY;
        try {
            status = attempt(*static_cast<const Registered *>(self->data), inputs, num_inputs, *outcome);
        } catch (const std::bad_alloc &) {
        } catch (...) {
            status = MYRMIDON_FAILED;
            describe_exception(*outcome);
        }
        for (const auto &one : outcome->data) outcome->outputs.push_back({one.data(), one.size()});
        result->outputs = outcome->outputs.data();
        result->num_outputs = outcome->outputs.size();
        result->error_type = outcome->type.c_str();
        result->error_message = outcome->message.c_str();
        return status;
    }

private:
    using Arguments = std::tuple<std::decay_t<A>...>;

    static int32_t attempt(const Registered &self, const myrmidon_buffer *inputs, size_t num_inputs,
                           Outcome &outcome) {
        std::optional<Arguments> arguments;
        try {
            if (num_inputs != arity)
                throw TypeError("takes " + std::to_string(arity) + " inputs, given " + std::to_string(num_inputs));
            arguments.emplace(read(self, inputs, std::index_sequence_for<A...>()));
        } catch (const TypeError &problem) {
            return wrong(outcome, problem);
        }
        if constexpr (std::is_void_v<R>) {
            run(*arguments, std::index_sequence_for<A...>());
        } else {
            const Result value = run(*arguments, std::index_sequence_for<A...>());
            arguments.reset();  // frees memory before the result is encoded
            try {
                Outputs<Result>::write(outcome, value);
            } catch (const TypeError &problem) {
                outcome.data.clear();
                return wrong(outcome, problem);
            }
        }
        return MYRMIDON_OK;
    }

    static int32_t wrong(Outcome &outcome, const TypeError &problem) {
        outcome.type = "myrmidon::TypeError";
        outcome.message = problem.what();
        return MYRMIDON_WRONG_TYPE;
    }

    template <std::size_t... I>
    static Arguments read(const Registered &self, const myrmidon_buffer *inputs, std::index_sequence<I...>) {
        static_cast<void>(self), static_cast<void>(inputs);
        return Arguments{read_one<std::decay_t<A>>(self, inputs[I], I)...};
    }

    template <class T>
    static T read_one(const Registered &self, const myrmidon_buffer &input, std::size_t index) {
        Reader reader(input.data, input.size);
        T value = read_at<T>(reader, [&] {
            return "argument " + (index < self.parameters.size() ? self.parameters[index] : std::to_string(index + 1));
        });
        reader.finish();
        return value;
    }

    template <std::size_t... I>
    static R run(Arguments &arguments, std::index_sequence<I...>) {
        static_cast<void>(arguments);
        return Function(static_cast<A &&>(std::get<I>(arguments))...);
    }
};

template <auto Function>
using ThunkOf = Thunk<decltype(Function), Function>;

inline void release(const myrmidon_function *, myrmidon_result *result) {
    delete static_cast<Outcome *>(result->owner);
    result->owner = nullptr;
}

inline void flush() {
    try {
        std::cout.flush();
        std::clog.flush();
    } catch (const std::ios_base::failure &) {  // the function has asked its streams to throw
    }
    std::fflush(nullptr);
}

template <auto Function>
bool enroll(std::string_view text) {
    auto names = words_of(text);
    names.erase(names.begin());
    registry().push_back({last_part(text), names, ThunkOf<Function>::signature(names), &ThunkOf<Function>::call});
    return true;
}

inline const myrmidon_library *describe_library() {
    static std::vector<myrmidon_function> functions;
    static myrmidon_library library{MYRMIDON_ABI_VERSION, MYRMIDON_TYPED_OUTPUTS, 0, nullptr, &flush};
    if (functions.empty())
        for (const auto &one : registry())
            functions.push_back({one.name.c_str(), one.signature.c_str(), one.call, &release, &one});
    library.num_functions = functions.size();
    library.functions = functions.data();
    return &library;
}

}  // namespace detail
}  // namespace myrmidon

#if defined(__GNUC__)
#define MYRMIDON_USED_ __attribute__((used))  // nothing calls it here, and it must be in the library
#else
#define MYRMIDON_USED_
#endif

extern "C" MYRMIDON_USED_ MYRMIDON_EXPORT inline const myrmidon_library *myrmidon_entry(void) {
    try {
        return myrmidon::detail::describe_library();
    } catch (...) {
        return nullptr;
    }
}

// ------------------------------------------------------------------------------------------------ inside of the macros

#define MYRMIDON_REGISTER_(number, function, text) MYRMIDON_REGISTER_AT_(number, function, text)
#define MYRMIDON_REGISTER_AT_(number, function, text)                                                        \
    static_assert(::myrmidon::detail::num_commas(text) == 0 ||                                               \
                      ::myrmidon::detail::num_commas(text) == ::myrmidon::detail::ThunkOf<&function>::arity, \
                  "MYRMIDON_FUNCTION: give a name for every parameter, or none");                            \
    [[maybe_unused]] static const bool myrmidon_registered_##number = ::myrmidon::detail::enroll<&function>(text);

#define MYRMIDON_FIELDS_(type, text, fields)                                                      \
    template <>                                                                                   \
    struct MYRMIDON_HIDDEN_ myrmidon::Fields<type> {                                              \
        static std::string name() { return ::myrmidon::detail::last_part(text); }                 \
        template <class Object, class Visit>                                                      \
        static void each(Object &object, Visit &&visit) {                                         \
            MYRMIDON_EACH_(MYRMIDON_VISIT_, , MYRMIDON_UNPACK_ fields)                            \
        }                                                                                         \
    };
#define MYRMIDON_VISIT_(_, field) visit(#field, object.field);

#define MYRMIDON_MEMBERS_(type, text, list)                                                       \
    template <>                                                                                   \
    struct MYRMIDON_HIDDEN_ myrmidon::Members<type> {                                             \
        static std::string name() { return ::myrmidon::detail::last_part(text); }                 \
        static const std::vector<std::pair<const char *, type>> &members() {                      \
            static const std::vector<std::pair<const char *, type>> all{                          \
                MYRMIDON_EACH_(MYRMIDON_MEMBER_, type, MYRMIDON_UNPACK_ list)};                   \
            return all;                                                                           \
        }                                                                                         \
    };
#define MYRMIDON_MEMBER_(type, member) {#member, type::member},

#define MYRMIDON_FIRST_(first, ...) first
#define MYRMIDON_REST_(first, ...) (__VA_ARGS__)
#define MYRMIDON_UNPACK_(...) __VA_ARGS__
#define MYRMIDON_EXPAND_(x) x
// At most 32 fields or members; put more into a class inside.
#define MYRMIDON_EACH_(M, t, ...) MYRMIDON_EACH_OF_(M, t, __VA_ARGS__)
#define MYRMIDON_EACH_OF_(M, t, ...) \
    MYRMIDON_EXPAND_(MYRMIDON_PICK_(__VA_ARGS__, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, \
        17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)(M, t, __VA_ARGS__))
#define MYRMIDON_PICK_(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, \
        a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, n, ...) MYRMIDON_EACH_##n##_
#define MYRMIDON_EACH_1_(M, t, x) M(t, x)
#define MYRMIDON_EACH_2_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_1_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_3_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_2_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_4_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_3_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_5_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_4_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_6_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_5_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_7_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_6_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_8_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_7_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_9_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_8_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_10_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_9_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_11_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_10_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_12_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_11_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_13_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_12_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_14_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_13_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_15_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_14_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_16_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_15_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_17_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_16_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_18_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_17_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_19_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_18_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_20_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_19_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_21_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_20_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_22_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_21_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_23_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_22_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_24_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_23_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_25_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_24_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_26_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_25_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_27_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_26_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_28_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_27_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_29_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_28_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_30_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_29_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_31_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_30_(M, t, __VA_ARGS__))
#define MYRMIDON_EACH_32_(M, t, x, ...) M(t, x) MYRMIDON_EXPAND_(MYRMIDON_EACH_31_(M, t, __VA_ARGS__))

#endif
