// About what a classifier does: switch on an opcode, look a range up, check it, rewrite a field, count.
#include "../../include/sluice.h"

struct window {
    __u64 first;
    __u64 blocks;
    __u64 shift;
    __u64 seen;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, struct window);
} windows SEC(".maps");

enum { FLUSHED, REFUSED, MOVED };

SEC("classifier")
sluice_verdict classify(struct sluice_context *ctx)
{
    __u32 which = ctx->nsid;
    struct window *window;

    switch (ctx->opcode) {
    case SLUICE_FLUSH:
        sluice_count(FLUSHED);
        return SLUICE_ALL(SLUICE_FIRST_ERROR) | SLUICE_START(SLUICE_LEG(0) | SLUICE_LEG(1));
    case SLUICE_WRITE:
        ctx->hints = 1;
        break;
    case SLUICE_READ:
        ctx->hints = 2;
        break;
    default:
        sluice_count(REFUSED);
        return SLUICE_COMPLETE(SLUICE_STATUS_INVALID_OPCODE);
    }
    if (ctx->entry.flags & 0x40)
        ctx->hints |= 0x100;
    if (ctx->queue > 8)
        ctx->hints |= 0x200;
    window = bpf_map_lookup_elem(&windows, &which);
    if (!window)
        return SLUICE_COMPLETE(SLUICE_STATUS_INVALID_NAMESPACE);
    if (ctx->slba >= window->blocks || ctx->blocks > window->blocks - ctx->slba)
        return SLUICE_COMPLETE(SLUICE_STATUS_LBA_OUT_OF_RANGE);
    ctx->slba = ctx->slba + window->first + (window->shift << 3);
    window->seen += ctx->blocks;
    sluice_count(MOVED);
    return SLUICE_SEND(0) | SLUICE_COOKIE(ctx->opcode);
}
