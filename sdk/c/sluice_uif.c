/* sluice_uif.c: a function at work: entries of the daemon's in, replies out. No ring and no process: those are in
 * sluice_serve.c. */
#define _GNU_SOURCE
#include "sluice_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Small things ---------------------------------------------------------------------------------------- */

/* Memory that cannot be had ends the process: the daemon starts it again. */
static void *grown(void *array, size_t count, size_t *room, size_t each)
{
    if (count < *room)
        return array;
    *room = *room ? 2 * *room : 64;
    array = realloc(array, *room * each);
    if (!array)
        abort();
    return array;
}

/* Memory of the arena; NULL if it does not lie before `end`. */
static uint8_t *arena(struct sluice_io *io, uint64_t offset, uint64_t length, size_t end)
{
    return offset <= end && length <= end - offset ? io->arena + offset : NULL;
}

static void say(struct sluice_io *io, const struct sluice_abi_reply *reply)
{
    io->said = grown(io->said, io->said_count, &io->said_room, sizeof *io->said);
    io->said[io->said_count++] = *reply;
}

static uint8_t flags_of(const struct sluice_request *request)
{
    return (request->fua ? SLUICE_FLAG_FUA : 0) | (request->deallocate ? SLUICE_FLAG_DEALLOCATE : 0);
}

static bool has_data(uint8_t operation)
{
    return operation == SLUICE_READ || operation == SLUICE_WRITE;
}

/* ---- What a function can do ------------------------------------------------------------------------------ */

const char *sluice_option(const struct sluice_options *options, const char *key)
{
    size_t length = strlen(key);
    for (const char *pair = options->text; pair < options->text + options->length; pair += strlen(pair) + 1)
        if (strncmp(pair, key, length) == 0 && pair[length] == '=')
            return pair + length + 1;
    return NULL;
}

const char *sluice_option_unknown(const struct sluice_options *options, const char *const *known)
{
    for (const char *pair = options->text; pair < options->text + options->length; pair += strlen(pair) + 1) {
        const char *const *key = known;
        while (*key && (strncmp(pair, *key, strlen(*key)) != 0 || pair[strlen(*key)] != '='))
            key++;
        if (!*key && *pair)
            return pair;
    }
    return NULL;
}

const struct sluice_below *sluice_layers(const struct sluice_io *io, size_t *count)
{
    *count = io->layers;
    return io->below;
}

uint64_t sluice_now_ns(const struct sluice_io *io) { return io->now_ns; }

void sluice_wake_at(struct sluice_io *io, uint64_t now_ns) { io->alarm_ns = now_ns; }

void sluice_ready(struct sluice_io *io, sluice_status status)
{
    struct sluice_abi_reply reply = { .disposition = SLUICE_DISPOSITION_READY, .status = status };
    say(io, &reply);
}

void *sluice_buffer(struct sluice_io *io, size_t length)
{
    size_t pages = length / SLUICE_PAGE_BYTES + (length % SLUICE_PAGE_BYTES != 0);
    size_t first = 0, end = 0;
    if (pages == 0 || pages > io->pool_pages)
        return NULL;
    while (end < io->pool_pages && end - first < pages)
        if (io->pool[end])
            first = end += io->pool[end];
        else
            end++;
    if (end - first < pages)
        return NULL;
    io->pool[first] = (uint16_t)pages;
    return io->arena + io->pool_at + first * SLUICE_PAGE_BYTES;
}

void sluice_release(struct sluice_io *io, void *buffer)
{
    if (buffer)
        io->pool[((uint8_t *)buffer - io->arena - io->pool_at) / SLUICE_PAGE_BYTES] = 0;
}

/* The lowest tag that no request has; SLUICE_REQUESTS_MAX if all are out. */
static size_t free_tag(const struct sluice_io *io)
{
    size_t tag = 0;
    while (tag < SLUICE_REQUESTS_MAX && io->requests[tag].taken)
        tag++;
    return tag;
}

bool sluice_has_room(const struct sluice_io *io)
{
    return !io->stopping && free_tag(io) < SLUICE_REQUESTS_MAX;
}

bool sluice_ask(struct sluice_io *io, uint8_t layer, const struct sluice_request *request, void *data,
                uint64_t token)
{
    size_t tag = free_tag(io);
    uint64_t at = 0;
    if (io->stopping || tag == SLUICE_REQUESTS_MAX || has_data(request->operation) != (data != NULL))
        return false;
    if (data) {
        at = (uint64_t)((uint8_t *)data - io->arena);
        if (!arena(io, at, request->length, io->arena_bytes))
            return false;
    }
    struct sluice_abi_reply reply = {
        .tag = tag, .disposition = SLUICE_DISPOSITION_REQUEST, .operation = request->operation,
        .flags = flags_of(request), .layer = layer, .offset = request->offset, .length = request->length,
        .data_offset = at,
    };
    io->requests[tag].taken = true;
    io->requests[tag].token = token;
    say(io, &reply);
    return true;
}

