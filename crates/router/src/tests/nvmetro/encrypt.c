// Reads come from the device and are decrypted by the function; writes are the function's, which encrypts and
// writes them. The drive begins at block 100 of the device.
#include "nvmetro.h"

volatile const __u64 first_block = 100;

static int begin(struct bpf_io_ctx *ctx)
{
    switch (ctx->cmd.opcode) {
    case NVME_READ:
        ctx->cmd.slba += first_block;
        return NMBPF_SEND_HQ | NMBPF_HOOK_HCQ | NMBPF_WAIT_FOR_HOOK;
    case NVME_WRITE:
        ctx->cmd.slba += first_block;
        return NMBPF_SEND_FD | NMBPF_WILL_COMPLETE_FD;
    default:
        return NMBPF_SEND_HQ | NMBPF_WILL_COMPLETE_HQ;
    }
}

SEC("nvme_mdev")
int encrypt(struct bpf_io_ctx *ctx)
{
    switch (ctx->current_hook) {
    case NMBPF_HOOK_VSQ:
        return begin(ctx);
    case NMBPF_HOOK_HCQ:
        if (ctx->data)
            return NMBPF_COMPLETE | (ctx->data & 0x7fff);
        return NMBPF_SEND_FD | NMBPF_WILL_COMPLETE_FD;
    default:
        return NMBPF_COMPLETE | NVME_INTERNAL;
    }
}
