/* sluice_uif.h: all that the author of a storage function includes.
 *
 * A function sees commands of a drive on their way, in a process of its own, and says what becomes of each:
 *
 *     #include "sluice_uif.h"
 *
 *     static int open_(const struct sluice_options *options, struct sluice_properties *is, void **self, char *why)
 *     {
 *         is->interests[SLUICE_WRITE] = SLUICE_BEFORE;
 *         return 0;
 *     }
 *
 *     static struct sluice_answer submit(void *self, struct sluice_call *call, struct sluice_io *io)
 *     {
 *         return sluice_finish(SLUICE_NAMESPACE_WRITE_PROTECTED);
 *     }
 *
 *     int main(int argc, char **argv)
 *     {
 *         static const struct sluice_function function = { .open = open_, .submit = submit };
 *         return sluice_main(argc, argv, &function);
 *     }
 *
 * Compile with: cc -O2 -o function function.c sluice_uif.c sluice_sandbox.c
 *
 * One thread calls everything. Numbers of bytes count from the beginning of the function's layer. */
#ifndef SLUICE_UIF_H
#define SLUICE_UIF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What a function says of itself ---------------------------------------------------------------------- */

enum sluice_operation {
    SLUICE_READ = 0,
    SLUICE_WRITE = 1,
    SLUICE_FLUSH = 2,
    SLUICE_WRITE_ZEROES = 3,
    SLUICE_DEALLOCATE = 4,
    SLUICE_OPERATIONS = 5,
};

/* When it wants to see an operation: never; before it goes below; when it is back with success. */
enum sluice_interest { SLUICE_SKIP = 0, SLUICE_BEFORE = 1, SLUICE_AFTER = 2 };

struct sluice_properties {
    uint8_t interests[SLUICE_OPERATIONS]; /* by operation: enum sluice_interest */
    uint32_t block_size;                  /* the smallest unit of a request: 512 (or 0), or 4096 */
    uint32_t scratch;                     /* bytes of the buffer that a Write Zeroes gets: whole blocks */
    uint32_t pool;                        /* bytes for requests of its own: whole pages of 4096 */
    bool transforms;                      /* what stands below is not what the host reads */
    uint64_t size;                        /* bytes of the layer; 0 for as many as its first layer below has */
};

/* What a user configured. */
struct sluice_options;
/* The value of a key; NULL if there is none. */
const char *sluice_option(const struct sluice_options *options, const char *key);
/* The first key that is not among these, which end with NULL; NULL if all are. The user meant something by it. */
const char *sluice_option_unknown(const struct sluice_options *options, const char *const *known);

/* ---- Commands -------------------------------------------------------------------------------------------- */

/* A status as in a completion entry: SC in bits 7:0, SCT in 10:8, Do Not Retry in 14. */
typedef uint16_t sluice_status;
#define SLUICE_SUCCESS ((sluice_status)0x0000)
#define SLUICE_INVALID_FIELD ((sluice_status)0x4002)
#define SLUICE_INTERNAL_ERROR ((sluice_status)0x0006)
#define SLUICE_NAMESPACE_WRITE_PROTECTED ((sluice_status)0x4020)
#define SLUICE_LBA_OUT_OF_RANGE ((sluice_status)0x4080)
#define SLUICE_CAPACITY_EXCEEDED ((sluice_status)0x4081)
#define SLUICE_NAMESPACE_NOT_READY ((sluice_status)0x0082)
#define SLUICE_WRITE_FAULT ((sluice_status)0x0280)
#define SLUICE_UNRECOVERED_READ_ERROR ((sluice_status)0x0281)
static inline bool sluice_is_success(sluice_status status) { return (status & 0x7ff) == 0; }

struct sluice_request {
    uint8_t operation;          /* enum sluice_operation */
    bool fua;                   /* Force Unit Access */
    bool deallocate;            /* Write Zeroes may deallocate */
    uint64_t offset, length;    /* bytes */
};

/* A command that a function holds. */
typedef uint64_t sluice_held;

/* A command in the hands of a function. */
struct sluice_call {
    struct sluice_request request; /* what is asked; who forwards may change it */
    uint8_t layer;                 /* which layer below it is forwarded to */
    uint8_t stage;                 /* of a command that is back: what it was forwarded or resumed with */
    sluice_status status;          /* of a command that is back: how it went */
    uint8_t *data;                 /* the command's own buffer: of a write, a copy of the host's data */
    size_t data_length;            /* bytes */
    uint64_t cookie[2];            /* the function's own, zero at first; here again when the command is back */
    sluice_held held;              /* for a function that holds it */
};

struct sluice_answer {
    uint8_t disposition;
    uint8_t stage;
    sluice_status status;
};
#define SLUICE_HOLD_ 255

/* It has its status. */
static inline struct sluice_answer sluice_finish(sluice_status status)
{
    struct sluice_answer answer = { 0, 0, status };
    return answer;
}

/* It goes below, and its status there is its own. */
static inline struct sluice_answer sluice_forward(void)
{
    struct sluice_answer answer = { 1, 0, SLUICE_SUCCESS };
    return answer;
}

/* The same, and it comes back to `returned` with this stage. */
static inline struct sluice_answer sluice_forward_and_return(uint8_t stage)
{
    struct sluice_answer answer = { 2, stage, SLUICE_SUCCESS };
    return answer;
}