static void go_on(struct sluice_io *io, sluice_held held, int stage, sluice_status status)
{
    io->resumed = grown(io->resumed, io->resumed_count, &io->resumed_room, sizeof *io->resumed);
    io->resumed[io->resumed_count++] = (struct resumed){ held, stage, status };
}

void sluice_finish_held(struct sluice_io *io, sluice_held held, sluice_status status)
{
    go_on(io, held, -1, status);
}

void sluice_resume(struct sluice_io *io, sluice_held held, uint8_t stage, sluice_status status)
{
    go_on(io, held, stage, status);
}

static void translation(struct sluice_io *io, uint8_t what, uint64_t from, uint64_t length, uint64_t to, bool writable)
{
    struct sluice_abi_reply reply = {
        .disposition = SLUICE_DISPOSITION_TRANSLATE, .operation = what, .offset = from, .length = length,
        .cookie = { to, writable },
    };
    say(io, &reply);
}

void sluice_translate(struct sluice_io *io, uint64_t from, uint64_t length, uint64_t to, bool writable)
{
    translation(io, SLUICE_TRANSLATION_INSERT, from, length, to, writable);
}

void sluice_forget(struct sluice_io *io, uint64_t from, uint64_t length)
{
    translation(io, SLUICE_TRANSLATION_FORGET, from, length, 0, false);
}

void sluice_protect(struct sluice_io *io, uint64_t from, uint64_t length)
{
    translation(io, SLUICE_TRANSLATION_PROTECT, from, length, 0, false);
}

static void answer_more(struct sluice_io *io, const char *words, size_t length)
{
    for (size_t n = 0; n < length; n++) {
        io->answer = grown(io->answer, io->answer_length, &io->answer_room, 1);
        io->answer[io->answer_length++] = words[n];
    }
}

void sluice_tell(struct sluice_io *io, bool ok, const char *words)
{
    io->answered = true;
    io->answer_ok = ok;
    io->answer_length = 0;
    answer_more(io, words, strlen(words));
}

bool sluice_is_quiet(const struct sluice_io *io) { return io->quiet; }

void sluice_count(struct sluice_io *io, const char *name, uint64_t value)
{
    char number[24];
    answer_more(io, name, strlen(name));
    answer_more(io, number, (size_t)snprintf(number, sizeof number, " %llu\n", (unsigned long long)value));
}

/* ---- A function at work: entries in, replies out --------------------------------------------------------- */

static void say_finished(struct sluice_io *io, const struct sluice_abi_submission *entry, sluice_status status)
{
    struct sluice_abi_reply reply = {
        .tag = entry->tag, .disposition = SLUICE_DISPOSITION_FINISH, .operation = entry->operation,
        .flags = entry->flags, .status = status, .offset = entry->offset, .length = entry->length,
    };
    say(io, &reply);
}

/* What becomes of a command that the function has looked at. */
static void settle_call(struct sluice_io *io, const struct sluice_abi_submission *entry,
                        const struct sluice_call *call, struct sluice_answer answer)
{
    const struct sluice_request *request = &call->request;
    if (answer.disposition == SLUICE_HOLD_) {
        struct sluice_abi_submission kept = {
            .tag = entry->tag, .operation = request->operation, .flags = flags_of(request),
            .offset = request->offset, .length = request->length, .data_offset = entry->data_offset,
            .data_length = entry->data_length, .cookie = { call->cookie[0], call->cookie[1] },
        };
        io->held = grown(io->held, io->held_count, &io->held_room, sizeof *io->held);
        io->held[io->held_count++] = kept;
        return;
    }
    struct sluice_abi_reply reply = {
        .tag = entry->tag, .disposition = answer.disposition, .operation = request->operation,
        .flags = flags_of(request), .stage = answer.stage, .status = answer.status, .layer = call->layer,
        .offset = request->offset, .length = request->length, .cookie = { call->cookie[0], call->cookie[1] },
    };
    say(io, &reply);
}

static void show(struct sluice_io *io, const struct sluice_abi_submission *entry)
{
    const struct sluice_function *function = io->function;
    uint8_t *data = arena(io, entry->data_offset, entry->data_length, io->pool_at);
    if (!data || entry->operation >= SLUICE_OPERATIONS) {
        say_finished(io, entry, SLUICE_INTERNAL_ERROR);
        return;
    }
    struct sluice_call call = {
        .request = { .operation = entry->operation, .fua = entry->flags & SLUICE_FLAG_FUA,
                     .deallocate = entry->flags & SLUICE_FLAG_DEALLOCATE, .offset = entry->offset,
                     .length = entry->length },
        .stage = entry->stage, .status = entry->status, .data = data, .data_length = entry->data_length,
        .cookie = { entry->cookie[0], entry->cookie[1] }, .held = entry->tag,
    };
    struct sluice_answer answer;
    io->shown = entry;
    if (entry->kind == SLUICE_KIND_COMMAND)
        answer = function->submit(io->self, &call, io);
    else if (function->returned)
        answer = function->returned(io->self, &call, io);
    else
        answer = sluice_finish(call.status);
    io->shown = NULL;
    settle_call(io, entry, &call, answer);
}

