/* The names of NVMetro's published interface that the programs here use, written from its description. */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))

struct nvme_rw_command {
    __u8 opcode;
    __u8 flags;
    __u16 command_id;
    __u32 nsid;
    __u64 rsvd2;
    __u64 metadata;
    __u64 dptr[2];
    __u64 slba;
    __u16 length;
    __u16 control;
    __u32 rest[3];
};

struct bpf_io_ctx {
    struct nvme_rw_command cmd;
    __u32 sqid;
    __u32 current_hook;
    __u32 iostate;
    __u32 data;
    __u32 aux[3];
};

enum {
    NMBPF_HOOK_VSQ = 1 << 16,
    NMBPF_HOOK_HCQ = 1 << 17,
    NMBPF_SEND_HQ = 1 << 22,
    NMBPF_SEND_FD = 1 << 23,
    NMBPF_COMPLETE = 0,
    NMBPF_WILL_COMPLETE_HQ = 1 << 28,
    NMBPF_WILL_COMPLETE_FD = 2 << 28,
    NMBPF_WAIT_FOR_HOOK = 7 << 28,
};

enum { NVME_WRITE = 1, NVME_READ = 2, NVME_INTERNAL = 6 };
