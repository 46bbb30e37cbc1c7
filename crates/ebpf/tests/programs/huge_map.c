// A map of a tebibyte.
#include "../../include/sluice.h"

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1 << 20);
    __uint(key_size, 4);
    __uint(value_size, 1 << 20);
} huge SEC(".maps");

SEC("classifier")
int huge_map(void *ctx)
{
    __u32 key = 0;

    return bpf_map_lookup_elem(&huge, &key) != 0;
}
