/* What a program for Sluice's eBPF engine needs: map definitions and helpers.
 *
 * Compile with: clang -target bpf -O2 -g -mcpu=v3 -c program.c
 * (-g, because map definitions are read from the BTF that it makes) */
#ifndef SLUICE_BPF_H
#define SLUICE_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#ifndef __noinline
#define __noinline __attribute__((noinline))
#endif

/* Maps: struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, __u64); ... } name SEC(".maps"); */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_LRU_HASH 9
/* Ranges of blocks to where they are; map_extra is the logarithm of a granule's blocks. */
#define SLUICE_MAP_TYPE_TRANSLATION 1000

/* map_flags: programs only read it; one map for all reactors instead of one each. */
#define BPF_F_RDONLY_PROG (1 << 7)
#define SLUICE_F_SHARED (1 << 24)

#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_EXIST 2

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;

/* Counts the counter of this index one up; there are 64. */
static long (*const sluice_count)(__u64 index) = (void *)1000;
/* Puts up to 48 bytes into the program's trace. */
static long (*const sluice_trace)(const void *text, __u64 bytes) = (void *)1001;

/* Where a block is: its place at the target, how many from it on are contiguous there, the function's flags. */
struct sluice_translation {
    __u64 target;
    __u32 count;
    __u32 flags;
};
#define SLUICE_TRANSLATION_WRITABLE 1u

/* Asks a translation cache; 0 if it knows. */
static long (*const sluice_translate)(void *map, __u64 block, struct sluice_translation *out) = (void *)1002;
/* Makes a translation cache forget blocks. */
static long (*const sluice_forget)(void *map, __u64 block, __u64 count) = (void *)1003;

#endif
