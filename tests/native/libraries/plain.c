/* A library without a wrapper. Macros choose what is wrong with it. */
#include <myrmidon.h>

#ifndef VERSION
#define VERSION MYRMIDON_ABI_VERSION
#endif
#ifndef SIGNATURE
#define SIGNATURE "(int64)->int64"
#endif

/* Returns its inputs. */
static int32_t echo(const myrmidon_function *self, const myrmidon_buffer *inputs, size_t num_inputs,
                    myrmidon_result *result) {
    (void)self;
    result->outputs = inputs;
    result->num_outputs = num_inputs;
    return MYRMIDON_OK;
}

static int32_t unknown(const myrmidon_function *self, const myrmidon_buffer *inputs, size_t num_inputs,
                       myrmidon_result *result) {
    (void)self, (void)inputs, (void)num_inputs;
    result->error_message = "odd";
    return 99;
}

static void release(const myrmidon_function *self, myrmidon_result *result) { (void)self, (void)result; }

static const myrmidon_function functions[] = {
    {"echo", SIGNATURE, echo, release, NULL},
    {"unknown", "()->()", unknown, release, NULL},
#ifdef TWICE
    {"echo", SIGNATURE, echo, release, NULL},
#endif
};
static const myrmidon_library library = {VERSION, 0, sizeof functions / sizeof *functions, functions, NULL};

#ifndef NOTHING
#define NOTHING 0
#endif

const myrmidon_library *myrmidon_entry(void) { return NOTHING ? NULL : &library; }
