/* sluice.h: all that the author of a classifier includes.
 *
 * A classifier is a function that looks at a command and answers with a verdict:
 *
 *     #include "sluice.h"
 *
 *     SEC("classifier")
 *     sluice_verdict mirror(struct sluice_context *ctx)
 *     {
 *         if (ctx->opcode == SLUICE_READ)
 *             return SLUICE_SEND(0);
 *         return SLUICE_ALL(SLUICE_FIRST_ERROR) | SLUICE_START(SLUICE_LEG(0) | SLUICE_LEG(1));
 *     }
 *
 * Compile with: clang -target bpf -O2 -g -mcpu=v3 -c mirror.c
 * (-g, because map definitions and source lines come from the BTF that it makes)
 *
 * What is in here never changes its meaning. What is added raises SLUICE_ABI, unless it is only a name for a
 * number. It is put into every object: a daemon runs objects of its own version and of earlier ones, and
 * refuses later ones in words. */
#ifndef SLUICE_H
#define SLUICE_H

#define SLUICE_ABI 1

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

static const __u32 sluice_abi SEC("sluice.abi") = SLUICE_ABI;

/* ---- The context: one command at one hook --------------------------------------------------------------- */

/* An entry of a submission queue (NVMe Base 3.3.3.1). */
struct sluice_entry {
    __u8 opcode;
    __u8 flags;
    __u16 cid;
    __u32 nsid;
    __u32 cdw2;
    __u32 cdw3;
    __u64 mptr;
    __u64 dptr[2];
    __u32 cdw10;
    __u32 cdw11;
    __u32 cdw12;
    __u32 cdw13;
    __u32 cdw14;
    __u32 cdw15;
};

struct sluice_context {
    /* To be read. */
    __u16 version;      /* SLUICE_ABI of the daemon, not less than the program's */
    __u8 hook;          /* SLUICE_HOOK_... */
    __u8 leg;           /* which leg is done; zero at the other hooks */
    __u16 status;       /* of the leg that is done, or that the command is about to complete with */
    __u16 cookie;       /* of the command's last verdict; zero at submission */
    __u16 queue;        /* submission queue identifier; 0 or 65535: no host put it into an I/O queue */
    __u8 opcode;        /* SLUICE_READ and so on */
    __u8 in_flight;     /* bit n: leg n is */
    __u32 nsid;
    __u32 block_size;   /* bytes of a logical block */
    __u8 further_step;  /* one for every step but the first of a command that takes several */
    __u8 reserved0[3];
    __u64 capacity;     /* logical blocks of the namespace */

    /* To be read and written: where the legs of the verdict go. At the next hook the original is back. */
    __u64 slba;         /* anywhere in the namespace, or in what a path leads to that is `beyond` it */
    __u32 blocks;       /* one-based, zero if the command has none; only downwards */
    __u32 skip;         /* blocks of the command, and of its data, that come before those of the leg */
    __u32 hints;        /* for the layers */
    __u8 target;        /* for the layers */
    __u8 fua;           /* Force Unit Access if not zero; can be set, not cleared */

    /* To be read. */
    __u8 reserved1[10];
    struct sluice_entry entry; /* as it was copied out of the submission queue */
};

#define SLUICE_HOOK_SUBMISSION 0
#define SLUICE_HOOK_LEG_DONE 1
#define SLUICE_HOOK_BEFORE_COMPLETION 2

/* Opcodes of the NVM command set. */
#define SLUICE_FLUSH 0x00
#define SLUICE_WRITE 0x01
#define SLUICE_READ 0x02
#define SLUICE_WRITE_UNCORRECTABLE 0x04
#define SLUICE_COMPARE 0x05
#define SLUICE_WRITE_ZEROES 0x08
#define SLUICE_DATASET_MANAGEMENT 0x09
#define SLUICE_VERIFY 0x0c
#define SLUICE_COPY 0x19

