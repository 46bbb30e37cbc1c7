/* sluice_internal.h: what the two halves of the library share: a function at work (sluice_uif.c) and the process
 * around it (sluice_serve.c). */
#ifndef SLUICE_INTERNAL_H
#define SLUICE_INTERNAL_H

#include "sluice_uif.h"
#include "sluice_uif_abi.h"

/* Of an alarm. */
#define NEVER UINT64_MAX

struct sluice_options {
    size_t length;
    char text[SLUICE_OPTIONS_MAX + 2];
};

/* What is to happen to a held command when the present call is over. */
struct resumed {
    sluice_held held;
    int stage; /* below zero: it is finished */
    sluice_status status;
};

/* One drive. */
struct sluice_io {
    struct sluice_io *next;
    const struct sluice_function *function;
    void *self;
    int socket, doorbell, bell;
    uint8_t *rings, *arena;
    size_t rings_bytes, arena_bytes;
    uint16_t entries, head, tail, published;
    /* What was said and does not fit into the ring yet. */
    struct sluice_abi_reply *said;
    size_t said_count, said_room;
    struct sluice_abi_submission *held;
    size_t held_count, held_room;
    struct resumed *resumed;
    size_t resumed_count, resumed_room;
    /* The command that the function looks at. */
    const struct sluice_abi_submission *shown;
    struct sluice_below below[SLUICE_LAYERS_MAX];
    size_t layers;
    uint64_t now_ns, alarm_ns;
    bool stopping, quiet;
    struct {
        bool taken;
        uint64_t token;
    } requests[SLUICE_REQUESTS_MAX];
    /* From here on the arena is the function's; by page: how many pages a buffer has that begins there. */
    size_t pool_at, pool_pages;
    uint16_t *pool;
    /* An operator who waits for an answer. */
    bool asked;
    struct sluice_abi_submission control;
    bool answered, answer_ok;
    char *answer;
    size_t answer_length, answer_room;
};

/* A function works on an entry; what it says is in `said`. */
void sluice_take(struct sluice_io *io, const struct sluice_abi_submission *entry);
/* The time of its alarm has come, if it has. */
void sluice_expire(struct sluice_io *io);

/* Nobody looks into this process from now on, and it leaves no core. */
void sluice_hide(void);
/* Gives up what a function's process does not need; paths stay readable for later drives, if there will be any. */
int sluice_confine(const char *const *readable, size_t count, bool serves_many);

#endif
