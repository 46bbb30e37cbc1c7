/* exercise: does everything a function can do, as the ones in Rust and Python of this name do it. The test
 * crates/uif/tests/languages compares what they say, byte by byte. */
#include "sluice_uif.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Time from the order "alarm" to its answer. */
#define ALARM_NS 1000000

struct exercise {
    uint8_t byte;
    bool later;
    uint64_t commands;
};

struct pending {
    sluice_held held;
    void *buffer;
};

static int open_exercise(const struct sluice_options *options, struct sluice_properties *is, void **self, char *why)
{
    static const char *const known[] = { "byte", NULL };
    const char *byte = sluice_option(options, "byte");
    struct exercise *exercise = calloc(1, sizeof *exercise);
    if (sluice_option_unknown(options, known) || !byte || !exercise) {
        free(exercise);
        snprintf(why, SLUICE_WHY_BYTES, "exercise has one option, byte");
        return 1;
    }
    exercise->byte = (uint8_t)atoi(byte);
    is->interests[SLUICE_READ] = SLUICE_AFTER;
    is->interests[SLUICE_WRITE] = is->interests[SLUICE_FLUSH] = is->interests[SLUICE_WRITE_ZEROES] = SLUICE_BEFORE;
    is->scratch = 4096;
    is->pool = 8 * 4096;
    is->transforms = true;
    *self = exercise;
    return 0;
}

static void start(void *self, struct sluice_io *io)
{
    size_t count;
    const struct sluice_below *layers = sluice_layers(io, &count);
    (void)self;
    sluice_ready(io, count > 0 && layers[0].block_size == 512 ? SLUICE_SUCCESS : SLUICE_NAMESPACE_NOT_READY);
}

static void change(struct exercise *exercise, struct sluice_call *call)
{
    for (size_t n = 0; n < call->data_length; n++)
        call->data[n] ^= exercise->byte;
}

static struct sluice_answer ask(struct sluice_call *call, struct sluice_io *io, bool own)
{
    struct pending *pending = calloc(1, sizeof *pending);
    void *data = call->data;
    if (own) {
        data = pending->buffer = sluice_buffer(io, call->data_length);
        if (!data) {
            free(pending);
            return sluice_finish(SLUICE_CAPACITY_EXCEEDED);
        }
        memcpy(data, call->data, call->data_length);
    }
    pending->held = call->held;
    if (!sluice_ask(io, own ? 0 : 1, &call->request, data, (uint64_t)(uintptr_t)pending)) {
        sluice_release(io, pending->buffer);
        free(pending);
        return sluice_finish(SLUICE_NAMESPACE_NOT_READY);
    }
    return sluice_hold();
}

static struct sluice_answer submit_write(struct exercise *exercise, struct sluice_call *call, struct sluice_io *io)
{
    change(exercise, call);
    switch (call->request.offset / 512 % 5) {
    case 0:
        call->layer = 1;
        return sluice_forward();
    case 1:
        call->request.length /= 2;
        return sluice_forward_and_return(7);
    case 2:
        return ask(call, io, false);
    case 3:
        return ask(call, io, true);
    }
    return sluice_finish(SLUICE_LBA_OUT_OF_RANGE);
}

static struct sluice_answer submit(void *self, struct sluice_call *call, struct sluice_io *io)
{
    struct exercise *exercise = self;
    const struct sluice_request *request = &call->request;
    exercise->commands++;
    call->cookie[0] += request->offset + 1;
    switch (request->operation) {
    case SLUICE_WRITE:
        return submit_write(exercise, call, io);
    case SLUICE_FLUSH:
        if (exercise->later)
            sluice_tell(io, true, "flushed");
        exercise->later = false;
        sluice_resume(io, call->held, 9, SLUICE_WRITE_FAULT);
        return sluice_hold();
    case SLUICE_WRITE_ZEROES:
        sluice_translate(io, request->offset, request->length, request->offset + 4096, request->fua);
        sluice_forget(io, request->offset, request->length);
        sluice_protect(io, request->offset, 512);
        sluice_finish_held(io, call->held, SLUICE_SUCCESS);
        return sluice_hold();
    }
    return sluice_forward();
}

static struct sluice_answer returned(void *self, struct sluice_call *call, struct sluice_io *io)
{
    (void)io;
    if (call->request.operation == SLUICE_READ)
        change(self, call);
    if (call->stage == 9)
        call->cookie[1]++;
    return sluice_finish(call->status);
}

static void done(void *self, uint64_t token, sluice_status status, struct sluice_io *io)
{
    struct pending *pending = (struct pending *)(uintptr_t)token;
    (void)self;
    sluice_release(io, pending->buffer);
    sluice_finish_held(io, pending->held, status);
    free(pending);
}

static void timer(void *self, struct sluice_io *io)
{
    (void)self;
    sluice_tell(io, true, "woken");
}

static void control(void *self, const char *text, struct sluice_io *io)
{
    struct exercise *exercise = self;
    static char words[3 * 70000 + 1];
    if (strcmp(text, "later") == 0) {
        exercise->later = true;
    } else if (strcmp(text, "alarm") == 0) {
        sluice_wake_at(io, sluice_now_ns(io) + ALARM_NS);
    } else if (strcmp(text, "fail") == 0) {
        sluice_tell(io, false, sluice_is_quiet(io) ? "no, quietly" : "no");
    } else if (strcmp(text, "long") == 0) {
        for (size_t n = 0; n < 70000; n++)
            memcpy(words + 3 * n, "\xe2\x82\xac", 3);
        sluice_tell(io, true, words);
    } else {
        snprintf(words, sizeof words, "%s %llu", text, (unsigned long long)exercise->commands);
        sluice_tell(io, true, words);
    }
}

static void metrics(void *self, struct sluice_io *io)
{
    sluice_count(io, "commands_total", ((struct exercise *)self)->commands);
}

int main(int argc, char **argv)
{
    static const struct sluice_function exercise = {
        .open = open_exercise, .close = free, .start = start, .submit = submit, .returned = returned, .done = done,
        .timer = timer, .control = control, .metrics = metrics,
    };
    return sluice_main(argc, argv, &exercise);
}
