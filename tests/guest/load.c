// Keeps a drive busy for a while and says what that took: of a block device, by Linux's asynchronous I/O; of the
// vfio-user socket of a drive with blocks of 4 KiB, or of a target of the kernel's vhost-scsi (naa.NUMBER), as a guest's
// driver would. The same loop for all.
//
//   load DEVICE|SOCKET|naa.NUMBER read|write BYTES DEPTH MIB SECONDS
//
// Commands of BYTES (a multiple of 4096) begin at random places of the first MIB, DEPTH at a time. Prints commands,
// nanoseconds, and the processor time of the whole system and of this process meanwhile, in nanoseconds, too.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nvme_host.h"
#include "vhost_scsi.h"

enum { BLOCK = 4096, DEPTH_MAX = 63 };

static unsigned depth;
static size_t bytes;
static int is_write;
static uint64_t places, state = 1;

// How a drive is driven.
struct way {
    void (*connect)(const char *path, unsigned depth, size_t bytes);
    void (*start)(unsigned slot, int is_write, uint64_t number);  // in units of BLOCK
    void (*ring)(void);
    unsigned (*wait)(unsigned *slots);
};
static const struct way *way;

// Of a block device.
static int device = -1;
static aio_context_t context;
static struct iocb blocks[DEPTH_MAX], *started[DEPTH_MAX];
static unsigned started_count;
static char *data;

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void aio_connect(const char *path, unsigned most, size_t each) {
    device = open(path, (is_write ? O_RDWR : O_RDONLY) | O_DIRECT);
    if (device < 0) die(path);
    if (syscall(SYS_io_setup, most, &context)) die("io_setup");
    if (posix_memalign((void **)&data, BLOCK, most * each)) die("memory");
    memset(data, 1, most * each);
}

static void aio_start(unsigned slot, int writes, uint64_t number) {
    blocks[slot] = (struct iocb){.aio_data = slot, .aio_lio_opcode = writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD,
                                 .aio_fildes = device, .aio_buf = (uintptr_t)(data + slot * bytes), .aio_nbytes = bytes,
                                 .aio_offset = number * BLOCK};
    started[started_count++] = &blocks[slot];
}

static void aio_ring(void) {
    for (unsigned sent = 0; sent < started_count;) {
        long more = syscall(SYS_io_submit, context, started_count - sent, started + sent);
        if (more <= 0) die("io_submit");
        sent += more;
    }
    started_count = 0;
}

static unsigned aio_wait(unsigned *slots) {
    struct io_event events[DEPTH_MAX];
    long count = syscall(SYS_io_getevents, context, 1, depth, events, NULL);
    if (count < 1) die("io_getevents");
    for (long n = 0; n < count; n++) {
        if (events[n].res != (int64_t)bytes) die("a command failed");
        slots[n] = events[n].data;
    }
    return count;
}

static const struct way AIO = {aio_connect, aio_start, aio_ring, aio_wait},
                        NVME = {nvme_load_connect, nvme_load_start, nvme_load_ring, nvme_load_wait},
                        SCSI = {scsi_load_connect, scsi_load_start, scsi_load_ring, scsi_load_wait};

static const struct way *way_to(const char *path) {
    struct stat about;
    if (!strncmp(path, "naa.", 4)) return &SCSI;
    if (stat(path, &about)) die(path);
    return S_ISSOCK(about.st_mode) ? &NVME : &AIO;
}

static void start(unsigned slot) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    way->start(slot, is_write, (state >> 33) % places * (bytes / BLOCK));
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000u + now.tv_nsec;
}

// Of all processors, and of this process. The first line of /proc/stat: user nice system idle iowait irq softirq.
static void cpu_ns(uint64_t *whole, uint64_t *own) {
    uint64_t t[7];
    FILE *file = fopen("/proc/stat", "r");
    if (!file || fscanf(file, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, t, t + 1,
                        t + 2, t + 3, t + 4, t + 5, t + 6) != 7) die("/proc/stat");
    fclose(file);
    *whole = (t[0] + t[1] + t[2] + t[5] + t[6]) * (1000000000u / sysconf(_SC_CLK_TCK));
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    *own = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
}

// A mark for the counter of instructions (count_instructions.c), and nothing without it.
#define MARK(kind) __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00, 0xce, 0xd1, 0x51, " #kind ::: "memory")

int main(int count, char **words) {
    if (count != 7) die("usage: load DEVICE|SOCKET read|write BYTES DEPTH MIB SECONDS");
    is_write = !strcmp(words[2], "write");
    bytes = strtoul(words[3], NULL, 10);
    depth = strtoul(words[4], NULL, 10);
    places = (strtoull(words[5], NULL, 10) << 20) / bytes;
    double seconds = atof(words[6]);
    if (!depth || depth > DEPTH_MAX || !bytes || bytes % BLOCK || !places) die("this load is not possible");
    way = way_to(words[1]);
    way->connect(words[1], depth, bytes);
    uint64_t whole[2], own[2], commands = 0;
    unsigned slots[DEPTH_MAX], in_flight = depth;
    cpu_ns(&whole[0], &own[0]);
    MARK(0);
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9);
    for (unsigned slot = 0; slot < depth; slot++) start(slot);
    way->ring();
    while (in_flight) {
        unsigned done = way->wait(slots);
        commands += done;
        if (now_ns() >= end) {
            in_flight -= done;
            continue;
        }
        for (unsigned n = 0; n < done; n++) start(slots[n]);
        way->ring();
    }
    uint64_t elapsed = now_ns() - begin;
    MARK(1);
    cpu_ns(&whole[1], &own[1]);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", commands, elapsed, whole[1] - whole[0], own[1] - own[0]);
}
