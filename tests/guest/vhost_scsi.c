// See vhost_scsi.h. The queue is a split virtqueue with event indices, as Linux's own driver has it: the kernel is
// told only if it asked to be, and so is the driver.
#define _GNU_SOURCE
#include "vhost_scsi.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vhost.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <linux/virtio_scsi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, ENTRIES = 256, PARTS = 3, QUEUES = 3, REQUESTS = 2 };  // queues: control, events, requests
enum { READ_16 = 0x88, WRITE_16 = 0x8a, TEST_UNIT_READY = 0 };
enum { RINGS = 16384, HEADS = 512 };  // bytes: of a queue's rings, and of a request with its response
enum { DATA = QUEUES * RINGS + 12 * PAGE };  // where the slots' data begins

static int vhost = -1, kick, interrupt;
static size_t bytes;
static char *memory;  // the rings of all queues, then heads and data of each slot
static struct vring queue;
static uint16_t told, seen;  // what the kernel was told of the available ring; what was seen of the used one

static void die(const char *what) {
    fprintf(stderr, "vhost_scsi: %s (%s)\n", what, strerror(errno));
    exit(2);
}

static void ask(unsigned long request, void *argument, const char *what) {
    if (ioctl(vhost, request, argument) < 0) die(what);
}

static struct virtio_scsi_cmd_req *request_of(unsigned slot) { return (void *)(memory + QUEUES * RINGS + slot * HEADS); }
static struct virtio_scsi_cmd_resp *response_of(unsigned slot) { return (void *)((char *)request_of(slot) + HEADS / 2); }
static char *data_of(unsigned slot) { return memory + DATA + slot * bytes; }

// One region: an address of the "machine" is a distance from its beginning.
static uint64_t address(const void *at) { return (const char *)at - memory; }

static void share(size_t size) {
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) die("memory");
    struct { struct vhost_memory table; struct vhost_memory_region region; } map = {
        {.nregions = 1}, {.memory_size = size, .userspace_addr = (uintptr_t)memory}};
    ask(VHOST_SET_MEM_TABLE, &map, "VHOST_SET_MEM_TABLE");
}

static void make_queue(unsigned index) {
    struct vring ring;
    vring_init(&ring, ENTRIES, memory + index * RINGS, PAGE);
    struct vhost_vring_state size = {index, ENTRIES}, base = {index, 0};
    struct vhost_vring_addr at = {.index = index, .desc_user_addr = (uintptr_t)ring.desc,
                                  .avail_user_addr = (uintptr_t)ring.avail, .used_user_addr = (uintptr_t)ring.used};
    struct vhost_vring_file kicks = {index, eventfd(0, 0)}, calls = {index, eventfd(0, 0)};
    ask(VHOST_SET_VRING_NUM, &size, "VHOST_SET_VRING_NUM");
    ask(VHOST_SET_VRING_BASE, &base, "VHOST_SET_VRING_BASE");
    ask(VHOST_SET_VRING_ADDR, &at, "VHOST_SET_VRING_ADDR");
    ask(VHOST_SET_VRING_KICK, &kicks, "VHOST_SET_VRING_KICK");
    ask(VHOST_SET_VRING_CALL, &calls, "VHOST_SET_VRING_CALL");
    if (index != REQUESTS) return;
    queue = ring;
    kick = kicks.fd;
    interrupt = calls.fd;
}

