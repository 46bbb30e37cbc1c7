// A small NVMe host for a drive behind a vfio-user socket; one queue pair for each worker.
#pragma once
#include <stddef.h>
#include <stdint.h>

void nvme_connect(const char *socket_path, unsigned workers);
// Block numbers are in units of 4 KiB, which must be the namespace's block size. All three end the
// program when the drive reports an error.
void nvme_write(unsigned worker, const void *block, uint64_t number);
void nvme_read(unsigned worker, void *block, uint64_t number);
void nvme_flush(unsigned worker);

// A load instead: `depth` commands of `bytes` (whole pages) at a time, by slot, on one queue. What was started goes
// with the next ring; waiting sleeps until something is done, and says which slots.
void nvme_load_connect(const char *socket_path, unsigned depth, size_t bytes);
void nvme_load_start(unsigned slot, int is_write, uint64_t number);
void nvme_load_ring(void);
unsigned nvme_load_wait(unsigned *slots);
