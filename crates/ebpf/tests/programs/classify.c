// About what a classifier does: switch on an opcode, look a range up, check it, rewrite a field, count.
#include "../../include/sluice_bpf.h"

struct context {
    __u8 opcode;
    __u8 flags;
    __u16 queue;
    __u32 nsid;
    __u64 slba; // may be written
    __u32 blocks;
    __u32 hint; // may be written
};

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

enum { FLUSH = 0, WRITE = 1, READ = 2, REFUSE = 0x80 };

SEC("classifier")
int classify(struct context *ctx)
{
    __u32 which = ctx->nsid;
    struct window *window;

    switch (ctx->opcode) {
    case FLUSH:
        sluice_count(0);
        return 3;
    case WRITE:
        ctx->hint = 1;
        break;
    case READ:
        ctx->hint = 2;
        break;
    default:
        sluice_count(1);
        return REFUSE;
    }
    if (ctx->flags & 0x40)
        ctx->hint |= 0x100;
    if (ctx->queue > 8)
        ctx->hint |= 0x200;
    window = bpf_map_lookup_elem(&windows, &which);
    if (!window)
        return REFUSE + 1;
    if (ctx->slba >= window->blocks || ctx->blocks > window->blocks - ctx->slba)
        return REFUSE + 2;
    ctx->slba = ctx->slba + window->first + (window->shift << 3);
    window->seen += ctx->blocks;
    sluice_count(2);
    return ctx->opcode;
}