/* ---- The verdict: 64 bits ------------------------------------------------------------------------------- *
 *
 * One of the five rules, with what is to happen besides joined to it by |. A verdict replaces what earlier
 * ones of the command said, all of it. An impossible one fails the command with an internal error.
 *
 * A command that is finished is completed when its last leg is back, and only then. */

typedef __u64 sluice_verdict;

/* Legs are numbered from 0 to 6; leg n goes down path n. SLUICE_LEG(0) | SLUICE_LEG(1) is a set of two. */
#define SLUICE_LEGS 7
#define SLUICE_LEG(leg) (1ull << (leg))
/* Of the rules for several legs: the error of the lowest-numbered leg that failed, success if none did. */
#define SLUICE_FIRST_ERROR 15ull

/* Rules: when the command is finished, and with what. */

/* Not before a later verdict says so; needs a leg to be called again at. */
#define SLUICE_HOLD 0ull
/* Now, with this status. */
#define SLUICE_COMPLETE(status) (1ull << 48 | ((__u64)(status) & 0x7fff) << 32)
/* When this leg is done, which this verdict or an earlier one started. */
#define SLUICE_FINISH_WITH(leg) (2ull << 48 | (__u64)(leg) << 52)
/* When all legs are done, with the status of one of them or SLUICE_FIRST_ERROR. */
#define SLUICE_ALL(winner) (3ull << 48 | (__u64)(winner) << 52)
/* When a leg is good; when all have failed, with the status of one of them or SLUICE_FIRST_ERROR. */
#define SLUICE_ANY_GOOD(winner) (4ull << 48 | (__u64)(winner) << 52)

/* Starts this leg and is finished with it: what most commands need. */
#define SLUICE_SEND(leg) (SLUICE_FINISH_WITH(leg) | SLUICE_START(SLUICE_LEG(leg)))

/* Besides: */

/* Start these legs. */
#define SLUICE_START(legs) ((__u64)(legs) & 0x7f)
/* Call again when one of these legs is done, unless the command is finished by then. */
#define SLUICE_CALL_AT(legs) (((__u64)(legs) & 0x7f) << 8)
/* Call again when all legs are back; what is said then can only choose the status. */
#define SLUICE_CALL_BEFORE_COMPLETION (1ull << 15)
/* 16 bits that the next hook is shown. To be joined once. */
#define SLUICE_COOKIE(cookie) (((__u64)(cookie) & 0xffff) << 16)

/* ---- Status: the 15 bits of a completion entry ---------------------------------------------------------- *
 *
 * Status code in bits 0 to 7, status code type in 8 to 10, More in 13, Do Not Retry in 14, which is set
 * where the same command would fail again. */

#define SLUICE_STATUS_DNR 0x4000
/* The code and its type. Compare these: whether to try again is another question. */
#define SLUICE_STATUS_CODE(status) ((status) & 0x7ff)
#define SLUICE_IS_SUCCESS(status) (SLUICE_STATUS_CODE(status) == 0)

