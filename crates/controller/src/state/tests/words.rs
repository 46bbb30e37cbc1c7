//! Words for operators, as they are.

use crate::state::refusal::Refusal;
use crate::state::remote_queues::cause::RecallCause;
use crate::state::slow::SlowCommand;
use crate::state::trace::TracedCommand;
use sluice_nvme::opcode::io as opcode;

#[test]
fn causes_of_a_recall_are_described() {
    let words = [
        (RecallCause::AdminCommand(0x0b), "the host sent admin command 0bh"),
        (RecallCause::IoCommand(0x05), "the host sent I/O command 05h, or a fused one"),
        (RecallCause::Reset, "the host wrote a register of its controller, was reset, or is gone"),
        (RecallCause::Memory, "memory of the host was unmapped"),
        (RecallCause::Client, "the client changed the memory or the interrupts of the host"),
        (RecallCause::Buffer, "data of a command is not in memory that the client has shared"),
        (RecallCause::Doorbell, "the host rang a doorbell with a value that cannot be"),
        (RecallCause::Fatal, "the controller is in fatal status"),
        (RecallCause::Operator, "an order takes all queues of the drive"),
        (RecallCause::End, "the drive ends"),
        (RecallCause::Room, "there was no room for a queue's interrupt where it was sent"),
    ];
    for (number, (cause, expected)) in words.into_iter().enumerate() {
        assert_eq!((cause.number(), cause.to_string()), (number, expected.into()));
    }
}

#[test]
fn refusals_are_described() {
    let words = [
        (Refusal::NotQuiet, "commands are in flight"),
        (Refusal::NoSuchNamespace(7), "there is no namespace 7"),
        (Refusal::Busy, "it still has something under way"),
        (Refusal::Formatted, "the namespace is being formatted"),
        (Refusal::Size, "the size of the namespace would change under its host"),
        (Refusal::Smaller { has: 5, needs: 6 }, "it has 5 bytes, and the namespace has 6"),
        (Refusal::ReadOnly, "it accepts no write, and the host writes"),
        (Refusal::BlockSize(4096), "it needs blocks of 4096 bytes, and those of the namespace are smaller"),
        (
            Refusal::VolatileCache,
            "finished writes would need a Flush to be durable, and the host was told that they do not",
        ),
        (Refusal::Deallocate, "the host was told something else about Deallocate"),
        (Refusal::TooManyCommands, "the layers would make more commands than a drive can have"),
    ];
    for (refusal, expected) in words {
        assert_eq!(refusal.to_string(), expected);
    }
}

#[test]
fn slow_and_traced_commands_are_named() {
    let names = [
        (opcode::READ, "a Read of 8 blocks at LBA 64", Some("read"), true),
        (opcode::WRITE, "a Write of 8 blocks at LBA 64", Some("write"), true),
        (opcode::COMPARE, "a Compare of 8 blocks at LBA 64", Some("compare"), true),
        (opcode::WRITE_ZEROES, "a Write Zeroes of 8 blocks at LBA 64", Some("write-zeroes"), true),
        (opcode::FLUSH, "a Flush", Some("flush"), false),
        (opcode::DATASET_MANAGEMENT, "a Dataset Management", Some("deallocate"), false),
        (opcode::VERIFY, "a command with the opcode 0x0c", Some("verify"), true),
        (opcode::COPY, "a command with the opcode 0x19", Some("copy"), false),
        (0x81, "a command with the opcode 0x81", None, false),
    ];
    for (opcode, name, operation, has_blocks) in names {
        let slow = SlowCommand { ns: 2_999_999, opcode, nsid: 2, slba: 64, blocks: 8, sq: 3, cid: 7 };
        assert_eq!(slow.to_string(), format!("{name} of namespace 2 took 2 ms (queue 3, CID 7)"));
        let traced = TracedCommand { opcode, ..TracedCommand::default() };
        assert_eq!((traced.operation(), traced.has_blocks()), (operation, has_blocks), "{opcode:#x}");
    }
}
