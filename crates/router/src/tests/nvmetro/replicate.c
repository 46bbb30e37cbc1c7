// Reads are the device's; whatever changes something goes to both, and counts when both have answered.
#include "nvmetro.h"

SEC("nvme_mdev")
int replicate(struct bpf_io_ctx *ctx)
{
    if (ctx->cmd.opcode == NVME_READ)
        return NMBPF_SEND_HQ | NMBPF_WILL_COMPLETE_HQ;
    return NMBPF_SEND_HQ | NMBPF_SEND_FD | NMBPF_WILL_COMPLETE_HQ;
}
