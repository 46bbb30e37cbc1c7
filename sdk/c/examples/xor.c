/* xor: stores every byte combined with one of the user's (options = { byte = "165" }), and undoes that for reads. */
#include "sluice_uif.h"

#include <stdio.h>
#include <stdlib.h>

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
    struct xor *xor = calloc(1, sizeof *xor);
    if (!xor)
        return -1;
    xor->byte = (uint8_t)atoi(byte ? byte : "90");
    is->interests[SLUICE_READ] = SLUICE_AFTER;
    is->interests[SLUICE_WRITE] = SLUICE_BEFORE;
    is->transforms = true; /* zeros below are not zeros to the host, and so no command may make zeros */
    *self = xor;
    return 0;
}

static void change(struct xor *xor, struct sluice_call *call)
{
    for (size_t n = 0; n < call->data_length; n++)
        call->data[n] ^= xor->byte;
    xor->bytes += call->data_length;
}

static struct sluice_answer submit(void *self, struct sluice_call *call, struct sluice_io *io)
{
    (void)io;
    change(self, call);
    return sluice_forward();
}

static struct sluice_answer returned(void *self, struct sluice_call *call, struct sluice_io *io)
{
    (void)io;
    change(self, call);
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
