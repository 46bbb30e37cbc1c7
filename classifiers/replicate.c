/* replicate: the function sees what changes the drive, and reads never leave the fast path.
 *
 * Path 0 goes through the function; path 1 enters the stack below it, at the primary:
 *
 *   paths = [ { name = "primary", below = 1 } ] */
#include "sluice.h"

SEC("classifier")
sluice_verdict replicate(struct sluice_context *ctx)
{
    switch (ctx->opcode) {
    case SLUICE_READ:
    case SLUICE_COMPARE:
    case SLUICE_VERIFY:
        return SLUICE_SEND(1);
    default:
        return SLUICE_SEND(0);
    }
}
