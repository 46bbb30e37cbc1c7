// A small NVMe host for a drive behind a vfio-user socket, so that a guest without a nested VM can
// use a daemon inside it. It takes the short way everywhere; it shares nothing with the daemon's own
// code, which is the point. Stamping polls and has one command at a time in each queue; a load has many
// in one queue, with shadow doorbells and an interrupt, as a guest's driver does it.
#define _GNU_SOURCE
#include "nvme_host.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { VERSION = 1, DMA_MAP = 2, SET_IRQS = 8, REGION_READ = 9, REGION_WRITE = 10 };  // vfio-user commands
enum { BAR0 = 0, CONFIG = 7 };                                                   // regions
enum { CC = 0x14, CSTS = 0x1c, AQA = 0x24, ASQ = 0x28, ACQ = 0x30, DOORBELLS = 0x1000 };
enum { CREATE_SQ = 1, CREATE_CQ = 5, DOORBELL_BUFFER = 0x7c, FLUSH = 0, WRITE = 1, READ = 2 };  // opcodes
enum { PAGE = 4096, DEPTH = 64, PAGES_PER_QUEUE = 3 };                           // SQ, CQ and data: a page each
static const uint64_t IOVA = 0x100000, POOL = 0x40000000;                        // where the host's memory appears

struct header { uint16_t id, command; uint32_t size, flags, error; };
struct command { uint8_t opcode, flags; uint16_t cid; uint32_t nsid; uint64_t unused, metadata, prp1, prp2; uint32_t cdw[6]; };
struct completion { uint32_t result, reserved; uint16_t head, sq; uint16_t cid, status; };
struct queue { unsigned id; volatile struct command *sq; volatile struct completion *cq; char *data; uint64_t iova; uint16_t tail, head, phase; };

static int sock;
static uint16_t last_id;
static pthread_mutex_t socket_lock = PTHREAD_MUTEX_INITIALIZER;
static struct queue queues[65];  // 0 is the admin queue, then one for each worker

// Of a load.
static int interrupt = -1;                          // an eventfd
static volatile uint32_t *shadow, *event_index;     // NULL: every doorbell is a message
static struct { char *at; size_t bytes; } pool;     // both shadow pages, then a list page and data for each slot

static void die(const char *what) {
    fprintf(stderr, "nvme_host: %s (%s)\n", what, strerror(errno));
    exit(2);
}

static void receive(void *to, size_t size) {
    for (size_t got = 0; got < size;) {
        ssize_t n = recv(sock, (char *)to + got, size - got, 0);
        if (n <= 0) die("the daemon closed the socket");
        got += n;
    }
}

// One request and its reply: `size` bytes of `body` go out (with a descriptor unless -1), the reply's
// body replaces them, cut to `room`.
static void call(uint16_t command, void *body, size_t size, size_t room, int fd) {
    pthread_mutex_lock(&socket_lock);
    struct header header = {.id = ++last_id, .command = command, .size = sizeof header + size};
    struct iovec parts[] = {{&header, sizeof header}, {body, size}};
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if (sendmsg(sock, &message, MSG_NOSIGNAL) != (ssize_t)header.size) die("send");
    uint16_t id = header.id;
    receive(&header, sizeof header);
    char reply[PAGE];
    size_t length = header.size - sizeof header;
    if (header.id != id || length > sizeof reply) die("a reply to something else");
    receive(reply, length);
    if (header.flags & 1 << 5) { errno = header.error; die("the daemon refused a message"); }
    memcpy(body, reply, length < room ? length : room);
    pthread_mutex_unlock(&socket_lock);
}

struct access { uint64_t offset; uint32_t region, count; uint64_t value; } __attribute__((packed));

static void write_register(uint32_t region, uint64_t offset, uint32_t count, uint64_t value) {
    struct access access = {offset, region, count, value};
    call(REGION_WRITE, &access, 16 + count, 16, -1);
}

static uint64_t read_register(uint64_t offset, uint32_t count) {
    struct access access = {offset, BAR0, count, 0};
    call(REGION_READ, &access, 16, sizeof access, -1);
    return access.value;
}

