// An UEFI application, loaded from the drive: reads the 32 KiB that are 64 KiB before its end, writes them to the
// last 32 KiB, flushes, and prints the line that they begin with on the first serial port. Ends QEMU through its
// isa-debug-exit: 0 is good, else the number of the step that failed.
// Interfaces: UEFI specification 2.10, sections 4.3, 7.3, 9.1 and 13.9.
#include <stdint.h>

#define PIECE 32768

typedef struct { uint32_t a; uint16_t b, c; uint8_t d[8]; } guid;
static const guid loaded_image = {0x5b1b31a1, 0x9562, 0x11d2, {0x8e, 0x3f, 0, 0xa0, 0xc9, 0x69, 0x72, 0x3b}};
static const guid block_io = {0x964e5b21, 0x6459, 0x11d2, {0x8e, 0x39, 0, 0xa0, 0xc9, 0x69, 0x72, 0x3b}};

struct boot_services {
    uint8_t before[152];
    uint64_t (*handle_protocol)(void *handle, const guid *protocol, void **interface);
};
struct system_table { uint8_t before[96]; struct boot_services *boot; };
struct image { uint8_t before[24]; void *device; };
struct media {
    uint32_t id;
    uint8_t removable, present, partition, read_only, caches, padding[3];
    uint32_t block_size, alignment;
    uint64_t last_block;
};
struct block {
    uint64_t revision;
    struct media *media;
    uint64_t (*reset)(struct block *, uint8_t);
    uint64_t (*read)(struct block *, uint32_t media, uint64_t lba, uint64_t bytes, void *data);
    uint64_t (*write)(struct block *, uint32_t media, uint64_t lba, uint64_t bytes, void *data);
    uint64_t (*flush)(struct block *);
};

static uint8_t piece[PIECE] __attribute__((aligned(4096)));

static void out(uint16_t port, uint8_t byte) { __asm__ volatile("outb %0, %1" : : "a"(byte), "Nd"(port)); }

static uint8_t in(uint16_t port) {
    uint8_t byte;
    __asm__ volatile("inb %1, %0" : "=a"(byte) : "Nd"(port));
    return byte;
}

static void put(uint8_t byte) {
    while (!(in(0x3fd) & 0x20)) {}
    out(0x3f8, byte);
}

static int copy(struct system_table *system, void *handle) {
    struct image *image;
    struct block *drive;
    if (system->boot->handle_protocol(handle, &loaded_image, (void **)&image)) return 1;
    if (system->boot->handle_protocol(image->device, &block_io, (void **)&drive)) return 2;
    uint32_t id = drive->media->id, blocks = PIECE / drive->media->block_size;
    uint64_t end = drive->media->last_block + 1;
    if (drive->read(drive, id, end - 2 * blocks, PIECE, piece)) return 3;
    if (drive->write(drive, id, end - blocks, PIECE, piece)) return 4;
    return drive->flush(drive) ? 5 : 0;
}

uint64_t start(void *handle, struct system_table *system) {
    int failed = copy(system, handle);
    for (int at = 0; at < PIECE && piece[at]; at++) put(piece[at]);
    out(0x501, failed);
    for (;;) {}
}