#define SLUICE_STATUS_SUCCESS 0
#define SLUICE_STATUS_INVALID_OPCODE 0x4001
#define SLUICE_STATUS_INVALID_FIELD 0x4002
#define SLUICE_STATUS_CID_CONFLICT 0x4003
#define SLUICE_STATUS_DATA_TRANSFER_ERROR 0x0004
#define SLUICE_STATUS_ABORTED_POWER_LOSS 0x0005
#define SLUICE_STATUS_INTERNAL_ERROR 0x0006
#define SLUICE_STATUS_ABORT_REQUESTED 0x0007
#define SLUICE_STATUS_ABORTED_SQ_DELETION 0x0008
#define SLUICE_STATUS_ABORTED_FAILED_FUSED 0x0009
#define SLUICE_STATUS_ABORTED_MISSING_FUSED 0x400a
#define SLUICE_STATUS_INVALID_NAMESPACE 0x400b
#define SLUICE_STATUS_COMMAND_SEQUENCE_ERROR 0x400c
#define SLUICE_STATUS_INVALID_SGL_SEGMENT 0x400d
#define SLUICE_STATUS_INVALID_SGL_COUNT 0x400e
#define SLUICE_STATUS_SGL_DATA_LENGTH_INVALID 0x400f
#define SLUICE_STATUS_SGL_METADATA_LENGTH_INVALID 0x4010
#define SLUICE_STATUS_SGL_TYPE_INVALID 0x4011
#define SLUICE_STATUS_INVALID_USE_OF_CMB 0x4012
#define SLUICE_STATUS_PRP_OFFSET_INVALID 0x4013
#define SLUICE_STATUS_ATOMIC_WRITE_UNIT_EXCEEDED 0x4014
#define SLUICE_STATUS_OPERATION_DENIED 0x4015
#define SLUICE_STATUS_SGL_OFFSET_INVALID 0x4016
#define SLUICE_STATUS_HOST_IDENTIFIER_INCONSISTENT_FORMAT 0x4018
#define SLUICE_STATUS_KEEP_ALIVE_TIMEOUT_EXPIRED 0x0019
#define SLUICE_STATUS_KEEP_ALIVE_TIMEOUT_INVALID 0x401a
#define SLUICE_STATUS_ABORTED_PREEMPT 0x001b
#define SLUICE_STATUS_SANITIZE_FAILED 0x401c
#define SLUICE_STATUS_SANITIZE_IN_PROGRESS 0x001d
#define SLUICE_STATUS_NAMESPACE_WRITE_PROTECTED 0x4020
#define SLUICE_STATUS_COMMAND_INTERRUPTED 0x0021
#define SLUICE_STATUS_TRANSIENT_TRANSPORT_ERROR 0x0022
#define SLUICE_STATUS_LBA_OUT_OF_RANGE 0x4080
#define SLUICE_STATUS_CAPACITY_EXCEEDED 0x4081
#define SLUICE_STATUS_NAMESPACE_NOT_READY 0x0082
#define SLUICE_STATUS_RESERVATION_CONFLICT 0x4083
#define SLUICE_STATUS_FORMAT_IN_PROGRESS 0x0084

#define SLUICE_STATUS_COMPLETION_QUEUE_INVALID 0x4100
#define SLUICE_STATUS_INVALID_QUEUE_IDENTIFIER 0x4101
#define SLUICE_STATUS_INVALID_QUEUE_SIZE 0x4102
#define SLUICE_STATUS_ABORT_LIMIT_EXCEEDED 0x0103
#define SLUICE_STATUS_AER_LIMIT_EXCEEDED 0x0105
#define SLUICE_STATUS_INVALID_FIRMWARE_SLOT 0x4106
#define SLUICE_STATUS_INVALID_FIRMWARE_IMAGE 0x4107
#define SLUICE_STATUS_INVALID_INTERRUPT_VECTOR 0x4108
#define SLUICE_STATUS_INVALID_LOG_PAGE 0x4109
#define SLUICE_STATUS_INVALID_FORMAT 0x410a
#define SLUICE_STATUS_INVALID_QUEUE_DELETION 0x410c
#define SLUICE_STATUS_FEATURE_NOT_SAVEABLE 0x410d
#define SLUICE_STATUS_FEATURE_NOT_CHANGEABLE 0x410e
#define SLUICE_STATUS_FEATURE_NOT_NAMESPACE_SPECIFIC 0x410f
#define SLUICE_STATUS_NAMESPACE_INSUFFICIENT_CAPACITY 0x4115
#define SLUICE_STATUS_NAMESPACE_IDENTIFIER_UNAVAILABLE 0x4116
#define SLUICE_STATUS_NAMESPACE_ALREADY_ATTACHED 0x4118
#define SLUICE_STATUS_NAMESPACE_IS_PRIVATE 0x4119
#define SLUICE_STATUS_NAMESPACE_NOT_ATTACHED 0x411a
#define SLUICE_STATUS_THIN_PROVISIONING_NOT_SUPPORTED 0x411b
#define SLUICE_STATUS_CONTROLLER_LIST_INVALID 0x411c
#define SLUICE_STATUS_SELF_TEST_IN_PROGRESS 0x011d
#define SLUICE_STATUS_ANA_GROUP_IDENTIFIER_INVALID 0x4124
#define SLUICE_STATUS_NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED 0x4127
#define SLUICE_STATUS_COMMAND_SET_NOT_SUPPORTED 0x4129
#define SLUICE_STATUS_CONFLICTING_ATTRIBUTES 0x4180
#define SLUICE_STATUS_INVALID_PROTECTION_INFORMATION 0x4181
#define SLUICE_STATUS_WRITE_TO_READ_ONLY_RANGE 0x4182
#define SLUICE_STATUS_COMMAND_SIZE_LIMIT_EXCEEDED 0x4183
#define SLUICE_STATUS_INCOMPATIBLE_NAMESPACE 0x4185
#define SLUICE_STATUS_OVERLAPPING_RANGE 0x4187