/* The function keeps it, until sluice_finish_held or sluice_resume. */
static inline struct sluice_answer sluice_hold(void)
{
    struct sluice_answer answer = { SLUICE_HOLD_, 0, SLUICE_SUCCESS };
    return answer;
}

/* ---- The function ---------------------------------------------------------------------------------------- */

/* What a function can do besides answering, while one of its functions runs. */
struct sluice_io;

/* The bytes of the words with which `open` refuses, with the zero at their end. */
#define SLUICE_WHY_BYTES 192

/* Every member but `submit` may be NULL. `self` is what `open` made of it. What returns late makes all
 * commands of all its drives wait. */
struct sluice_function {
    /* For each drive: says what the function is (zeros come in), and makes its state. Returns 0; or writes
     * into `why` (SLUICE_WHY_BYTES) why not, and returns anything else. */
    int (*open)(const struct sluice_options *options, struct sluice_properties *is, void **self, char *why);
    /* The drive is gone. */
    void (*close)(void *self);
    /* The layers below are there. Commands come when it has said sluice_ready; NULL says so at once. Comes
     * again when a layer has another size. */
    void (*start)(void *self, struct sluice_io *io);
    /* A command before the layer below has seen it. */
    struct sluice_answer (*submit)(void *self, struct sluice_call *call, struct sluice_io *io);
    /* A command that was below, or held and resumed. NULL finishes it with its status. */
    struct sluice_answer (*returned)(void *self, struct sluice_call *call, struct sluice_io *io);
    /* A request of the function's own is done. */
    void (*done)(void *self, uint64_t token, sluice_status status, struct sluice_io *io);
    /* The time of sluice_wake_at has come. */
    void (*timer)(void *self, struct sluice_io *io);
    /* An operator wants something, in UTF-8 (`sluice function tell`). Answered with sluice_tell, now or later. */
    void (*control)(void *self, const char *text, struct sluice_io *io);
    /* Says what it counts, with sluice_count. */
    void (*metrics)(void *self, struct sluice_io *io);
};

/* Is a function's process until the daemon is gone; what main returns. Arguments: --socket PATH listens there
 * for any number of drives, else standard input is a daemon's socket; --readable PATH names what may still be
 * opened for later drives; --unconfined keeps all that a process may do. Without it the process has given up,
 * before the first command, to open files (but what is readable, and only to read), the network and all
 * system calls but those that sluice_sandbox.c lists. */
int sluice_main(int argc, char **argv, const struct sluice_function *function);

/* ---- What it can do -------------------------------------------------------------------------------------- */

struct sluice_below {
    uint64_t size;       /* bytes */
    uint32_t block_size; /* bytes */
};

/* The layers below, by number: first the rest of the stack, then what the configuration names. */
const struct sluice_below *sluice_layers(const struct sluice_io *io, size_t *count);
/* Nanoseconds of a clock that never goes back. */
uint64_t sluice_now_ns(const struct sluice_io *io);
/* Calls `timer` at this time, or soon after: one time, the last that was said. UINT64_MAX for never. */
void sluice_wake_at(struct sluice_io *io, uint64_t now_ns);
/* It takes commands from now on; or it cannot, for this reason, and all commands fail with it. */
void sluice_ready(struct sluice_io *io, sluice_status status);

/* Memory for a request: zeros, or what it was last used for. NULL if there is no such piece now. */
void *sluice_buffer(struct sluice_io *io, size_t length);
void sluice_release(struct sluice_io *io, void *buffer);
/* True if a request would be sent now. */
bool sluice_has_room(const struct sluice_io *io);
/* Asks a layer below for something; `done` has the answer. Data of a read or write is in a buffer of the
 * function's, or in that of a command that it holds or looks at, and is left alone until then. False if it
 * cannot be asked now. */
bool sluice_ask(struct sluice_io *io, uint8_t layer, const struct sluice_request *request, void *data,
                uint64_t token);

/* A command that was held is finished, as soon as the present call is over. */
void sluice_finish_held(struct sluice_io *io, sluice_held held, sluice_status status);
/* A command that was held comes to `returned`, likewise, with this stage and status. */
void sluice_resume(struct sluice_io *io, sluice_held held, uint8_t stage, sluice_status status);

/* For the drive's classifier, if the configuration says which of its maps is to know: these bytes are at `to`,
 * and writes may go there unasked, or not; nothing is known of these any more; writes to these ask again. */
void sluice_translate(struct sluice_io *io, uint64_t from, uint64_t length, uint64_t to, bool writable);
void sluice_forget(struct sluice_io *io, uint64_t from, uint64_t length);
void sluice_protect(struct sluice_io *io, uint64_t from, uint64_t length);

/* The answer to the last `control`: words or JSON; or, if not ok, what is wrong. */
void sluice_tell(struct sluice_io *io, bool ok, const char *words);
/* True if an operator's order found the drive quiet: no command is in flight, and none begins until the order
 * is answered. */
bool sluice_is_quiet(const struct sluice_io *io);
/* While `metrics` runs: a name in the manner of Prometheus (resync_bytes_total), and its value. */
void sluice_count(struct sluice_io *io, const char *name, uint64_t value);

#ifdef __cplusplus
}
#endif
#endif
