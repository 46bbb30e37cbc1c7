# A boot sector: reads 32 KiB behind itself by the BIOS, writes them to another place, and prints the line that
# they begin with on the first serial port. Ends QEMU through its isa-debug-exit: 0 is good, else the BIOS's error.
.code16
.intel_syntax noprefix
.set PORT, 0x3f8
.set END, 0x501
.set ROOM, 0x1000                   # the segment that the data is read to
.set FROM, 1                        # blocks of 512 bytes
.set TO, 128

.globl _start
_start: xor ax, ax
        mov ds, ax
        mov ss, ax
        mov sp, 0x7c00
        mov si, offset packet
        mov ah, 0x42                # Extended Read; the drive is in dl already
        int 0x13
        jc failed
        mov dword ptr [place], TO
        mov ax, 0x4300              # Extended Write
        int 0x13
        jc failed
        mov ax, ROOM
        mov ds, ax
        xor si, si
next:   lodsb
        test al, al
        jz good
        call put
        jmp next
good:   xor ax, ax
failed: mov al, ah
        mov dx, END
        out dx, al
        hlt

put:    mov cl, al
        mov dx, PORT + 5            # until there is room for a byte
wait:   in al, dx
        test al, 0x20
        jz wait
        mov al, cl
        mov dx, PORT
        out dx, al
        ret

        .balign 4
packet: .byte 16, 0
        .word 64
        .word 0, ROOM
place:  .quad FROM
        .org 510
        .word 0xaa55
