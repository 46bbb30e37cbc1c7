/* observe: what a drive is asked to do, and how long it takes.
 *
 * Every command takes the first path, as without a classifier. On the way it is counted by its opcode, by its
 * size and by its latency, in maps that `sluice classifier maps dump DRIVE MAP` shows:
 *
 *   opcodes    by opcode: commands, those of them that failed, bytes
 *   sizes      by the logarithm of the bytes of a command (12 is 4 KiB up to just below 8 KiB)
 *   read_ns    Reads, Writes and all others by the logarithm of their nanoseconds
 *   write_ns   (10 is about a microsecond, 20 a millisecond)
 *   other_ns
 *
 * The time is that between the classifier's two looks at a command: what the layers below take, without what
 * the guest and its doorbells add. Attach it with `--precise-clock`: the usual clock goes in steps of 4 ms. */
#include "sluice.h"

struct seen {
    __u64 commands;
    __u64 errors;
    __u64 bytes;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, struct seen);
} opcodes SEC(".maps");

#define HISTOGRAM(name)                        \
    struct {                                   \
        __uint(type, BPF_MAP_TYPE_ARRAY);      \
        __uint(max_entries, 64);               \
        __type(key, __u32);                    \
        __type(value, __u64);                  \
    } name SEC(".maps")

HISTOGRAM(sizes);
HISTOGRAM(read_ns);
HISTOGRAM(write_ns);
HISTOGRAM(other_ns);

/* When commands in flight were submitted, by queue and CID. A drive has at most 1,024 of them, and forgets
 * one that never came back when it needs its place. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 2048);
    __type(key, __u64);
    __type(value, __u64);
} started SEC(".maps");

/* The number of the highest bit that is set; zero for zero. */
static __always_inline __u32 logarithm(__u64 number)
{
    __u32 result = 0;

    if (number >> 32) {
        result += 32;
        number >>= 32;
    }
    if (number >> 16) {
        result += 16;
        number >>= 16;
    }
    if (number >> 8) {
        result += 8;
        number >>= 8;
    }
    if (number >> 4) {
        result += 4;
        number >>= 4;
    }
    if (number >> 2) {
        result += 2;
        number >>= 2;
    }
    return result + (number >> 1 ? 1 : 0);
}

static __always_inline void count(void *histogram, __u64 number)
{
    __u32 bucket = logarithm(number);
    __u64 *commands = bpf_map_lookup_elem(histogram, &bucket);

    if (commands)
        *commands += 1;
}

static __always_inline void count_command(struct sluice_context *ctx)
{
    __u64 bytes = (__u64)ctx->blocks * ctx->block_size;
    __u32 opcode = ctx->opcode;
    struct seen *seen = bpf_map_lookup_elem(&opcodes, &opcode);

    if (bytes)
        count(&sizes, bytes);
    if (!seen)
        return;
    seen->commands += 1;
    seen->bytes += bytes;
    if (!SLUICE_IS_SUCCESS(ctx->status))
        seen->errors += 1;
}

static __always_inline void count_latency(struct sluice_context *ctx, __u64 latency_ns)
{
    if (ctx->opcode == SLUICE_READ)
        count(&read_ns, latency_ns);
    else if (ctx->opcode == SLUICE_WRITE)
        count(&write_ns, latency_ns);
    else
        count(&other_ns, latency_ns);
}

SEC("classifier")
sluice_verdict observe(struct sluice_context *ctx)
{
    __u64 key = (__u64)ctx->nsid << 32 | (__u32)ctx->queue << 16 | ctx->entry.cid;
    __u64 now_ns = bpf_ktime_get_ns();
    __u64 *start_ns;

    if (ctx->hook == SLUICE_HOOK_SUBMISSION) {
        bpf_map_update_elem(&started, &key, &now_ns, BPF_ANY);
        return SLUICE_SEND(0) | SLUICE_CALL_BEFORE_COMPLETION;
    }
    count_command(ctx);
    start_ns = bpf_map_lookup_elem(&started, &key);
    if (start_ns) {
        count_latency(ctx, now_ns - *start_ns);
        bpf_map_delete_elem(&started, &key);
    }
    return SLUICE_FINISH_WITH(0);
}
