/* sluice_serve.c: the process of a function: rings, daemons, and one loop around them. docs/reference/sdk.md has the layout of
 * the memory and the reasons of the barriers. */
#define _GNU_SOURCE
#include "sluice_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct sluice_abi_submission) == SLUICE_ENTRY_BYTES, "one cache line");
_Static_assert(sizeof(struct sluice_abi_reply) == SLUICE_ENTRY_BYTES, "one cache line");

#define HANDSHAKE_MS 5000
#define BACKLOG 64
#define READABLE_MAX 64
/* How long an idle process polls before it sleeps, at most; and a sleep that was not worth it. */
#define SPIN_MAX_NS 50000u
#define SHORT_SLEEP_NS 200000u
/* Busy turns between two looks at the sockets. */
#define TURNS_PER_LOOK 4096
/* When to see again if a full ring has room. */
#define FULL_NS 1000000u

static uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- The rings ------------------------------------------------------------------------------------------- */

static _Atomic uint32_t *word(struct sluice_io *io, size_t page, size_t offset)
{
    return (_Atomic uint32_t *)(void *)(io->rings + page * SLUICE_PAGE_BYTES + offset);
}

static uint16_t read_index(struct sluice_io *io, size_t page, size_t offset)
{
    return (uint16_t)atomic_load_explicit(word(io, page, offset), memory_order_acquire);
}

static void write_index(struct sluice_io *io, size_t offset, uint16_t value)
{
    atomic_store_explicit(word(io, SLUICE_PAGE_FUNCTION, offset), value, memory_order_release);
}

static void *place(struct sluice_io *io, size_t ring, uint16_t number)
{
    size_t ring_bytes = (size_t)io->entries * SLUICE_ENTRY_BYTES;
    ring_bytes = (ring_bytes + SLUICE_PAGE_BYTES - 1) / SLUICE_PAGE_BYTES * SLUICE_PAGE_BYTES;
    size_t at = SLUICE_PAGE_SUBMISSIONS * SLUICE_PAGE_BYTES + ring * ring_bytes;
    return io->rings + at + (size_t)(number & (io->entries - 1)) * SLUICE_ENTRY_BYTES;
}

/* How many entries wait; shows the daemon which places are free again. */
static uint16_t waiting(struct sluice_io *io)
{
    write_index(io, SLUICE_INDEX_HEAD, io->head);
    return (uint16_t)(read_index(io, SLUICE_PAGE_DAEMON, SLUICE_INDEX_TAIL) - io->head);
}

/* Puts what was said into the ring, as far as it fits, and rings for a daemon that sleeps. */
static void publish(struct sluice_io *io)
{
    size_t sent = 0;
    if (io->said_count == 0)
        return;
    uint16_t taken = read_index(io, SLUICE_PAGE_DAEMON, SLUICE_INDEX_HEAD);
    while (sent < io->said_count && (uint16_t)(io->tail - taken) < io->entries)
        memcpy(place(io, 1, io->tail++), &io->said[sent++], SLUICE_ENTRY_BYTES);
    io->said_count -= sent;
    memmove(io->said, io->said + sent, io->said_count * sizeof *io->said);
    if (sent == 0)
        return;
    uint16_t old = io->published;
    io->published = io->tail;
    write_index(io, SLUICE_INDEX_TAIL, io->tail);
    /* The new tail is out before the daemon's event index is read: it does the same the other way round. */
    atomic_thread_fence(memory_order_seq_cst);
    uint16_t event = read_index(io, SLUICE_PAGE_DAEMON, SLUICE_INDEX_EVENT);
    if ((uint16_t)(io->tail - event - 1) < (uint16_t)(io->tail - old)) {
        uint64_t one = 1;
        /* A bell that is full has been rung. */
        if (write(io->bell, &one, sizeof one) < 0)
            return;
    }
}

/* All that the daemon has said, and what time it is. Returns how much there was; below zero if it broke the rules. */
static int turn(struct sluice_io *io, uint64_t now_ns)
{
    uint16_t count = waiting(io);
    if (count > io->entries)
        return -1;
    io->now_ns = now_ns;
    for (uint16_t n = 0; n < count; n++) {
        struct sluice_abi_submission entry;
        memcpy(&entry, place(io, 0, io->head++), sizeof entry);
        sluice_take(io, &entry);
    }
    sluice_expire(io);
    publish(io);
    return count;
}

