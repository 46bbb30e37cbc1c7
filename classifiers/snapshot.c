/* snapshot: commands whose blocks are known go straight to the store.
 *
 * For a drive with the function `snapshot` on top and this path beside its whole stack:
 *
 *   paths = [ { name = "store", below = 1, beyond = true } ]
 *
 * The function tells where the chunks of the drive are (`translations = "chunks"`); the map keeps as much of it as
 * it has room for. A Read, or a Write to a chunk that no version has, goes to the store with its SLBA changed, if
 * all of it lies in one chunk that is known. Everything else is the function's, which tells what it finds: whatever
 * spans chunks, zeroes or deallocates, the first write after a version was made, and a write with FUA, which has
 * to wait for the mapping too. So is Flush: the function has to know when one fails.
 *
 * Counters: 0 Reads and 1 Writes that went straight to the store, 2 those that did not. */
#include "sluice.h"

#define FUNCTION 0
#define STORE 1

/* A granule of 2^7 blocks: a chunk of 64 KiB in blocks of 512 bytes. */
struct {
    __uint(type, SLUICE_MAP_TYPE_TRANSLATION);
    __uint(max_entries, 65536);
    __uint(map_extra, 7);
    __type(key, __u64);
    __type(value, struct sluice_translation);
} chunks SEC(".maps");

SEC("classifier")
sluice_verdict snapshot(struct sluice_context *ctx)
{
    int writes = ctx->opcode == SLUICE_WRITE;
    struct sluice_translation to;

    if (ctx->opcode != SLUICE_READ && !writes)
        return SLUICE_SEND(FUNCTION);
    if ((writes && ctx->fua) || sluice_translate(&chunks, ctx->slba, &to) || to.count < ctx->blocks ||
        (writes && !(to.flags & SLUICE_TRANSLATION_WRITABLE))) {
        sluice_count(2);
        return SLUICE_SEND(FUNCTION);
    }
    ctx->slba = to.target;
    sluice_count(writes);
    return SLUICE_SEND(STORE);
}