// The new tail of a submission queue (side 0) or head of a completion queue (side 1). With shadow doorbells the
// daemon is told only if it asked to be.
static void ring(struct queue *queue, unsigned side, uint16_t value) {
    unsigned number = 2 * queue->id + side;
    if (shadow && queue->id) {
        uint16_t before = shadow[number];
        shadow[number] = value;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if ((uint16_t)(value - event_index[number] - 1) >= (uint16_t)(value - before)) return;
    }
    write_register(BAR0, DOORBELLS + 4 * number, 4, value);
}

// Submits one command and waits for it; returns its status without the phase bit.
static uint16_t run(struct queue *queue, struct command command) {
    command.cid = queue->tail;
    memcpy((void *)&queue->sq[queue->tail], &command, sizeof command);
    queue->tail = (queue->tail + 1) % DEPTH;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    ring(queue, 0, queue->tail);
    volatile struct completion *entry = &queue->cq[queue->head];
    for (int wait = 0; (entry->status & 1) != queue->phase; wait++) {
        if (wait > 200 * 1000) die("a command was not completed");
        usleep(wait < 100 ? 0 : 100);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    uint16_t status = entry->status >> 1;
    if (entry->cid != command.cid) die("a completion of another command");
    if (++queue->head == DEPTH) { queue->head = 0; queue->phase ^= 1; }
    ring(queue, 1, queue->head);
    return status;
}

static void must(struct queue *queue, struct command command) {
    uint16_t status = run(queue, command);
    if (!status) return;
    fprintf(stderr, "nvme_host: opcode %#x on queue %u: status %#x\n", command.opcode, queue->id, status);
    exit(2);
}

static void open_socket(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) die("the socket's path is too long");
    strcpy(address.sun_path, path);
    sock = socket(AF_UNIX, SOCK_STREAM, 0);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address)) die(path);
    // a JSON of capabilities makes the daemon expect doorbells as messages
    static const char json[] = "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576}}";
    char body[PAGE] = {0, 0, 1, 0};  // version 0.1
    memcpy(body + 4, json, sizeof json);
    call(VERSION, body, 4 + sizeof json, sizeof body, -1);
}

// Memory in a file that the daemon maps too, at an I/O address.
static char *share(uint64_t iova, size_t size) {
    int fd = memfd_create("nvme-host", 0);
    if (fd < 0 || ftruncate(fd, size)) die("memfd");
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) die("mmap");
    struct { uint32_t argsz, flags; uint64_t offset, address, size; } map = {32, 3, 0, iova, size};
    call(DMA_MAP, &map, sizeof map, sizeof map, fd);
    close(fd);
    return memory;
}

// All queues, each with a buffer.
static void share_queues(unsigned count) {
    char *memory = share(IOVA, count * PAGES_PER_QUEUE * PAGE);
    for (unsigned id = 0; id < count; id++) {
        char *at = memory + id * PAGES_PER_QUEUE * PAGE;
        queues[id] = (struct queue){.id = id, .sq = (void *)at, .cq = (void *)(at + PAGE), .data = at + 2 * PAGE,
                                    .iova = IOVA + id * PAGES_PER_QUEUE * PAGE, .phase = 1};
    }
}

static void enable(void) {
    write_register(CONFIG, 4, 2, 0x6);  // memory space, bus master
    write_register(BAR0, AQA, 4, (DEPTH - 1) << 16 | (DEPTH - 1));
    write_register(BAR0, ASQ, 8, queues[0].iova);
    write_register(BAR0, ACQ, 8, queues[0].iova + PAGE);
    write_register(BAR0, CC, 4, 4 << 20 | 6 << 16 | 1);  // entries of 16 and 64 bytes, enabled
    for (int wait = 0; !(read_register(CSTS, 4) & 1); wait++) {
        if (wait > 5000) die("the controller does not become ready");
        usleep(1000);
    }
}

static void create_queues(unsigned workers) {
    uint32_t announced = interrupt < 0 ? 1 : 1 << 16 | 3;  // vector 1
    for (unsigned id = 1; id <= workers; id++) {
        uint32_t size = (DEPTH - 1) << 16 | id;
        must(&queues[0], (struct command){.opcode = CREATE_CQ, .prp1 = queues[id].iova + PAGE, .cdw = {size, announced}});
        must(&queues[0], (struct command){.opcode = CREATE_SQ, .prp1 = queues[id].iova, .cdw = {size, id << 16 | 1}});
    }
}

