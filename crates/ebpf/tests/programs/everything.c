// One of each thing that an object can have: kinds of maps, global data, functions in .text, loops, atomics.
#include "../../include/sluice.h"

struct context {
    __u32 words[8];
    __u32 out[8]; // may be written
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8);
    __type(key, __u64);
    __type(value, __u64);
} seen SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 4);
    __uint(key_size, 12);
    __uint(value_size, 4);
    __uint(map_flags, SLUICE_F_SHARED);
} recent SEC(".maps");

struct {
    __uint(type, SLUICE_MAP_TYPE_TRANSLATION);
    __uint(max_entries, 64);
    __uint(map_extra, 4);
    __type(key, __u64);
    __type(value, struct sluice_translation);
} places SEC(".maps");

const __u32 weights[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };
volatile __u32 scale = 10;
volatile __u64 runs;
static const char said[] = "weighed";

static __noinline __u32 weigh(const struct context *ctx, __u32 from)
{
    __u32 sum = 0;

    for (__u32 i = from; i < 8; i++)
        sum += weights[i & 7] * ctx->words[i & 7];
    return sum;
}

__noinline __u64 remember(__u64 key, __u64 value)
{
    __u64 *old = bpf_map_lookup_elem(&seen, &key);

    if (old)
        return __sync_fetch_and_add(old, value);
    bpf_map_update_elem(&seen, &key, &value, BPF_NOEXIST);
    return 0;
}

/* Not the first function of its section. */
__noinline __u32 mixed(__u32 value)
{
    return value * 3 + 1;
}

SEC("test/everything")
int everything(struct context *ctx)
{
    struct sluice_translation place;
    __u32 key[3] = { 1, 2, 3 };
    __u32 sum = weigh(ctx, ctx->words[0] & 1);

    runs++;
    ctx->out[0] = sum * scale;
    ctx->out[1] = remember(ctx->words[1], 5);
    bpf_map_update_elem(&recent, key, &sum, BPF_ANY);
    if (!sluice_translate(&places, ctx->words[2], &place))
        ctx->out[2] = place.target + place.flags;
    ctx->out[3] = mixed(sum);
    sluice_trace(said, sizeof(said) - 1);
    return runs;
}
