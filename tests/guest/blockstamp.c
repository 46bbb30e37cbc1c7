// Writes blocks that say who wrote them and when, and checks afterwards that none that had been
// promised is lost. It runs in guests and on the host; DEV is a block device, an image file, or the
// vfio-user socket of a drive whose first namespace has blocks of 4 KiB.
//
//   blockstamp write DEV WORKERS BLOCKS FLUSH_EVERY LIMIT   prints "stamp W I" for what is promised
//   blockstamp check DEV WORKERS BLOCKS < LINES             reads such lines; exit 1 if something is lost
//
// Worker W owns BLOCKS (a power of two) blocks of 4 KiB and writes them over and over in a
// scattered order, one write at a time; its I-th write carries (W, I). With FLUSH_EVERY 0 a write
// is promised when it is acknowledged; else every FLUSH_EVERY writes are promised by a flush.
// So after "stamp W I" a block of W must hold the last write to it up to I, or a later one.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvme_host.h"

enum { BLOCK = 4096, WORDS = BLOCK / 8, MAX_WORKERS = 64 };
static const uint64_t MAGIC = 0x706d617473656373;  // any number that is not likely elsewhere

static int device = -1;  // stays -1 for a vfio-user socket
static uint64_t workers, blocks, flush_every, limit;

static void die(const char *what) {
    fprintf(stderr, "blockstamp: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void put_block(unsigned worker, const void *block, uint64_t number) {
    if (device < 0) nvme_write(worker, block, number);
    else if (pwrite(device, block, BLOCK, number * BLOCK) != BLOCK) die("write");
}

static void get_block(void *block, uint64_t number) {
    if (device < 0) nvme_read(0, block, number);
    else if (pread(device, block, BLOCK, number * BLOCK) != BLOCK) die("read");
}

static void flush(unsigned worker) {
    if (device < 0) nvme_flush(worker);
    else if (fdatasync(device)) die("flush");
}

static void open_device(const char *path, int flags) {
    struct stat about;
    if (stat(path, &about)) die(path);
    if (S_ISSOCK(about.st_mode)) {
        nvme_connect(path, workers);
        return;
    }
    device = open(path, flags | O_DIRECT);
    if (device < 0 && errno == EINVAL) device = open(path, flags);
    if (device < 0) die(path);
}

// The block, in the whole device, of a worker's write: an odd factor visits all before any twice.
static uint64_t block_of(uint64_t worker, uint64_t write) {
    return worker * blocks + (write * 0x9e3779b1u & (blocks - 1));
}

static void fill(uint64_t *block, uint64_t worker, uint64_t write) {
    block[0] = MAGIC;
    block[1] = worker;
    block[2] = write;
    uint64_t pattern = (worker << 48 ^ write) * 0x9e3779b97f4a7c15u;
    for (int i = 3; i < WORDS; i++) block[i] = pattern + i;
}

static void *buffer(void) {
    void *memory;
    if (posix_memalign(&memory, BLOCK, BLOCK)) die("memory");
    return memory;
}

static void *work(void *argument) {
    uint64_t worker = (uintptr_t)argument, *block = buffer();
    for (uint64_t turn = 0; !limit || turn < limit; turn++) {
        fill(block, worker, turn);
        put_block(worker, block, block_of(worker, turn));
        if (flush_every) {
            if ((turn + 1) % flush_every) continue;
            flush(worker);
        }
        char line[64];  // one write(2), so that lines of different workers do not mix
        int length = snprintf(line, sizeof line, "stamp %" PRIu64 " %" PRIu64 "\n", worker, turn);
        if (write(STDOUT_FILENO, line, length) != length) die("report");
    }
    return NULL;
}

static int write_stamps(void) {
    pthread_t threads[MAX_WORKERS];
    for (uint64_t w = 0; w < workers; w++)
        if (pthread_create(&threads[w], NULL, work, (void *)(uintptr_t)w)) die("thread");
    for (uint64_t w = 0; w < workers; w++) pthread_join(threads[w], NULL);
    return 0;
}

// One block against what was promised: `promised` is the last write known to be safe, or -1.
static const char *verdict(const uint64_t *block, uint64_t number, int64_t promised) {
    uint64_t worker = number / blocks, wanted[WORDS];
    int64_t needed = -1;  // the last promised write to this block
    for (int64_t write = promised; write >= 0 && write > promised - (int64_t)blocks; write--)
        if (block_of(worker, write) == number) { needed = write; break; }
    if (block[0] != MAGIC) return needed < 0 && !block[0] ? NULL : "holds no stamp";
    if (block[1] != worker || block_of(worker, block[2]) != number) return "holds another block's stamp";
    fill(wanted, worker, block[2]);
    if (memcmp(block, wanted, BLOCK)) return "is torn";
    return (int64_t)block[2] < needed ? "holds an older write" : NULL;
}

static int check_stamps(void) {
    int64_t promised[MAX_WORKERS];
    uint64_t worker, write, total = 0, lost = 0, *block = buffer();
    for (int w = 0; w < MAX_WORKERS; w++) promised[w] = -1;
    while (scanf(" stamp %" SCNu64 " %" SCNu64, &worker, &write) == 2)
        if (worker < workers && (int64_t)write > promised[worker]) promised[worker] = write;
    for (uint64_t w = 0; w < workers; w++) total += promised[w] + 1;
    for (uint64_t number = 0; number < workers * blocks; number++) {
        get_block(block, number);
        const char *why = verdict(block, number, promised[number / blocks]);
        if (why && lost++ < 3) printf("block %" PRIu64 " %s (promised up to write %" PRId64 ")\n", number, why,
                                       promised[number / blocks]);
    }
    printf("%" PRIu64 " writes promised, %" PRIu64 " blocks wrong\n", total, lost);
    return lost || !total;
}

int main(int count, char **words) {
    int writing = count == 7 && !strcmp(words[1], "write");
    if (!writing && !(count == 5 && !strcmp(words[1], "check"))) {
        fprintf(stderr, "usage: blockstamp write DEV WORKERS BLOCKS FLUSH_EVERY LIMIT | check DEV WORKERS BLOCKS\n");
        return 2;
    }
    workers = strtoull(words[3], NULL, 0);
    blocks = strtoull(words[4], NULL, 0);
    if (!workers || workers > MAX_WORKERS || !blocks || blocks & (blocks - 1)) die("bad WORKERS or BLOCKS");
    open_device(words[2], writing ? O_RDWR : O_RDONLY);
    if (!writing) return check_stamps();
    flush_every = strtoull(words[5], NULL, 0);
    limit = strtoull(words[6], NULL, 0);
    return write_stamps();
}