/* ---- Daemons come and go --------------------------------------------------------------------------------- */

static void let_go(struct sluice_io *io)
{
    if (io->self && io->function->close)
        io->function->close(io->self);
    if (io->rings)
        munmap(io->rings, io->rings_bytes);
    if (io->arena)
        munmap(io->arena, io->arena_bytes);
    int fds[] = { io->socket, io->doorbell, io->bell };
    for (size_t n = 0; n < 3; n++)
        if (fds[n] >= 0)
            close(fds[n]);
    free(io->said);
    free(io->held);
    free(io->resumed);
    free(io->pool);
    free(io->answer);
    free(io);
}

static uint8_t *map(int fd, uint64_t bytes)
{
    struct stat stat;
    if (bytes == 0 || bytes > SIZE_MAX || fstat(fd, &stat) != 0 || (uint64_t)stat.st_size < bytes)
        return NULL;
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Receives the daemon's message and its four descriptors. Returns its length; below zero if there is none. */
static ssize_t hear(int socket, void *message, size_t size, int fds[4])
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec part = { message, size };
    struct msghdr all = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                          .msg_controllen = sizeof control };
    struct pollfd ready = { socket, POLLIN, 0 };
    if (poll(&ready, 1, HANDSHAKE_MS) != 1)
        return -1;
    ssize_t length = recvmsg(socket, &all, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    struct cmsghdr *first = length < 0 ? NULL : CMSG_FIRSTHDR(&all);
    if (first && first->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(first), first->cmsg_len - CMSG_LEN(0));
    return length;
}

/* What the daemon offers; or why it is not taken. */
static const char *take_offer(struct sluice_io *io, const struct sluice_abi_hello *hello, const int fds[4])
{
    static char words[80];
    if (hello->magic != SLUICE_UIF_MAGIC)
        return "it is no daemon of Sluice's";
    if (hello->version != SLUICE_UIF_VERSION) {
        snprintf(words, sizeof words, "it speaks version %u of the rings, and this is version %u: rebuild it",
                 hello->version, SLUICE_UIF_VERSION);
        return words;
    }
    io->rings_bytes = (size_t)hello->rings_bytes;
    io->arena_bytes = (size_t)hello->arena_bytes;
    io->rings = map(fds[0], hello->rings_bytes);
    io->arena = map(fds[1], hello->arena_bytes);
    if (!io->rings || !io->arena || io->rings_bytes < 3 * SLUICE_PAGE_BYTES)
        return "the memory it brought cannot be used";
    struct sluice_abi_header header;
    memcpy(&header, io->rings, sizeof header);
    io->entries = (uint16_t)header.entries;
    bool is_ring = header.entries && header.entries <= SLUICE_ENTRIES_MAX && !(header.entries & (header.entries - 1));
    if (header.magic != SLUICE_UIF_MAGIC || header.version != SLUICE_UIF_VERSION || !is_ring ||
        (size_t)((uint8_t *)place(io, 2, 0) - io->rings) > io->rings_bytes)
        return "the memory it brought holds no rings";
    return NULL;
}

static void describe(struct sluice_io *io, const struct sluice_properties *is, struct sluice_abi_welcome *welcome)
{
    memcpy(welcome->interests, is->interests, sizeof is->interests);
    welcome->block_size = is->block_size ? is->block_size : 512;
    welcome->scratch = is->scratch;
    welcome->transforms = is->transforms;
    welcome->pool = is->pool;
    welcome->size = is->size;
    size_t pool = is->pool < io->arena_bytes ? is->pool : io->arena_bytes;
    io->pool_at = io->arena_bytes - pool;
    io->pool_pages = pool / SLUICE_PAGE_BYTES;
    io->pool = calloc(io->pool_pages + 1, sizeof *io->pool);
    if (!io->pool)
        abort();
}