// A request of a slot, with or without data, for the next ring.
static void start(unsigned slot, uint8_t opcode, uint64_t block) {
    unsigned first = slot * PARTS;
    int has_data = opcode != TEST_UNIT_READY, is_write = opcode == WRITE_16;
    uint32_t blocks = has_data ? bytes / PAGE : 0;
    struct virtio_scsi_cmd_req *request = request_of(slot);
    *request = (struct virtio_scsi_cmd_req){.lun = {1, 1}, .tag = slot, .cdb = {opcode}};
    for (int n = 0; has_data && n < 8; n++) request->cdb[2 + n] = block >> (56 - 8 * n);
    for (int n = 0; has_data && n < 4; n++) request->cdb[10 + n] = blocks >> (24 - 8 * n);
    struct vring_desc head = {address(request), sizeof *request, VRING_DESC_F_NEXT, first + 1};
    struct vring_desc answer = {address(response_of(slot)), sizeof(struct virtio_scsi_cmd_resp), VRING_DESC_F_WRITE, 0};
    struct vring_desc data = {address(data_of(slot)), bytes, is_write ? 0 : VRING_DESC_F_WRITE, 0};
    struct vring_desc *parts = &queue.desc[first];
    // What the device reads comes before what it writes.
    parts[0] = head;
    parts[1] = is_write ? data : answer;
    parts[2] = is_write ? answer : data;
    if (has_data) {
        parts[1].flags |= VRING_DESC_F_NEXT;
        parts[1].next = first + 2;
    }
    uint16_t next = queue.avail->idx;
    queue.avail->ring[next % ENTRIES] = first;
    __atomic_store_n(&queue.avail->idx, next + 1, __ATOMIC_RELEASE);
}

// Waits for a request; its slot. Those that failed have a status.
static void take(unsigned *slots, unsigned *count) {
    while (seen != __atomic_load_n(&queue.used->idx, __ATOMIC_ACQUIRE))
        slots[(*count)++] = queue.used->ring[seen++ % ENTRIES].id / PARTS;
}

static unsigned wait_for(unsigned *slots) {
    unsigned count = 0;
    for (;;) {
        take(slots, &count);
        if (count) return count;
        vring_used_event(&queue) = seen;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        take(slots, &count);
        uint64_t times;
        if (!count && read(interrupt, &times, sizeof times) != sizeof times) die("the interrupt");
    }
}

static int is_good(unsigned slot) {
    struct virtio_scsi_cmd_resp *response = response_of(slot);
    return response->response == VIRTIO_SCSI_S_OK && !response->status;
}

// The first answers of a target tell that it is new.
static void until_ready(void) {
    for (int tries = 0; tries < 5; tries++) {
        unsigned slots[ENTRIES];
        start(0, TEST_UNIT_READY, 0);
        scsi_load_ring();
        wait_for(slots);
        if (is_good(0)) return;
    }
    die("the disk does not become ready");
}

void scsi_load_connect(const char *wwpn, unsigned depth, size_t bytes_each) {
    if (depth > ENTRIES / PARTS) die("the load does not fit the queue");
    bytes = bytes_each;
    vhost = open("/dev/vhost-scsi", O_RDWR);
    if (vhost < 0) die("/dev/vhost-scsi");
    ask(VHOST_SET_OWNER, NULL, "VHOST_SET_OWNER");
    uint64_t features, wanted = 1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_RING_F_EVENT_IDX;
    ask(VHOST_GET_FEATURES, &features, "VHOST_GET_FEATURES");
    if ((features & wanted) != wanted) die("vhost-scsi lacks virtio 1 or event indices");
    ask(VHOST_SET_FEATURES, &wanted, "VHOST_SET_FEATURES");
    share(DATA + depth * bytes);
    for (unsigned index = 0; index < QUEUES; index++) make_queue(index);
    struct vhost_scsi_target target = {.vhost_tpgt = 1};
    snprintf(target.vhost_wwpn, sizeof target.vhost_wwpn, "%s", wwpn);
    ask(VHOST_SCSI_SET_ENDPOINT, &target, "VHOST_SCSI_SET_ENDPOINT");
    until_ready();
}

void scsi_load_start(unsigned slot, int is_write, uint64_t number) { start(slot, is_write ? WRITE_16 : READ_16, number); }

void scsi_load_ring(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint16_t before = told;
    told = queue.avail->idx;
    uint64_t one = 1;
    if (vring_need_event(vring_avail_event(&queue), told, before) && write(kick, &one, sizeof one) != sizeof one) die("kick");
}

unsigned scsi_load_wait(unsigned *slots) {
    unsigned count = wait_for(slots);
    for (unsigned n = 0; n < count; n++)
        if (!is_good(slots[n])) die("a command failed");
    return count;
}
