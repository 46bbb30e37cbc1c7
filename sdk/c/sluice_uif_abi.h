/* sluice_uif_abi.h: what daemon and function agree on, as docs/reference/sdk.md explains it. A function's author needs none
 * of it: sluice_uif.h is for authors. All numbers are little-endian. */
#ifndef SLUICE_UIF_ABI_H
#define SLUICE_UIF_ABI_H

#include <stdint.h>

#define SLUICE_UIF_VERSION 2
#define SLUICE_UIF_MAGIC 0x4655656369756c73ull /* "sluiceUF" */

#define SLUICE_PAGE_BYTES 4096
#define SLUICE_ENTRY_BYTES 64
#define SLUICE_ENTRIES_MAX 32768
#define SLUICE_REQUESTS_MAX 64
#define SLUICE_DATA_MAX 1048576
#define SLUICE_LAYERS_MAX 7
#define SLUICE_OPTIONS_MAX 4096
#define SLUICE_WORDS_MAX 192
#define SLUICE_CONTROL_BYTES 65536

/* Pages of the rings: header, indices that the daemon writes, indices that the function writes, submissions,
 * and on the next whole page replies. */
#define SLUICE_PAGE_DAEMON 1
#define SLUICE_PAGE_FUNCTION 2
#define SLUICE_PAGE_SUBMISSIONS 3

/* Offsets in a page of indices, each of 32 bits of which 16 count. */
#define SLUICE_INDEX_TAIL 0
#define SLUICE_INDEX_EVENT 64
#define SLUICE_INDEX_HEAD 128

struct sluice_abi_header {
    uint64_t magic;
    uint32_t version;
    uint32_t entries;
    uint64_t arena_bytes;
    uint64_t reserved[5];
};

struct sluice_abi_submission {
    uint64_t tag;
    uint8_t operation;
    uint8_t flags;
    uint8_t kind;
    uint8_t stage;
    uint16_t status;
    uint16_t reserved;
    uint64_t offset;
    uint64_t length;
    uint32_t data_offset;
    uint32_t data_length;
    uint64_t cookie[2];
    uint64_t reserved2;
};

struct sluice_abi_reply {
    uint64_t tag;
    uint8_t disposition;
    uint8_t operation;
    uint8_t flags;
    uint8_t stage;
    uint16_t status;
    uint8_t layer;
    uint8_t reserved;
    uint64_t offset;
    uint64_t length;
    uint64_t cookie[2];
    uint64_t data_offset;
    uint64_t reserved2;
};

struct sluice_abi_hello {
    uint64_t magic;
    uint32_t version;
    uint32_t options;
    uint64_t rings_bytes;
    uint64_t arena_bytes;
};

struct sluice_abi_welcome {
    uint64_t magic;
    uint32_t version;
    uint32_t refused;
    uint8_t words[SLUICE_WORDS_MAX];
    uint8_t interests[8];
    uint32_t block_size;
    uint32_t scratch;
    uint32_t transforms;
    uint32_t pool;
    uint64_t size;
};

enum {
    SLUICE_KIND_COMMAND = 0,
    SLUICE_KIND_RETURNED = 1,
    SLUICE_KIND_DONE = 2,
    SLUICE_KIND_BELOW = 3,
    SLUICE_KIND_START = 4,
    SLUICE_KIND_CONTROL = 5,
    SLUICE_KIND_STOP = 6,
};

enum {
    SLUICE_DISPOSITION_FINISH = 0,
    SLUICE_DISPOSITION_FORWARD = 1,
    SLUICE_DISPOSITION_FORWARD_AND_RETURN = 2,
    SLUICE_DISPOSITION_REQUEST = 3,
    SLUICE_DISPOSITION_READY = 4,
    SLUICE_DISPOSITION_TRANSLATE = 5,
};

enum { SLUICE_TRANSLATION_INSERT = 0, SLUICE_TRANSLATION_FORGET = 1, SLUICE_TRANSLATION_PROTECT = 2 };

enum { SLUICE_FLAG_FUA = 1, SLUICE_FLAG_DEALLOCATE = 2, SLUICE_FLAG_QUIET = 4, SLUICE_FLAG_NEW = 8 };

#endif