/* Serves the daemon at this socket from now on. NULL if it is refused: it was told why. */
static struct sluice_io *begin(int socket, const struct sluice_function *function)
{
    struct {
        struct sluice_abi_hello hello;
        char options[SLUICE_OPTIONS_MAX];
    } message;
    int fds[4] = { -1, -1, -1, -1 };
    struct sluice_io *io = calloc(1, sizeof *io);
    struct sluice_options options = { 0 };
    struct sluice_properties is = { 0 };
    struct sluice_abi_welcome welcome = { .magic = SLUICE_UIF_MAGIC, .version = SLUICE_UIF_VERSION };
    if (!io)
        abort();
    ssize_t length = hear(socket, &message, sizeof message, fds);
    const char *why = length < (ssize_t)sizeof message.hello || fds[3] < 0 ? "it did not say what it wants" : NULL;
    io->function = function;
    io->socket = socket;
    io->doorbell = fds[2];
    io->bell = fds[3];
    io->alarm_ns = NEVER;
    if (!why)
        why = take_offer(io, &message.hello, fds);
    close(fds[0]);
    close(fds[1]);
    if (!why && message.hello.options > (size_t)length - sizeof message.hello)
        why = "its options end too soon";
    if (!why) {
        options.length = message.hello.options;
        memcpy(options.text, message.options, options.length);
        if (function->open && function->open(&options, &is, &io->self, (char *)welcome.words) != 0) {
            welcome.words[SLUICE_WHY_BYTES - 1] = 0;
            welcome.refused = 1;
        } else {
            describe(io, &is, &welcome);
        }
    } else {
        welcome.refused = 1;
        snprintf((char *)welcome.words, SLUICE_WORDS_MAX, "%s", why);
    }
    if (send(socket, &welcome, sizeof welcome, MSG_NOSIGNAL) != sizeof welcome || welcome.refused) {
        if (welcome.refused)
            fprintf(stderr, "a drive is refused: %s\n", (const char *)welcome.words);
        let_go(io);
        return NULL;
    }
    write_index(io, SLUICE_INDEX_EVENT, (uint16_t)-1);
    return io;
}

/* ---- The loop -------------------------------------------------------------------------------------------- */

struct server {
    struct sluice_io *clients;
    const struct sluice_function *function;
    int door; /* below zero if it listens nowhere */
    uint64_t began_ns;
    uint64_t spin_ns;
};

static void accept_one(struct server *server)
{
    int socket = accept4(server->door, NULL, NULL, SOCK_CLOEXEC);
    struct sluice_io *io = socket < 0 ? NULL : begin(socket, server->function);
    if (io) {
        io->next = server->clients;
        server->clients = io;
    }
}

/* Waits for doorbells and sockets, and lets daemons in and out. */
static void look(struct server *server, uint64_t limit_ns)
{
    size_t count = 0, n = 0;
    for (struct sluice_io *io = server->clients; io; io = io->next)
        count++;
    struct pollfd fds[2 * count + 1];
    for (struct sluice_io *io = server->clients; io; io = io->next) {
        fds[n++] = (struct pollfd){ io->doorbell, POLLIN, 0 };
        fds[n++] = (struct pollfd){ io->socket, POLLIN, 0 };
    }
    fds[n++] = (struct pollfd){ server->door, POLLIN, 0 };
    struct timespec limit = { (time_t)(limit_ns / 1000000000u), (long)(limit_ns % 1000000000u) };
    if (ppoll(fds, n, limit_ns == NEVER ? NULL : &limit, NULL) <= 0)
        return;
    n = 0;
    for (struct sluice_io **place = &server->clients; *place; n += 2) {
        struct sluice_io *io = *place;
        uint64_t rings;
        /* A daemon says nothing after its first word: it can only be gone. */
        if (fds[n + 1].revents) {
            *place = io->next;
            let_go(io);
            continue;
        }
        if (fds[n].revents && read(io->doorbell, &rings, sizeof rings) < 0 && errno != EAGAIN)
            perror("a doorbell");
        place = &io->next;
    }
    if (fds[n].revents)
        accept_one(server);
}

