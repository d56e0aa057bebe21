/* The C interface between Myrmidon and a shared library with functions. C99, no other header of Myrmidon.
 *
 * A library exports one symbol, myrmidon_entry. It returns the description of the library: the version of this interface
 * and the functions with their names and signatures. myrmidon.hpp (C++) and the crate `myrmidon` (Rust) write all of
 * this; use this header alone for other languages, or for C.
 *
 * Values. Each input and each output is one MessagePack object in a buffer of its own:
 *     int8 int16 int32 int64   integer            List<T>           array
 *     double                   float or integer   Map<K,V>          map
 *     bool                     true, false        Optional<T>       nil, or T
 *     string                   str, UTF-8         Tuple<A,B>        array
 *     bytes                    bin                a class           map by field name; an enum is the name of its member
 * docs/native.md has the remaining ones.
 *
 * Memory. The library's description and everything that it points to stays valid until the process ends. Inputs belong
 * to the caller and are valid during the call only. A result belongs to the library: what `call` has stored in it stays
 * valid until the caller has called `release` with it, once, after every call, whatever the call has returned.
 *
 * Control. No C++ exception, Rust panic or longjmp may leave `call`. Calls of a library come one after another; on a bot
 * all are made by the main thread of a process that calls nothing else meanwhile. `call` may use threads of its own.
 */
#ifndef MYRMIDON_H
#define MYRMIDON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MYRMIDON_ABI_VERSION 1u

#if defined(_WIN32)
#define MYRMIDON_EXPORT __declspec(dllexport)
#else
#define MYRMIDON_EXPORT __attribute__((visibility("default")))
#endif

/* What a call returns. */
enum {
    MYRMIDON_OK = 0,         /* `outputs` has one buffer for each output of the signature */
    MYRMIDON_FAILED = 1,     /* the function has failed; error_type and error_message say how */
    MYRMIDON_WRONG_TYPE = 2, /* an input does not have the type of the signature; error_message says which */
    MYRMIDON_NO_MEMORY = 3   /* memory could not be allocated */
};

/* Flags of a library. */
enum {
    /* Every output has the type of the signature, because the compiler has checked it. Myrmidon decodes and compares
     * the outputs of a library without this flag before it stores them. */
    MYRMIDON_TYPED_OUTPUTS = 1
};

typedef struct myrmidon_buffer {
    const uint8_t *data;
    size_t size;
} myrmidon_buffer;

typedef struct myrmidon_result {
    const myrmidon_buffer *outputs;
    size_t num_outputs;
    const char *error_type;    /* UTF-8, ends with a zero byte; null: unknown. For example "std::out_of_range" */
    const char *error_message; /* UTF-8, ends with a zero byte; null: none */
    void *owner;               /* for `release`; the caller does not read it */
} myrmidon_result;

typedef struct myrmidon_function myrmidon_function;
struct myrmidon_function {
    const char *name;
    /* "(text:string,top:int64)->Map<string,int64>", without spaces. Names of parameters may be left out; a function
     * without output ends with "->()", one with several outputs with "->(int64,string)". The name of a class is
     * "module.Class" as in Python, or only "Class", which stands for the class of this name in any module. */
    const char *signature;
    /* Calls the function. `result` is filled with zeros before. */
    int32_t (*call)(const myrmidon_function *self, const myrmidon_buffer *inputs, size_t num_inputs,
                    myrmidon_result *result);
    void (*release)(const myrmidon_function *self, myrmidon_result *result);
    const void *data; /* for the library; the caller does not read it */
};

typedef struct myrmidon_library {
    uint32_t abi_version; /* MYRMIDON_ABI_VERSION. Stays the first field in all versions */
    uint32_t flags;
    size_t num_functions;
    const myrmidon_function *functions;
    void (*flush)(void); /* writes what streams of the language hold back, after every call; null: nothing to do */
} myrmidon_library;

/* The only symbol of a library. Called once, before everything else. Returns null if the library cannot be used. */
MYRMIDON_EXPORT const myrmidon_library *myrmidon_entry(void);

#ifdef __cplusplus
}
#endif

#endif