void nvme_connect(const char *socket_path, unsigned workers) {
    open_socket(socket_path);
    share_queues(workers + 1);
    enable();
    create_queues(workers);
}

static struct command block_command(struct queue *queue, uint8_t opcode, uint64_t number) {
    return (struct command){.opcode = opcode, .nsid = 1, .prp1 = queue->iova + 2 * PAGE,
                            .cdw = {(uint32_t)number, (uint32_t)(number >> 32)}};
}

void nvme_write(unsigned worker, const void *block, uint64_t number) {
    struct queue *queue = &queues[worker + 1];
    memcpy(queue->data, block, PAGE);
    must(queue, block_command(queue, WRITE, number));
}

void nvme_read(unsigned worker, void *block, uint64_t number) {
    struct queue *queue = &queues[worker + 1];
    must(queue, block_command(queue, READ, number));
    memcpy(block, queue->data, PAGE);
}

void nvme_flush(unsigned worker) {
    must(&queues[worker + 1], (struct command){.opcode = FLUSH, .nsid = 1});
}

// --- a load --------------------------------------------------------------------------------

static size_t slot_at(unsigned slot) { return 2 * PAGE + slot * (PAGE + pool.bytes); }

// Pages of a slot's data after the first, for commands of more than two pages.
static void fill_list(unsigned slot) {
    uint64_t *list = (void *)(pool.at + slot_at(slot));
    for (size_t page = 1; page * PAGE < pool.bytes; page++) list[page - 1] = POOL + slot_at(slot) + (1 + page) * PAGE;
}

void nvme_load_connect(const char *socket_path, unsigned depth, size_t bytes) {
    if (depth >= DEPTH || bytes % PAGE || bytes / PAGE > PAGE / 8) die("the load does not fit the queue");
    open_socket(socket_path);
    share_queues(2);
    pool.bytes = bytes;
    pool.at = share(POOL, slot_at(depth));
    for (unsigned slot = 0; slot < depth; slot++) fill_list(slot);
    // As a virtual machine's: signals to a blocking one take a thread of the daemon's kernel.
    interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct { uint32_t argsz, flags, index, start, count; } irqs = {20, 1 << 5 | 1 << 2, 2, 1, 1};  // MSI-X, trigger, eventfd
    call(SET_IRQS, &irqs, sizeof irqs, 0, interrupt);
    enable();
    must(&queues[0], (struct command){.opcode = DOORBELL_BUFFER, .prp1 = POOL, .prp2 = POOL + PAGE});
    shadow = (void *)pool.at;
    event_index = (void *)(pool.at + PAGE);
    create_queues(1);
}

void nvme_load_start(unsigned slot, int is_write, uint64_t number) {
    struct queue *queue = &queues[1];
    uint64_t data = POOL + slot_at(slot) + PAGE;
    uint64_t second = pool.bytes <= PAGE ? 0 : pool.bytes == 2 * PAGE ? data + PAGE : data - PAGE;
    struct command command = {.opcode = is_write ? WRITE : READ, .cid = slot, .nsid = 1, .prp1 = data, .prp2 = second,
                              .cdw = {(uint32_t)number, (uint32_t)(number >> 32), pool.bytes / PAGE - 1}};
    memcpy((void *)&queue->sq[queue->tail], &command, sizeof command);
    queue->tail = (queue->tail + 1) % DEPTH;
}

void nvme_load_ring(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    ring(&queues[1], 0, queues[1].tail);
}

unsigned nvme_load_wait(unsigned *slots) {
    struct queue *queue = &queues[1];
    unsigned count = 0;
    for (;;) {
        volatile struct completion *entry = &queue->cq[queue->head];
        if ((entry->status & 1) == queue->phase) {
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (entry->status >> 1) die("a command failed");
            slots[count++] = entry->cid;
            if (++queue->head == DEPTH) { queue->head = 0; queue->phase ^= 1; }
        } else if (count) {
            ring(queue, 1, queue->head);
            return count;
        } else {
            uint64_t times;
            struct pollfd arrival = {.fd = interrupt, .events = POLLIN};
            if (poll(&arrival, 1, -1) != 1 || read(interrupt, &times, sizeof times) != sizeof times) die("the interrupt");
        }
    }
}