/* Asks every daemon to ring, and sleeps unless one of them has just said something. */
static void sleep_(struct server *server)
{
    uint64_t now = clock_ns(), began = now, until = NEVER;
    bool busy = false;
    for (struct sluice_io *io = server->clients; io; io = io->next) {
        write_index(io, SLUICE_INDEX_EVENT, io->head);
        if (io->said_count && until > now + FULL_NS)
            until = now + FULL_NS;
        if (io->alarm_ns != NEVER && until > server->began_ns + io->alarm_ns)
            until = server->began_ns + io->alarm_ns;
    }
    /* The event indices are out before the tails are read once more. */
    atomic_thread_fence(memory_order_seq_cst);
    for (struct sluice_io *io = server->clients; io; io = io->next)
        busy |= waiting(io) != 0;
    if (!busy) {
        look(server, until == NEVER ? NEVER : until > now ? until - now : 0);
        bool was_short = clock_ns() - began <= SHORT_SLEEP_NS;
        server->spin_ns = was_short ? 2 * server->spin_ns : server->spin_ns / 2;
        if (server->spin_ns > SPIN_MAX_NS)
            server->spin_ns = SPIN_MAX_NS;
        if (server->spin_ns < SPIN_MAX_NS / 16)
            server->spin_ns = SPIN_MAX_NS / 16;
    }
    for (struct sluice_io *io = server->clients; io; io = io->next)
        write_index(io, SLUICE_INDEX_EVENT, (uint16_t)(io->head - 1));
}

static void serve(struct server *server)
{
    uint64_t idle_since = 0;
    for (unsigned turns = 0; server->door >= 0 || server->clients; turns++) {
        uint64_t now = clock_ns();
        int work = 0;
        for (struct sluice_io **place = &server->clients; *place;) {
            struct sluice_io *io = *place;
            int did = turn(io, now - server->began_ns);
            if (did < 0) {
                *place = io->next;
                let_go(io);
                continue;
            }
            work += did;
            place = &io->next;
        }
        if (work) {
            idle_since = 0;
            if (turns % TURNS_PER_LOOK == 0)
                look(server, 0);
        } else if (idle_since == 0) {
            idle_since = now;
        } else if (now - idle_since >= server->spin_ns) {
            sleep_(server);
            idle_since = 0;
        }
    }
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (door < 0 || bind(door, (struct sockaddr *)&address, sizeof address) != 0 || listen(door, BACKLOG) != 0)
        return -1;
    return door;
}

static int usage(const char *word)
{
    fprintf(stderr, "error: there is no argument %s, or it lacks its path\n\n"
            "a storage function of Sluice's. The daemon starts it, with its socket as standard input.\n\n"
            "  --socket PATH     listen there instead, for any number of drives\n"
            "  --readable PATH   with --socket: a file, or a folder with all below it, that a drive's function opens\n"
            "  --unconfined      keep all that a process may do\n", word);
    return 2;
}

int sluice_main(int argc, char **argv, const struct sluice_function *function)
{
    const char *path = NULL, *readable[READABLE_MAX];
    size_t readables = 0;
    bool confined = true;
    for (int n = 1; n < argc; n++) {
        bool has_next = n + 1 < argc;
        if (strcmp(argv[n], "--unconfined") == 0)
            confined = false;
        else if (strcmp(argv[n], "--socket") == 0 && has_next)
            path = argv[++n];
        else if (strcmp(argv[n], "--readable") == 0 && has_next && readables < READABLE_MAX)
            readable[readables++] = argv[++n];
        else
            return usage(argv[n]);
    }
    struct server server = { .function = function, .door = -1, .began_ns = clock_ns(), .spin_ns = SPIN_MAX_NS };
    /* Before it opens a key. */
    sluice_hide();
    if (path && (server.door = listen_at(path)) < 0) {
        fprintf(stderr, "error: cannot listen at %s: %s\n", path, strerror(errno));
        return 1;
    }
    if (!path && !(server.clients = begin(dup(0), function)))
        return 1;
    if (confined && sluice_confine(readable, readables, path != NULL) != 0) {
        fprintf(stderr, "error: cannot be confined: %s\n", strerror(errno));
        return 1;
    }
    serve(&server);
    return 0;
}
