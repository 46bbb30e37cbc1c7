/* encrypt: which commands of a drive meet its function `encrypt`, and which go straight to the device.
 *
 *   functions = [ { kind = "uif", function = "encrypt", ... } ]
 *   paths = [ { name = "device", below = 1 } ]
 *
 * Data goes through the function: a Write meets it first and the device after, a Read the device first and the
 * function after (which of the two is what the function says of itself). A Flush has nothing to encrypt, and
 * deallocated blocks read as something anyway: both go down the path that begins below the function. What this
 * program does not know might show what stands on the device: it is refused. */
#include "sluice.h"

#define FUNCTION 0
#define DEVICE 1

SEC("classifier")
sluice_verdict encrypt(struct sluice_context *ctx)
{
    switch (ctx->opcode) {
    case SLUICE_READ:
    case SLUICE_WRITE:
    case SLUICE_WRITE_ZEROES:
    case SLUICE_COMPARE:
    case SLUICE_VERIFY:
    case SLUICE_COPY:
        return SLUICE_SEND(FUNCTION);
    case SLUICE_FLUSH:
    case SLUICE_DATASET_MANAGEMENT:
        return SLUICE_SEND(DEVICE);
    default:
        return SLUICE_COMPLETE(SLUICE_STATUS_INVALID_OPCODE);
    }
}
