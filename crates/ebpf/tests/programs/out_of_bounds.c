// Certainly wrong, so that the message can name the line.
#include "../../include/sluice.h"

struct context {
    __u64 readable;
    __u64 hidden;
};

SEC("classifier")
int out_of_bounds(struct context *ctx)
{
    return ctx->hidden != 0;
}