#define SLUICE_STATUS_WRITE_FAULT 0x0280
#define SLUICE_STATUS_UNRECOVERED_READ_ERROR 0x0281
#define SLUICE_STATUS_COMPARE_FAILURE 0x4285
#define SLUICE_STATUS_ACCESS_DENIED 0x4286
#define SLUICE_STATUS_DEALLOCATED_OR_UNWRITTEN 0x4287

#define SLUICE_STATUS_INTERNAL_PATH_ERROR 0x0300
#define SLUICE_STATUS_ASYMMETRIC_ACCESS_PERSISTENT_LOSS 0x0301
#define SLUICE_STATUS_ASYMMETRIC_ACCESS_INACCESSIBLE 0x0302
#define SLUICE_STATUS_ASYMMETRIC_ACCESS_TRANSITION 0x0303

/* ---- Maps: struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, __u64); ... } name SEC(".maps"); -------- *
 *
 * Each drive has maps of its own, unless they are declared shared: one of that name, kind, sizes and flags
 * then serves all drives whose programs have it. They run at the same time, so counting in such a map takes
 * __sync_fetch_and_add. */

#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_LRU_HASH 9
/* Ranges of blocks to where they are; map_extra is the logarithm of a granule's blocks. Keys have the type
 * __u64, values are struct sluice_translation. */
#define SLUICE_MAP_TYPE_TRANSLATION 1000

/* map_flags: programs only read it; one map for all drives instead of one each. */
#define BPF_F_RDONLY_PROG (1 << 7)
#define SLUICE_F_SHARED (1 << 24)

/* ---- Helpers -------------------------------------------------------------------------------------------- */

/* Flags of an update: insert or replace, only insert, only replace. */
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_EXIST 2

/* The address of a key's value, or 0. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
/* These return 0 or a negative error number: -2 there is no such key, -7 the map is full, -16 another thread
 * is in the middle of a change of this map, -17 there is such a key, -22 this map cannot do that. */
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
/* Nanoseconds of a clock that never goes back. */
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;

#define SLUICE_COUNTERS 64
#define SLUICE_TRACE_BYTES 48
/* Counts the counter of this index one up. */
static long (*const sluice_count)(__u64 index) = (void *)1000;
/* Puts these bytes into the program's trace; longer text is cut. */
static long (*const sluice_trace)(const void *text, __u64 bytes) = (void *)1001;

struct sluice_translation {
    __u64 target; /* the block's place at the target */
    __u32 count;  /* how many blocks from it on are contiguous there, at least */
    __u32 flags;  /* the function's own, and SLUICE_TRANSLATION_WRITABLE: writes may go there unasked */
};
#define SLUICE_TRANSLATION_WRITABLE 1u

/* Asks a translation cache where a block is; 0 if it knows, and else *out is zeros. */
static long (*const sluice_translate)(void *map, __u64 block, struct sluice_translation *out) = (void *)1002;
/* Makes a translation cache forget blocks. */
static long (*const sluice_forget)(void *map, __u64 block, __u64 count) = (void *)1003;

#endif
