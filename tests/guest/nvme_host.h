// A small NVMe host for a drive behind a vfio-user socket; one queue pair for each worker.
#pragma once
#include <stdint.h>

void nvme_connect(const char *socket_path, unsigned workers);
// Block numbers are in units of 4 KiB, which must be the namespace's block size. All three end the
// program when the drive reports an error.
void nvme_write(unsigned worker, const void *block, uint64_t number);
void nvme_read(unsigned worker, void *block, uint64_t number);
void nvme_flush(unsigned worker);