static void done(struct sluice_io *io, const struct sluice_abi_submission *entry)
{
    if (entry->tag >= SLUICE_REQUESTS_MAX || !io->requests[entry->tag].taken)
        return;
    io->requests[entry->tag].taken = false;
    if (io->function->done)
        io->function->done(io->self, io->requests[entry->tag].token, entry->status, io);
}

static void below(struct sluice_io *io, const struct sluice_abi_submission *entry)
{
    if (entry->stage >= SLUICE_LAYERS_MAX)
        return;
    io->below[entry->stage] = (struct sluice_below){ entry->offset, (uint32_t)entry->length };
    if (io->layers <= entry->stage)
        io->layers = (size_t)entry->stage + 1;
}

/* Tells an operator what stands in `answer`, as far as there is room for it. */
static void tell(struct sluice_io *io, const struct sluice_abi_submission *entry, bool ok)
{
    size_t length = io->answer_length;
    if (length > SLUICE_CONTROL_BYTES) {
        length = SLUICE_CONTROL_BYTES;
        while (length && (io->answer[length] & 0xc0) == 0x80)
            length--;
    }
    uint8_t *text = arena(io, entry->data_offset, length, io->arena_bytes);
    if (text && length)
        memcpy(text, io->answer, length);
    struct sluice_abi_reply reply = {
        .tag = entry->tag, .disposition = SLUICE_DISPOSITION_FINISH,
        .status = ok ? SLUICE_SUCCESS : SLUICE_INVALID_FIELD, .length = text ? length : 0,
    };
    say(io, &reply);
    io->answer_length = 0;
}

static void control(struct sluice_io *io, const struct sluice_abi_submission *entry)
{
    const uint8_t *bytes = arena(io, entry->data_offset, entry->data_length, io->arena_bytes);
    char *text = strndup(bytes ? (const char *)bytes : "", bytes ? entry->data_length : 0);
    if (!text)
        abort();
    io->answered = false;
    io->answer_length = 0;
    if (strcmp(text, "metrics") == 0) {
        if (io->function->metrics)
            io->function->metrics(io->self, io);
        tell(io, entry, true);
    } else if (io->asked) {
        sluice_tell(io, false, "it is still at work on the last order");
        io->answered = false;
        tell(io, entry, false);
    } else {
        io->asked = true;
        io->control = *entry;
        io->quiet = entry->flags & SLUICE_FLAG_QUIET;
        if (io->function->control)
            io->function->control(io->self, text, io);
        else
            sluice_tell(io, false, "this function takes no orders");
    }
    free(text);
}

/* What the function asked to have again, and what it has to say to an operator. */
static void settle(struct sluice_io *io)
{
    for (size_t n = 0; n < io->resumed_count; n++) {
        struct resumed resumed = io->resumed[n];
        size_t place = 0;
        while (place < io->held_count && io->held[place].tag != resumed.held)
            place++;
        if (place == io->held_count)
            continue;
        struct sluice_abi_submission entry = io->held[place];
        io->held[place] = io->held[--io->held_count];
        if (resumed.stage < 0) {
            say_finished(io, &entry, resumed.status);
            continue;
        }
        entry.kind = SLUICE_KIND_RETURNED;
        entry.stage = (uint8_t)resumed.stage;
        entry.status = resumed.status;
        show(io, &entry);
    }
    io->resumed_count = 0;
    if (io->answered && io->asked) {
        io->asked = io->quiet = false;
        tell(io, &io->control, io->answer_ok);
    }
    io->answered = false;
}

void sluice_take(struct sluice_io *io, const struct sluice_abi_submission *entry)
{
    switch (entry->kind) {
    case SLUICE_KIND_COMMAND:
    case SLUICE_KIND_RETURNED:
        show(io, entry);
        break;
    case SLUICE_KIND_DONE:
        done(io, entry);
        break;
    case SLUICE_KIND_BELOW:
        below(io, entry);
        break;
    case SLUICE_KIND_START:
        if (io->function->start)
            io->function->start(io->self, io);
        else
            sluice_ready(io, SLUICE_SUCCESS);
        break;
    case SLUICE_KIND_CONTROL:
        control(io, entry);
        break;
    case SLUICE_KIND_STOP:
        io->stopping = true;
        break;
    }
    settle(io);
}

void sluice_expire(struct sluice_io *io)
{
    if (io->alarm_ns == NEVER || io->now_ns < io->alarm_ns)
        return;
    io->alarm_ns = NEVER;
    if (io->function->timer)
        io->function->timer(io->self, io);
    settle(io);
}
