/* xor: stores every byte combined with one of the user's (options = { byte = "165" }), and undoes that for reads. */
#include "sluice_uif.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct xor {
    uint8_t byte;
    uint64_t bytes;
};

static int open_xor(const struct sluice_options *options, struct sluice_properties *is, void **self, char *why)
{
    static const char *const known[] = { "byte", NULL };
    const char *byte = sluice_option(options, "byte");
    if (sluice_option_unknown(options, known)) {
        snprintf(why, SLUICE_WHY_BYTES, "xor knows only the option byte");
        return -1;
    }
    char *end;
    unsigned long number = strtoul(byte ? byte : "90", &end, 10);
    if (*end || number > 255) {
        snprintf(why, SLUICE_WHY_BYTES, "byte is a number from 0 to 255");
        return -1;
    }
    struct xor *xor = calloc(1, sizeof *xor);
    if (!xor)
        return -1;
    xor->byte = (uint8_t)number;
    is->interests[SLUICE_READ] = SLUICE_AFTER;
    is->interests[SLUICE_WRITE] = SLUICE_BEFORE;
    is->interests[SLUICE_WRITE_ZEROES] = SLUICE_BEFORE; /* zeros below are not zeros to the host */
    is->scratch = 64 << 10;
    is->transforms = true;
    *self = xor;
    return 0;
}

static void change(struct xor *xor, struct sluice_call *call)
{
    for (size_t n = 0; n < call->data_length; n++)
        call->data[n] ^= xor->byte;
    xor->bytes += call->data_length;
}

/* Writes as many zeros at `offset` as there is room for, up to the cookie; the rest when that is back. */
static struct sluice_answer zero(struct xor *xor, struct sluice_call *call, uint64_t offset)
{
    uint64_t left = call->cookie[0] - offset;
    call->request.operation = SLUICE_WRITE;
    call->request.deallocate = false;
    call->request.offset = offset;
    call->request.length = left < call->data_length ? left : call->data_length;
    memset(call->data, xor->byte, call->request.length);
    return sluice_forward_and_return(1);
}

static struct sluice_answer submit(void *self, struct sluice_call *call, struct sluice_io *io)
{
    const struct sluice_request *request = &call->request;
    (void)io;
    if (request->operation == SLUICE_WRITE_ZEROES) {
        call->cookie[0] = request->offset + request->length;
        return zero(self, call, request->offset);
    }
    change(self, call);
    return sluice_forward();
}

static struct sluice_answer returned(void *self, struct sluice_call *call, struct sluice_io *io)
{
    uint64_t end = call->request.offset + call->request.length;
    (void)io;
    if (call->request.operation == SLUICE_READ)
        change(self, call);
    else if (sluice_is_success(call->status) && end < call->cookie[0])
        return zero(self, call, end);
    return sluice_finish(call->status);
}

static void metrics(void *self, struct sluice_io *io)
{
    sluice_count(io, "bytes_total", ((struct xor *)self)->bytes);
}

int main(int argc, char **argv)
{
    static const struct sluice_function xor = {
        .open = open_xor, .close = free, .submit = submit, .returned = returned, .metrics = metrics,
    };
    return sluice_main(argc, argv, &xor);
}
