// A small virtio-scsi driver with the kernel's vhost-scsi behind it: one queue of requests for LUN 0 of a target that
// was made in configfs. The same face as a load of nvme_host.h.
#pragma once
#include <stddef.h>
#include <stdint.h>

// `wwpn` names the target; its first portal group is 1, its disk has blocks of 4 KiB.
void scsi_load_connect(const char *wwpn, unsigned depth, size_t bytes);
void scsi_load_start(unsigned slot, int is_write, uint64_t number);
void scsi_load_ring(void);
unsigned scsi_load_wait(unsigned *slots);
